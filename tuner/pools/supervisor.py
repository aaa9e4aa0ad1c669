"""The process between a worker and its engine host: it leaves nothing behind.

Started as ``python -m tuner.pools.supervisor LINK MESSAGES GUARD_COMMAND...`` in a session of its
own. It adopts every orphan below it (child subreaper), so a process that called ``setsid`` or whose
parent died is still found. When the worker's end of the link closes, or the host ends, it ends
every descendant and exits with the host's code (128 + signal where a signal ended it).

Only processes below the caller are ever signalled, and psutil checks each one's creation time
first, so a reused process number is safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psutil

#: Seconds between the polite signal and the final one.
GRACE_S = 4.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one machine for all time: its number and when it was created."""

    pid: int
    #: Seconds since the epoch, as psutil reports it.
    created_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identity of a live process. Raises psutil.NoSuchProcess."""
        return cls(pid, psutil.Process(pid).create_time())

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        try:
            process = psutil.Process(self.pid)
            same = process.create_time() == self.created_s
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose own parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def live_descendants(spare: Collection[int] = ()) -> list[psutil.Process]:
    """Return the running processes below this one, without the ``spare`` children's trees."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        if child.pid in spare:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child, *child.children(recursive=True)]
    return [process for process in found if _runs(process)]


def end_descendants(grace_s: float = GRACE_S, spare: Collection[int] = ()) -> None:
    """End every process below this one; return when none is left. It must adopt orphans.

    Asks first, so that engines can give back shared memory, and insists after ``grace_s`` seconds.
    Waits for as long as the kernel takes to let go of a killed process.
    """
    asked: set[psutil.Process] = set()
    insist_at = time.monotonic() + grace_s
    while (left := live_descendants(spare)) or not _childless(spare):
        insist = time.monotonic() >= insist_at
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if insist:
                    process.kill()
                elif process not in asked:
                    asked.add(process)
                    process.terminate()
        psutil.wait_procs(left, timeout=0.05)
        if not left:
            time.sleep(0.01)


def _childless(spare: Collection[int]) -> bool:
    """Whether the kernel, too, says that nobody is left. Collects those that ended.

    One look through /proc misses a process whose parent dies meanwhile. But each orphan becomes our
    own child, so without children there are no descendants either.
    """
    if spare:
        return not live_descendants(spare)  # a second look; theirs are not ours to collect
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _watch(link: socket.socket, wakeup: socket.socket, host: int) -> int | None:
    """Block until the link closes or this process is asked to end (None), or the host ends."""
    while True:
        ready, _, _ = select.select([link, wakeup], [], [])
        if link in ready:
            return None
        if signal.SIGTERM in wakeup.recv(64):
            return None
        status = _reap(host)
        if status is not None:
            return os.waitstatus_to_exitcode(status)


def _reap(host: int) -> int | None:
    """Collect every child that ended; return the host's wait status if it is among them."""
    host_status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == host:
                host_status = ended[1]
    return host_status


def _signals_to(wakeup: socket.socket) -> None:
    """Turn SIGCHLD and SIGTERM into bytes on ``wakeup``; ignore the terminal's Ctrl-C."""
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def main(arguments: Sequence[str]) -> int:
    """Run and guard one host: ``LINK MESSAGES COMMAND...``, the first two inherited sockets.

    ``{messages}`` and ``{guard}`` in the command become the numbers of the host's own inherited
    descriptors: its message socket, and a pipe that closes when this process is gone.
    """
    link = socket.socket(fileno=int(arguments[0]))
    messages = int(arguments[1])
    adopt_orphans()
    ours, theirs = socket.socketpair()
    _signals_to(theirs)
    guard, held = os.pipe()  # ``held`` is never written: it closes when this process dies
    numbers = {"messages": messages, "guard": guard}
    command = [part.format(**numbers) for part in arguments[2:]]
    host = subprocess.Popen(command, pass_fds=(messages, guard), stdin=subprocess.DEVNULL)
    os.close(messages)
    os.close(guard)
    code = _watch(link, ours, host.pid)
    end_descendants()
    host.returncode = 0 if code is None else code  # reaped above, not by Popen
    os.close(held)
    return 0 if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
