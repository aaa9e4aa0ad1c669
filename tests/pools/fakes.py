"""A launcher and an ``evaluate`` that do what the job's configuration says (hosts load them)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tuner.config import EngineConfig
from tuner.engines import Launcher
from tuner.job import Deadlines, Job, Workload
from tuner.pools.spec import HostSpec, OnPhase
from tuner.records import Cost, Infeasible, Measured, Measurement, Outcome
from tuner.trace import Trace

_SLEEP = "import time; time.sleep(600)"
#: A child that leaves its session and whose parent is gone at once.
_DAEMON = (
    "import subprocess, sys;"
    f"subprocess.Popen([sys.executable, '-c', {_SLEEP!r}], start_new_session=True)"
)


class FakeLauncher:
    """Launches nothing: ``evaluate`` below does it all."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.jobs = 0

    def launch(self, config: EngineConfig, log: str) -> NoReturn:
        raise NotImplementedError


def start_engine_processes(directory: Path) -> None:
    """Start what a real engine has: a child, a stubborn grandchild, one that left the session."""
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SLEEP}"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stubborn!r}])"
    child = subprocess.Popen([sys.executable, "-c", parent])
    subprocess.run([sys.executable, "-c", _DAEMON], check=True)
    (directory / "engine.pid").write_text(str(child.pid))


async def evaluate(job: Job, launcher: Launcher, on_phase: OnPhase) -> tuple[Outcome, Cost]:
    """Do what ``job.config.args["do"]`` names, by the table below."""
    assert isinstance(launcher, FakeLauncher)
    launcher.jobs += 1
    on_phase("starting engine")
    do = job.config.args.get("do", "measure")
    if do == "reject":
        return Infeasible("out_of_memory", "too big"), Cost(start_s=1.0)
    if do in DEADLY:
        DEADLY[do]()
    on_phase("paced")
    if do in WAITING:
        await WAITING[do](job)
    facts = {
        "pid": os.getpid(),
        "jobs": launcher.jobs,
        "env": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    return Measured(Measurement({"paced.e2e.p99": 1.0}, facts=facts)), Cost(replay_s=2.0)


def _exit() -> NoReturn:
    print("the last words of a host", flush=True)
    os._exit(7)


def _raise() -> NoReturn:
    raise LookupError("a bug")


async def _hang_with_processes(job: Job) -> None:
    start_engine_processes(Path(job.directory))
    await asyncio.sleep(600)


async def _until_a_file_is_there(job: Job) -> None:
    while not Path(job.config.args["file"]).exists():  # noqa: ASYNC110 - it is another process's
        await asyncio.sleep(0.02)


async def _stuck(job: Job) -> None:
    time.sleep(600)  # noqa: ASYNC251 - not even the event loop runs


DEADLY: dict[str, Callable[[], object]] = {
    "exit": _exit,
    "raise": _raise,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stuck start": lambda: time.sleep(600),
}
WAITING: dict[str, Callable[[Job], Awaitable[None]]] = {
    "hang": _hang_with_processes,
    "until": _until_a_file_is_there,
    "stuck": _stuck,
}


def a_trace(requests: int = 2) -> Trace:
    """Return a trace of a few small requests, 0.1 s apart."""
    times = np.arange(requests) * 100_000
    return Trace.build(times, np.full(requests, 8), np.full(requests, 4))


def a_job(number: int, directory: Path, deadlines: Deadlines | None = None, **args: Any) -> Job:
    """Return a job whose configuration has these arguments; ``env`` is its environment."""
    env = args.pop("env", {})
    return Job(
        number,
        EngineConfig("fake", args, env),
        Workload("fake", a_trace()),
        str(directory / str(number)),
        deadlines or Deadlines(),
    )


def a_spec(**env: str) -> HostSpec:
    """Return the spec of a host that uses these fakes."""
    return HostSpec(
        "tests.pools.fakes:FakeLauncher", env=env, evaluate="tests.pools.fakes:evaluate"
    )
