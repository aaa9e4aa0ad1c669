"""What a replay may prove before its end: that a metric of the whole will miss a bound.

Nothing here is a guess. Claims about percentiles are in ``tuner.stopping_percentiles``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner import metrics
from tuner.job import Slo
from tuner.records import RequestRecord

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class Look:
    """A replay at one moment. Only scored requests count. Seconds on the replay's clock."""

    now_s: float
    #: Of the whole plan.
    requests: int
    good: int
    failed: int
    #: At the engine.
    open: Collection[RequestRecord] = ()


class Claim(Protocol):
    """Something about a whole replay that may be proven before its end."""

    metric: str

    def take(self, record: RequestRecord) -> None:
        """Take note of a scored request that has ended."""

    def holds(self, look: Look) -> bool:
        """Whether it is certain."""

    def at_best(self, look: Look) -> float:
        """Return the best value that the metric can still reach, once ``holds``."""


@dataclass(slots=True)
class Failing:
    """More than a share ``bound`` of the requests will have failed."""

    metric: str
    bound: float

    def take(self, record: RequestRecord) -> None:
        """See ``Claim``: failures are counted in ``Look``."""

    def holds(self, look: Look) -> bool:
        """See ``Claim``."""
        return look.requests > 0 and self.at_best(look) > self.bound

    def at_best(self, look: Look) -> float:
        """See ``Claim``."""
        return look.failed / look.requests


@dataclass(slots=True)
class Missing:
    """Less than a share ``bound`` of the requests will meet every bound of the SLO."""

    metric: str
    bound: float
    slo: Slo
    missed: int = 0

    def take(self, record: RequestRecord) -> None:
        """See ``Claim``."""
        self.missed += not metrics.meets(record, self.slo)

    def holds(self, look: Look) -> bool:
        """See ``Claim``."""
        return look.requests > 0 and self.at_best(look) < self.bound

    def at_best(self, look: Look) -> float:
        """See ``Claim``."""
        late = too_late(look, self.slo)
        return (look.requests - self.missed - late) / look.requests


def too_late(look: Look, slo: Slo) -> int:
    """Return how many open requests have already missed a bound, however they end."""
    return sum(look.now_s - r.scheduled_s > longest_s(r, slo) for r in look.open)


def longest_s(record: RequestRecord, slo: Slo) -> float:
    """Return the longest end-to-end latency with which a request can meet its bounds.

    A first token in time and each later one in time end in time; inf where nothing bounds that.
    """
    bounds, gaps = slo.of(record.slo_class), max(record.output_tokens - 1, 0)
    each = min(bounds.get("tpot", math.inf), bounds.get("itl", math.inf))
    by_tokens = bounds.get("ttft", math.inf) + (each * gaps if gaps else 0.0)
    return min(bounds.get("e2e", math.inf), by_tokens)
