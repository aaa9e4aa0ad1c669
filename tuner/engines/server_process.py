"""``vllm serve`` as a child process: started in its own session, watched, and ended for good."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuner.engines.vllm_errors import death, last_lines, root_cause, start_failure, tail_of
from tuner.errors import ConfigRejected, EngineFault

#: Seconds from SIGTERM to SIGKILL, and for the kernel to let go after that.
TERM_S = 10.0
_KILL_S = 10.0
_LOOK_S = 0.05
#: argparse ends with this code where it does not take the arguments.
_USAGE = 2
_USAGE_ERROR = re.compile(r"^.*\berror: (.+)$", re.MULTILINE)
#: In the traceback of a configuration that vLLM refuses before it starts anything.
_BUILDING = re.compile(r"create_engine_config|create_model_config|ValidationError")


class Exited(Exception):
    """The server's process ended: with a code, or by a signal."""


def serve_command() -> list[str]:
    """Return ``vllm serve`` from PATH, else beside this Python, else as a module of it."""
    beside = Path(sys.executable).parent / "vllm"
    found = shutil.which("vllm") or (str(beside) if beside.is_file() else None)
    if found:
        return [found, "serve"]
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that we started, with the log that it writes."""

    child: subprocess.Popen[bytes]
    log: str
    #: Where this server's part of the log begins, in bytes.
    since: int = 0

    @classmethod
    def start(cls, command: Sequence[str], env: Mapping[str, str], log: str) -> ServerProcess:
        """Start a command in a session of its own, its output at the end of ``log``.

        Raises EngineFault("no_command") where there is no such program.
        """
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(log, "ab") as output:
                since = output.tell()
                child = subprocess.Popen(
                    command,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineFault(
                "no_command", f"{command[0]}: {error.strerror}", "is vLLM installed?"
            ) from error
        return cls(child, log, since)

    def ended(self) -> Exited | None:
        """Return how the process ended, None while it runs."""
        code = self.child.poll()
        if code is None:
            return None
        if code >= 0:
            return Exited(f"the server exited with code {code}")
        with contextlib.suppress(ValueError):
            return Exited(f"the server was ended by {signal.Signals(-code).name}")
        return Exited(f"the server was ended by signal {-code}")

    async def end_seen(self, within_s: float | None = None) -> Exited | None:
        """Wait for the process to end; None where it does not within the time."""
        give_up = None if within_s is None else time.monotonic() + within_s
        while (ended := self.ended()) is None:
            if give_up is not None and time.monotonic() > give_up:
                return None
            await asyncio.sleep(_LOOK_S)
        return ended

    def start_error(self, ended: Exited) -> ConfigRejected | EngineFault:
        """Translate an end before the server was ready: the log knows the cause."""
        text = tail_of(self.log, self.since)
        known = start_failure(ended, self.log, self.since)
        if known.reason != "unknown":
            return _noted(known, ended)
        usage = _USAGE_ERROR.findall(text)
        if self.child.returncode == _USAGE and usage:
            return ConfigRejected("invalid_arguments", usage[-1])
        cause = root_cause(text)
        if cause and _BUILDING.search(text):
            return ConfigRejected("invalid_arguments", cause)
        return EngineFault("engine_died", f"{ended}\n{cause or last_lines(text)}".strip())

    def death(self, ended: Exited) -> ConfigRejected | EngineFault:
        """Translate an end of a server that was ready before."""
        return _noted(death(ended, self.log, self.since), ended)

    def family(self) -> list[psutil.Process]:
        """Return the live processes of the server's session, and all below them."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.child.pid and _runs(process):
                    below = [process, *process.children(recursive=True)]
                    found |= {member.pid: member for member in below if _runs(member)}
        return list(found.values())

    def end(self) -> None:
        """End every process of the server; returns when none is left (within about 20 s).

        Not interrupted by cancellation: whoever leaves, leaves nothing behind.
        """
        self._until_gone(signal.SIGTERM, TERM_S)
        self._until_gone(signal.SIGKILL, _KILL_S)

    def _until_gone(self, number: signal.Signals, patience_s: float) -> None:
        """Signal the server, which ends its own, then whoever outlives it."""
        known = set(self.family())
        if self.child.poll() is None:
            self.child.send_signal(number)
        asked: set[psutil.Process] = set()
        give_up = time.monotonic() + patience_s
        while known and time.monotonic() < give_up:
            if self.child.poll() is not None or number == signal.SIGKILL:
                _signal(known - asked, number)
                asked |= known
            time.sleep(_LOOK_S)
            self.child.poll()
            known = {process for process in {*known, *self.family()} if _runs(process)}


def _noted(error: ConfigRejected | EngineFault, ended: Exited) -> ConfigRejected | EngineFault:
    """Return the error with the exit code or signal in front of its detail."""
    if str(ended) in error.detail:
        return error
    return type(error)(error.reason, f"{error.detail} ({ended})", error.hint)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(processes: set[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
