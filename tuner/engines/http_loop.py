"""uvloop with a clock that is finer than its timers."""

from __future__ import annotations

import time

import uvloop


class PreciseLoop(uvloop.Loop):  # type: ignore[misc]  # uvloop is not followed
    """uvloop, but ``time()`` has the resolution of the system's clock.

    uvloop's own ``time()`` counts whole milliseconds (libuv's clock), a tenth of the gap between
    two tokens of a fast engine. Timers keep their resolution of about 1 ms.
    """

    def time(self) -> float:
        """Seconds of the system's monotonic clock, the one that libuv's timers go by."""
        super().time()  # brings libuv's cached time up to date, as timers set next expect
        return time.monotonic()
