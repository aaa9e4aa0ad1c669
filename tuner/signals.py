"""Ctrl-C once: finish what runs. Twice, or SIGTERM: stop now. Nothing is left behind either way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from tuner.tune import StopRequest

#: Shell convention: 128 + the signal's number.
TERMINATED = 128 + signal.SIGTERM


@contextlib.contextmanager
def interruptible(stop: StopRequest, say: Callable[[str], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM in the body; the old handlers are back afterwards.

    The second SIGINT raises KeyboardInterrupt, SIGTERM raises SystemExit; from then on both are
    ignored, so that cleaning up (which is bounded in time) is not cut short.
    """

    def ignore_further() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            ignore_further()
            raise KeyboardInterrupt
        stop.requested = True
        say("finishing the trials that run; press Ctrl-C again to stop now")

    def on_terminate(number: int, frame: FrameType | None) -> None:
        ignore_further()
        raise SystemExit(TERMINATED)

    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, on_interrupt)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, on_terminate)),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
