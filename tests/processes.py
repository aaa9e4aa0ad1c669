"""Processes that a test started, found by a marker in their environment or by descent."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable

import psutil

MARK = "TUNER_TEST_MARK"


def until(condition: Callable[[], object], timeout_s: float = 60.0, what: str = "") -> None:
    """Wait for a condition; fail after the given time."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"not within {timeout_s:g} s: {what or condition}"
        time.sleep(0.05)


def runs(process: psutil.Process) -> bool:
    """Whether this very process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Family:
    """All that carries one marker in its environment, and all that was seen below its members.

    Processes that rename themselves may overwrite their environment: ``look`` notes them by
    descent while their parents still live.
    """

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._seen: set[psutil.Process] = set()

    def look(self) -> set[psutil.Process]:
        """Note who is there now; return everyone who was ever seen and still runs."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    self._seen |= {process, *process.children(recursive=True)}
        self._seen = set(filter(runs, self._seen))
        return self._seen

    def named(self, part: str) -> list[psutil.Process]:
        """Return the members whose command line contains ``part``."""
        return [process for process in self.look() if part in _command(process)]

    def module(self, name: str) -> psutil.Process:
        """Return the one member that was started as ``python -m name``."""
        (found,) = [p for p in self.look() if _words(p)[1:3] == ["-m", name]]
        return found

    def gone(self, timeout_s: float = 15.0) -> None:
        """Fail unless everyone ends within the time."""
        give_up = time.monotonic() + timeout_s
        while left := self.look():
            assert time.monotonic() < give_up, f"still there: {commands(left)}"
            time.sleep(0.05)


def commands(processes: Iterable[psutil.Process]) -> list[str]:
    """Return one line per process, for people."""
    return sorted(f"{process.pid} {_command(process)[:120]}" for process in processes)


def _command(process: psutil.Process) -> str:
    return " ".join(_words(process))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
