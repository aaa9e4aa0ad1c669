"""What a search will cost: its starts and seconds, from the prices of the trials so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.records import TrialRecord
from tuner.strategies import Search
from tuner.strategies.prices import COLD, LIVE, WARM, priced
from tuner.strategies.ride_along import RIDES

#: Share of starts where the strategy does not say, until ``SHOWN`` of its own trials show it.
STARTS_SHARE = 0.5
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Expected:
    """Trials by how their engine gets ready, and all their seconds, those done included."""

    trials: int
    starts: int
    seconds: float


def expected(
    search: Search, strategy: str, known: int, records: Sequence[TrialRecord]
) -> Expected | None:
    """Return what ``search.trials`` trials cost on one slot; None before the first is measured.

    ``known`` configurations are measured first, each from a start of its own.
    """
    ran = [record for record in records if record.cost.total_s > 0]
    if search.trials is None or not any(record.scores is not None for record in ran):
        return None
    prices = priced(ran, search.hot, search.warm)
    left = max(search.trials - len(ran), 0)
    first = min(max(known - len(ran), 0), left)
    starts = first + _starts(search, strategy, left - first, ran[known:])
    done = {prices.keys(record.config).compile for record in ran if record.cost.start_s > 0}
    cold = min(first + _new_keys(search, starts - first, len(done) + first), starts)
    begun = sum(record.cost.start_s > 0 for record in ran)
    seconds = sum(record.cost.total_s for record in ran) + left * prices.replay_s
    seconds += cold * prices.ready_s(COLD) + (starts - cold) * prices.ready_s(WARM)
    seconds += (left - starts) * prices.ready_s(LIVE)
    return Expected(len(ran) + left, begun + starts, seconds)


def _starts(search: Search, strategy: str, left: int, own: Sequence[TrialRecord]) -> int:
    """Return the starts among ``left`` trials of the strategy's own choice; ``own``: those done."""
    if search.all_hot:
        return 0
    if not search.hot & {*search.space.names} or strategy == "plain":
        return left
    if len(own) >= SHOWN:
        return round(left * sum(record.cost.start_s > 0 for record in own) / len(own))
    if strategy == "ride-along":  # it rides on the last known-good configuration first
        return max(0, math.ceil((left - max(RIDES - len(own), 0)) / (RIDES + 1)))
    return round(left * STARTS_SHARE)


def _new_keys(search: Search, starts: int, seen: int) -> int:
    """Return how many of ``starts`` evenly drawn ones need a compilation that was not made yet."""
    sizes = [
        knob.domain.size
        for knob in search.space.knobs
        if knob.name not in search.hot and knob.name not in search.warm
    ]
    if None in sizes:
        return starts
    keys = math.prod(size for size in sizes if size is not None)
    left = max(keys - seen, 0)
    return round(left * (1 - (1 - 1 / keys) ** starts))
