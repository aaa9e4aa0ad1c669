"""What vLLM does to the process around it - output, environment, children - kept within bounds."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil

_STREAMS = {"stdout": 1, "stderr": 2}
_PR_SET_CHILD_SUBREAPER = 36
_TERMINATE_S = 3.0
_KILL_S = 5.0


@contextlib.contextmanager
def output_to(path: str | Path) -> Iterator[None]:
    """Send all output of this process and of the children it starts to the end of a file.

    Covers the file descriptors 1 and 2, and where ``sys.stdout``, ``sys.stderr`` or a log handler
    write elsewhere (notebooks, test runners), these too. Puts everything back on the way out.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        stack.callback(os.close, log)
        for name, number in _STREAMS.items():
            stream = getattr(sys, name)
            _flush(stream)
            stack.callback(_restore, os.dup(number), number)
            os.dup2(log, number)
            if _descriptor(stream) != number:
                setattr(sys, name, _stream_on(number))
                stack.callback(setattr, sys, name, stream)
        for handler in _handlers_elsewhere():
            stack.callback(_set_stream, handler, handler.stream)
            _set_stream(handler, _stream_on(2))
        yield


def _flush(stream: Any) -> None:
    with contextlib.suppress(ValueError, OSError):
        stream.flush()


def _restore(kept: int, number: int) -> None:
    os.dup2(kept, number)
    os.close(kept)


def _descriptor(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _stream_on(number: int) -> Any:
    """Return a text stream on a descriptor. It stays valid: libraries hold on to such streams."""
    return open(number, "w", buffering=1, errors="replace", closefd=False)


def _handlers_elsewhere() -> list[logging.StreamHandler[Any]]:
    """Return the plain stream handlers that write neither to descriptor 1 nor to 2."""
    known = logging.Logger.manager.loggerDict.values()
    loggers = [logging.root, *(item for item in known if isinstance(item, logging.Logger))]
    handlers = {handler: None for logger in loggers for handler in logger.handlers}
    plain = [handler for handler in handlers if type(handler) is logging.StreamHandler]
    return [handler for handler in plain if _descriptor(handler.stream) not in (1, 2)]


def _set_stream(handler: logging.StreamHandler[Any], stream: Any) -> None:
    # Not setStream(): that flushes the old stream first, which may be closed by now.
    with handler.lock or contextlib.nullcontext():
        handler.stream = stream


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """Undo what happens to ``os.environ`` in the body: vLLM leaves settings of one launch there."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


class Descendants:
    """The processes started by this one from now on, children's children included.

    A process whose parent dies becomes our own child (Linux: child subreaper), so none escapes.
    Python's resource tracker is not counted: it belongs to this process and ends with it.
    """

    def __init__(self) -> None:
        _adopt_orphans()
        self._earlier = {process.pid for process in _children()}

    def alive(self) -> list[psutil.Process]:
        """Return those that still run."""
        tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
        spared = self._earlier | {tracker}
        return [process for process in _children() if process.pid not in spared]

    def end(self) -> None:
        """Ask them to end, then kill; returns when all are gone (within about 10 s)."""
        self._signal("terminate", _TERMINATE_S)
        while self.alive() and self._signal("kill", _KILL_S):
            pass

    def _signal(self, verb: str, patience_s: float) -> bool:
        """Signal and reap all; True where another round may find more."""
        processes = self.alive()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, verb)()
        _, stuck = psutil.wait_procs(processes, timeout=patience_s)
        return not stuck


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _adopt_orphans() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
