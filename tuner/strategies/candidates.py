"""Points worth asking the model about: even draws, neighbours of good points, hot variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from tuner.config import Json, canonical
from tuner.knobs import ChoiceDomain, Domain, Point, SearchSpace
from tuner.strategies.encoding import option_key

#: Knobs that a neighbour of a good point changes: 1 to this many.
CHANGES = 3
#: Chance that a numeric knob of a neighbour moves a little instead of anywhere, and how little.
NEAR, NEAR_STD = 0.6, 0.15


class Candidates:
    """Draws points that keep the rules and are not ``seen``."""

    def __init__(
        self,
        space: SearchSpace,
        allowed: Callable[[Point], bool],
        random: np.random.Generator,
    ) -> None:
        self._space = space
        self._allowed = allowed
        self._random = random

    def anywhere(self, n: int, seen: Collection[str]) -> list[Point]:
        """Return up to ``n`` points drawn evenly over every knob."""
        names = self._space.names
        return self._kept((self._redrawn({}, names) for _ in range(n)), seen)

    def near(
        self, good: Sequence[Point], n: int, seen: Collection[str], knobs: Collection[str]
    ) -> list[Point]:
        """Return up to ``n`` points that differ from one of ``good`` in a few of ``knobs``."""
        names = [name for name in self._space.names if name in knobs]
        if not good or not names:
            return []
        return self._kept((self._neighbour(good, names) for _ in range(n)), seen)

    def variants(
        self, origin: Point, n: int, seen: Collection[str], hot: Collection[str]
    ) -> list[Point]:
        """Return up to ``n`` points that differ from ``origin`` in hot knobs, drawn evenly."""
        names = [name for name in self._space.names if name in hot]
        if not names:
            return []
        return self._kept((self._redrawn(origin, names) for _ in range(n)), seen)

    def grafted(
        self, origin: Point, good: Sequence[Point], seen: Collection[str], hot: Collection[str]
    ) -> list[Point]:
        """Return ``origin`` with the hot values of each of ``good``."""
        changed = [{**origin, **{k: v for k, v in g.items() if k in hot}} for g in good]
        return self._kept(changed, seen)

    def _kept(self, points: object, seen: Collection[str]) -> list[Point]:
        kept: dict[str, Point] = {}
        for raw in points:  # type: ignore[attr-defined]
            point = self._space.normalised(raw)
            key = canonical(point)
            if key not in seen and key not in kept and self._allowed(point):
                kept[key] = point
        return list(kept.values())

    def _redrawn(self, origin: Point, names: Sequence[str]) -> dict[str, Json]:
        drawn = {n: draw(self._space[n].domain, self._random) for n in names}
        return self._filled({**origin, **drawn}, names)

    def _neighbour(self, good: Sequence[Point], names: Sequence[str]) -> dict[str, Json]:
        origin = good[int(self._random.integers(len(good)))]
        most = min(CHANGES, len(names))
        picked = self._random.choice(len(names), 1 + int(self._random.integers(most)), False)
        changed = dict(origin)
        for n in picked:
            name = names[n]
            changed[name] = self._moved(self._space[name].domain, origin.get(name))
        return self._filled(changed, names)

    def _filled(self, point: dict[str, Json], names: Sequence[str]) -> dict[str, Json]:
        """Give a value to those of ``names`` that lack one, and to what their change made active.

        Other knobs may be missing for good: nobody knows what a known-good configuration has there.
        """
        for knob in self._space.knobs:
            concerned = knob.name in names or any(name in names for name in knob.when)
            if concerned and knob.name not in point and knob.active(point):
                point[knob.name] = draw(knob.domain, self._random)
        return point

    def _moved(self, domain: Domain, value: Json) -> Json:
        step = float(self._random.normal(0.0, NEAR_STD))
        if value is None or self._random.random() > NEAR:
            return draw(domain, self._random)
        if isinstance(domain, ChoiceDomain):
            at = [option_key(o) for o in domain.options].index(option_key(value))
            other = at + (1 if step > 0 else -1)
            return domain.options[min(max(other, 0), len(domain.options) - 1)]
        return _at(domain, min(max(_share(domain, value) + step, 0.0), 1.0))


def draw(domain: Domain, random: np.random.Generator) -> Json:
    """Return a value drawn evenly from a domain (in the logarithm where it says so)."""
    if isinstance(domain, ChoiceDomain):
        return domain.options[int(random.integers(len(domain.options)))]
    return _at(domain, float(random.random()))


def _share(domain: Domain, value: float) -> float:
    """Return where in 0..1 of its range a value lies."""
    assert not isinstance(domain, ChoiceDomain)
    if domain.low == domain.high:
        return 0.0
    if domain.log:
        return math.log(value / domain.low) / math.log(domain.high / domain.low)
    return (value - domain.low) / (domain.high - domain.low)


def _at(domain: Domain, share: float) -> Json:
    """Return the value of a range at ``share``, on its grid."""
    assert not isinstance(domain, ChoiceDomain)
    low, high = domain.low, domain.high
    raw = low * (high / low) ** share if domain.log else low + (high - low) * share
    if domain.step is None:
        return min(max(raw, low), high)
    steps = round((raw - low) / domain.step)
    most = int((high - low) / domain.step + 1e-9)
    value = low + min(max(steps, 0), most) * domain.step
    return domain.rounded(value) if not isinstance(domain.low, int) else int(value)  # type: ignore[union-attr]
