"""Ends what a killed driver leaves of the Ray that it started.

Started as ``python -m tuner.pools.ray_guard`` in a session of its own, before Ray. The driver
writes one line of JSON: ``[scratch directory, [[pid, created_s], ...]]``. When its input closes,
the driver has left or is dead: those very processes are ended and the directory is removed.
(Ray's own processes follow a killed driver too, but its agents take over a minute.)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import psutil

from tuner.pools.spec import import_path
from tuner.pools.supervisor import GRACE_S, ProcessId


@contextlib.contextmanager
def guarded(scratch: str) -> Iterator[Callable[[], None]]:
    """Run a guard during the body; call what it gives once Ray has started."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "tuner.pools.ray_guard"],
        env={**os.environ, "PYTHONPATH": import_path(os.environ)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    try:
        yield lambda: _tell(guard, scratch)
    finally:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        try:
            guard.wait(2 * GRACE_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


def _tell(guard: subprocess.Popen[bytes], scratch: str) -> None:
    found = psutil.Process().children(recursive=True)
    ids = [[one.pid, one.create_time()] for one in found if one.pid != guard.pid]
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.write(json.dumps([scratch, ids]).encode() + b"\n")
        guard.stdin.flush()


def end(processes: Sequence[ProcessId]) -> None:
    """End exactly these processes, politely first."""
    left = []
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two looks
            if one.alive:
                left.append(psutil.Process(one.pid))
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(left, timeout=GRACE_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def main(lines: IO[str]) -> None:
    """Wait for the driver to leave, then clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    said = list(lines)  # until the input closes
    for line in said:
        scratch, ids = json.loads(line)
        end([ProcessId(*one) for one in ids])
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.stdin)
