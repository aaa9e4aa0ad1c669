"""How long an engine's start is waited for: longer while its log shows that it is at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.vllm_errors import last_lines, tail_of
from tuner.job import Deadlines

#: Looks at the log within one start deadline. Progress in one of these steps earns two more.
_LOOKS = 20


@dataclass(slots=True)
class Patience:
    """The deadline of one start. Seconds are those of the event loop's clock."""

    deadlines: Deadlines
    log: Path
    #: Seconds waited when the log last grew.
    _grew_at_s: float = 0.0
    _waited_s: float = 0.0

    @contextlib.asynccontextmanager
    async def while_it_works(self) -> AsyncIterator[None]:
        """Run the body until the deadline; TimeoutError after it. See ``Deadlines.start_s``."""
        async with asyncio.timeout(self.deadlines.start_s) as limit:
            watching = asyncio.ensure_future(self._watch(limit))
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def spent(self) -> str:
        """Return why the wait was given up: how long it was, and what the engine did last."""
        said = last_lines(tail_of(self.log).strip(), 1)
        silent_s = self._waited_s - self._grew_at_s
        step_s = self.deadlines.start_s / _LOOKS
        state = (
            "was still at work" if silent_s < 1.5 * step_s else f"said nothing for {silent_s:.0f} s"
        )
        last = f"; its last line: {said}" if said else ""
        return f"no token within {self._waited_s:g} s; the engine {state}{last}"

    async def _watch(self, limit: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time
        began, step_s = clock(), self.deadlines.start_s / _LOOKS
        size = self._size()
        self._waited_s = self.deadlines.start_s
        while True:
            await asyncio.sleep(step_s)
            before, size = size, self._size()
            if size == before:
                continue
            waited_s = clock() - began
            self._grew_at_s = waited_s
            self._waited_s = min(
                max(waited_s + 2 * step_s, self.deadlines.start_s), self.deadlines.start_at_most_s
            )
            limit.reschedule(began + self._waited_s)

    def _size(self) -> int:
        try:
            return self.log.stat().st_size
        except OSError:
            return 0
