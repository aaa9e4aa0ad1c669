"""A running engine host, seen from the worker that owns it: start, give a job, stop, end."""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

from tuner.job import Deadlines, Job
from tuner.pools.host import LOG_NAME
from tuner.pools.messages import Done, Phase, Run, Stop
from tuner.pools.spec import HostSpec, OnPhase
from tuner.pools.supervisor import ProcessId
from tuner.records import Cost, Faulted, Outcome

#: Phases of a job that the pool itself knows; the others come from ``evaluate``.
STARTING_HOST = "starting host"
STARTING_ENGINE = "starting engine"
#: Files in a job's directory that may say why a host died.
_EVIDENCE = (LOG_NAME, "engine.log")
#: Seconds until a killed host's tree must be gone.
_END_S = 15.0
#: Phases during which the engine is not there yet.
_STARTING = (STARTING_HOST, STARTING_ENGINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which the worker ends a host that does not answer.

    The engine's launcher and the replay keep the job's deadlines themselves; these are for a host
    that no longer can. ``slack_s`` is what they get on top.
    """

    #: Importing the engine's packages.
    host_start_s: float = 300.0
    slack_s: float = 60.0

    def engine_start_s(self, deadlines: Deadlines) -> float:
        """Longest start of an engine."""
        return deadlines.start_at_most_s + self.slack_s

    def job_s(self, job: Job) -> float:
        """Longest job on a host that is ready: its own deadline, which it should keep itself."""
        return job.deadlines.trial_s + self.slack_s


class HostProcess:
    """One host with its supervisor. Used by one thread; ``stop`` may come from another."""

    def __init__(self, supervisor: subprocess.Popen[bytes], link: socket.socket, own: Connection):
        self._supervisor = supervisor
        self._link = link
        self._messages = own
        self._ready = False
        self.id = ProcessId.of(supervisor.pid)

    @classmethod
    def start(cls, spec: HostSpec, env: Mapping[str, str], directory: Path) -> Self:
        """Start a supervisor and its host; what they print goes to a log in ``directory``."""
        link, link_far = socket.socketpair()
        own, own_far = socket.socketpair()
        directory.mkdir(parents=True, exist_ok=True)
        host = ["{messages}", "{guard}"]
        module = [sys.executable, "-m"]
        command = [*module, "tuner.pools.supervisor", str(link_far.fileno()), str(own_far.fileno())]
        with (directory / LOG_NAME).open("ab") as log, link_far, own_far:
            supervisor = subprocess.Popen(
                [*command, *module, "tuner.pools.host", *host],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(link_far.fileno(), own_far.fileno()),
                start_new_session=True,
            )
        started = cls(supervisor, link, Connection(own.detach()))
        started._send(spec)
        return started

    @property
    def alive(self) -> bool:
        """Whether the supervisor, and so the host, still runs."""
        return self._supervisor.poll() is None

    def run(self, job: Job, limits: Limits, on_phase: OnPhase) -> tuple[Outcome, Cost] | None:
        """Give the host a job and wait for its end; None if the host died.

        A host that is silent for too long is ended: ``launch_timeout`` or ``deadline``.
        """
        self._send(Run(job))
        try:
            self._ready = self._ready or self._receive(limits.host_start_s) is not None
            if not self._ready:
                return self._too_long(STARTING_HOST)
            return self._follow(job, limits, on_phase)
        except (EOFError, OSError):
            return None

    def _follow(self, job: Job, limits: Limits, on_phase: OnPhase) -> tuple[Outcome, Cost]:
        phase, phase_ends = "", inf
        job_ends = time.monotonic() + limits.job_s(job)
        while True:
            match self._receive(min(job_ends, phase_ends) - time.monotonic()):
                case Done(outcome, cost):
                    return outcome, cost
                case Phase(phase):
                    on_phase(phase)
                    start_s = limits.engine_start_s(job.deadlines)
                    starts = phase == STARTING_ENGINE
                    phase_ends = time.monotonic() + start_s if starts else inf
                case _:
                    return self._too_long(phase)

    def _too_long(self, phase: str) -> tuple[Outcome, Cost]:
        self.end()
        reason = "launch_timeout" if phase in _STARTING else "deadline"
        detail = f"{phase!r} took longer than the job's deadlines allow; the host was ended"
        return Faulted(reason, detail), Cost()

    def stop(self, grace_s: float) -> None:
        """Ask the host to break off and exit; end its processes after ``grace_s`` seconds."""
        self._send(Stop())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(grace_s)
        self.end()

    def end(self, wait_s: float = 0.0) -> str:
        """End the host and all below it after at most ``wait_s`` seconds; say how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(wait_s)
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)  # the supervisor ends everything, then itself
        try:
            code = self._supervisor.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            code = self._supervisor.wait()
        return _ended_how(code)

    def close(self) -> None:
        """Give back the descriptors of an ended host."""
        self._link.close()
        self._messages.close()

    def _receive(self, timeout_s: float) -> object:
        """Return the next message, None if none comes in time. Raises EOFError for a dead host."""
        # The link's other end is the supervisor's alone: readable means that it is gone.
        ready = wait([self._messages, self._link], max(timeout_s, 0.0))
        if ready and self._messages not in ready:
            raise EOFError
        return self._messages.recv() if ready else None

    def _send(self, message: HostSpec | Run | Stop) -> None:
        with contextlib.suppress(OSError):  # a dead host is noticed when its answer is awaited
            self._messages.send_bytes(pickle.dumps(message))


def log_tail(directory: Path, lines: int = 15, most_bytes: int = 4096) -> list[str]:
    """Return the last lines of the logs that a host left in a job's directory."""
    found: list[str] = []
    for name in _EVIDENCE:
        path = directory / name
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as log:
                log.seek(max(path.stat().st_size - most_bytes, 0))
                text = log.read().decode(errors="replace")
            found += [f"{name} ends with:", *text.splitlines()[-lines:]]
    return found


def _ended_how(code: int) -> str:
    if code < 0:
        return f"the engine host's supervisor was killed by {_signal_name(-code)}"
    if code > 128:
        return f"the engine host was killed by {_signal_name(code - 128)}"
    return f"the engine host exited with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
