"""The capacity: the largest time scale of a trace at which an SLO still holds.

Bracketing by steps that grow, then bisection. That a lower scale is easier is not taken for
granted: a replay with a close verdict is repeated, and the answer must have held twice.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tuner.stopping_percentiles import Side

#: The answer is at most this factor below the smallest scale that was seen to fail.
RATIO = 1.03
#: The smallest step. Halved often enough, a step of 2, 4, 8, ... of them ends just within RATIO.
FINE = 1.0299
#: The second scale is this factor from the first where nothing is known, ...
STEP = FINE**8
#: ... and each step after it the square of the one before, up to this.
WIDEST = FINE**32
#: Most replays of one search.
MOST = 30


@dataclass(frozen=True, slots=True)
class Probe:
    """What one replay said. ``met`` and ``missed`` may leave out requests after an early end."""

    scale: float
    #: Scored requests of the replay, and how many of them may miss.
    requests: int
    allowed: int
    met: int
    missed: int
    #: Of the percentiles that the SLO bounds.
    percentiles: tuple[Side, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the wanted share of requests met every bound, and every percentile its own."""
        return self._enough and all(side.holds for side in self.percentiles)

    @property
    def _enough(self) -> bool:
        return self.met >= self.requests - self.allowed

    @property
    def attainment(self) -> float:
        """Share that met every bound; after an early end at least, where it holds."""
        return self.met / self.requests

    @property
    def clear(self) -> bool:
        """Whether another replay would hardly say otherwise.

        The misses among the requests that ended, carried over to all of them, are off what is
        allowed by more than chance (one standard deviation of a count). So must each percentile
        be where all hold, and one of what does not hold where it fails.
        """
        expected = self.missed / max(self.met + self.missed, 1) * self.requests
        if self.holds:
            few = expected <= self.allowed - math.sqrt(self.allowed)
            return few and all(side.clear for side in self.percentiles)
        many = expected > self.allowed + math.sqrt(self.allowed + 1)
        return many or any(side.clear for side in self.percentiles if not side.holds)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer of a search. ``best`` is None where even the smallest scale failed."""

    best: Probe | None
    probes: int
    #: The smallest scale that failed; None where the largest allowed one held.
    failed_at: float | None
    #: Whether ``best`` held twice, and within RATIO below ``failed_at``.
    settled: bool = True


@dataclass(slots=True)
class Search:
    """One search between ``lowest`` and ``highest``. ``run`` may be called once."""

    probe: Callable[[float], Awaitable[Probe]]
    lowest: float
    highest: float
    most: int = MOST
    #: Factor of the next step while one end of the bracket is open.
    step: float = STEP
    _done: int = 0
    #: Replays that held and failed, by scale.
    _votes: dict[float, list[bool]] = field(default_factory=dict)
    _last: dict[float, Probe] = field(default_factory=dict)

    async def run(self, start: float) -> Capacity:
        """Search from ``start`` on."""
        scale: float | None = min(max(start, self.lowest), self.highest)
        while scale is not None and self._done < self.most:
            await self._judge(scale)
            scale = self._next()
        low, high = self._low(), self._high()
        best = None if low is None else self._last[low]
        return Capacity(best, self._done, high, settled=scale is None)

    async def _judge(self, scale: float) -> None:
        """Replay at a scale, once more where that was close, and again where the two disagree."""
        found = await self._replay(scale)
        if not found.clear:
            await self._replay(scale)
        votes = self._votes[scale]
        if votes.count(True) == votes.count(False):
            await self._replay(scale)

    async def _replay(self, scale: float) -> Probe:
        found = await self.probe(scale)
        self._done += 1
        self._votes.setdefault(scale, []).append(found.holds)
        if found.holds:
            self._last[scale] = found
        return found

    def _next(self) -> float | None:
        """Return the scale to try next, None when the answer stands."""
        low, high = self._low(), self._high()
        if low is None:
            if high is None or high <= self.lowest:
                return None
            return max(high / self._widened(), self.lowest)
        if high is None and low < self.highest:
            return min(low * self._widened(), self.highest)
        if high is not None and high / low > RATIO:
            return math.sqrt(low * high)
        return low if len(self._votes[low]) < 2 else None

    def _widened(self) -> float:
        """Return the present step, and take its square next."""
        step, self.step = self.step, min(self.step**2, WIDEST)
        return step

    def _high(self) -> float | None:
        """Return the smallest scale that failed in most of its replays."""
        return min((s for s, votes in self._votes.items() if not _held(votes)), default=None)

    def _low(self) -> float | None:
        """Return the largest scale that held, below every one that failed."""
        high = self._high()
        below = (s for s, v in self._votes.items() if _held(v) and (high is None or s < high))
        return max(below, default=None)


def _held(votes: list[bool]) -> bool:
    return votes.count(True) > votes.count(False)
