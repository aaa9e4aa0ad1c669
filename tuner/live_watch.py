"""A running server kept at a preset that somebody else changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner import live_apply
from tuner.config import Json, digest
from tuner.errors import ConfigRejected, EngineFault, StudyError
from tuner.live_apply import Applied, apply
from tuner.live_preset import parsed
from tuner.live_server import LiveServer
from tuner.live_sources import Seen, Source

#: ``invalid``: no preset that this server could run. ``unreadable``: the source has nothing.
#: ``unreachable``: the server gives no answer. In all three the server is as it was.
Result = live_apply.Result | Literal["invalid", "unreadable", "unreachable"]
#: Results that another try may better without a new text: a busy server, one that restarts.
_TRY_AGAIN = ("refused", "rolled back", "unknown", "unreachable")


@dataclass(frozen=True, slots=True)
class Change:
    """What came of one text of the source."""

    source: str
    #: Identifies the text; '' where there is none.
    digest: str
    result: Result
    applied: Applied | None = None
    error: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        found = {} if self.applied is None else self.applied.to_json()
        error = {"error": self.error} if self.error else {}
        return {
            "source": self.source,
            "digest": self.digest,
            **found,
            "result": self.result,
            **error,
        }


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: of quiet before a text is taken, of draining, and until another try."""

    quiet_s: float = 0.5
    drain_s: float = 0.0
    again_s: float = 10.0


@dataclass(slots=True)
class _Latest:
    """The newest of what a source yields."""

    seen: Seen | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, updates: AsyncIterator[Seen]) -> None:
        async for seen in updates:
            self.seen = seen
            self.news.set()

    async def settled(self, quiet_s: float, at_most_s: float | None) -> Seen | None:
        """Wait for news, and until there is no more for a while; or ``at_most_s`` for any."""
        wait_s = at_most_s
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(wait_s):
                    await self.news.wait()
                self.news.clear()
                wait_s = quiet_s
        return self.seen


async def watch(
    source: Source, server: LiveServer, tell: Callable[[Change], None], pace: Pace | None = None
) -> None:
    """Put every text of the source on the server, until cancelled; ``tell`` of all that comes.

    What cannot be applied leaves the server as it was. What the server could not take just now is
    tried again; it is told of again only where something else comes of it.
    """
    pace = pace or Pace()
    latest = _Latest()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(latest.follow(source.updates()))
        told = None
        while True:
            again = told is not None and told.result in _TRY_AGAIN
            seen = await latest.settled(pace.quiet_s, pace.again_s if again else None)
            if seen is None:
                continue
            change = await _handled(source.name, server, seen, pace.drain_s)
            if change != told:
                tell(change)
            told = change


async def _handled(name: str, server: LiveServer, seen: Seen, drain_s: float) -> Change:
    if seen.text is None:
        return Change(name, "", "unreadable", error=seen.problem)
    which = digest(seen.text)
    try:
        applied = await apply(server, parsed(seen.text, name), drain_s)
    except StudyError as error:
        return Change(name, which, "invalid", error=str(error))
    except (ConfigRejected, EngineFault) as error:
        return Change(name, which, "unreachable", error=str(error))
    return Change(name, which, applied.result, applied, applied.error)
