"""What failed for one reason blocks its own region: the values that all of its failures share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from tuner.config import Json
from tuner.knobs import ChoiceDomain, Point, SearchSpace
from tuner.records import Dominated, Infeasible, Measured, TrialRecord
from tuner.strategies.encoding import option_key

#: Failures for one reason before it blocks anything: the first does not say what is at fault.
ENOUGH = 2
#: At most this many values together are taken to be at fault.
TOGETHER = 2

#: Knob, and what tells its value from all others.
Item = tuple[str, tuple[type, Json]]


class Blocks:
    """Regions not to be tried again while there is anything else. ``learn`` takes all trials."""

    def __init__(self, space: SearchSpace) -> None:
        self._choices = [k.name for k in space.knobs if isinstance(k.domain, ChoiceDomain)]
        self._regions: list[frozenset[Item]] = []

    def learn(self, records: Iterable[TrialRecord]) -> None:
        """Look anew at what failed and what ran."""
        ran: list[frozenset[Item]] = []
        failed: dict[str, list[frozenset[Item]]] = {}
        for record in records:
            if isinstance(record.outcome, Infeasible):
                failed.setdefault(_kind(record.outcome), []).append(self._items(record.point))
            elif isinstance(record.outcome, Measured | Dominated):
                ran.append(self._items(record.point))
        regions = (_region(f, ran) for f in failed.values() if len(f) >= ENOUGH)
        self._regions = [region for region in regions if region]

    def __contains__(self, point: Point) -> bool:
        items = self._items(point) if self._regions else frozenset()
        return any(region <= items for region in self._regions)

    def _items(self, point: Mapping[str, Json]) -> frozenset[Item]:
        return frozenset((n, option_key(point[n])) for n in self._choices if n in point)


def _kind(outcome: Infeasible) -> str:
    """Return the reason with its words, numbers aside."""
    return f"{outcome.reason}: {re.sub(r'[0-9.]+', '#', outcome.detail)}"


def _region(failed: Sequence[frozenset[Item]], ran: Sequence[frozenset[Item]]) -> frozenset[Item]:
    """Return the values to block together; none where nothing explains the failures.

    One value is at fault before two together are; what ran is proof of innocence. While several
    explanations are left, only points to which all of them apply are blocked.
    """
    common = sorted(frozenset.intersection(*failed), key=str)
    for size in range(1, TOGETHER + 1):
        parts = map(frozenset, itertools.combinations(common, size))
        left = [part for part in parts if not any(part <= items for items in ran)]
        if left:
            return frozenset().union(*left)
    return frozenset()
