"""Whether a percentile over a replay keeps its bound: known before its end, or read off the whole.

The percentile is the one that is reported: interpolated linearly, over the requests answered in
full; of gaps between tokens, over those of all these requests together. Of n values it is at least
the one at rank floor((n - 1) q) and at most the one at rank ceil((n - 1) q), so that counts of
values above and within the bound decide it early, save where the bound lies between those two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner import metrics
from tuner.claims import QUANTILES, Look
from tuner.job import Slo
from tuner.records import RequestRecord
from tuner.trace import Request

Floats = NDArray[np.float64]


#: How many values a request of so many output tokens will give.
_COUNTS: Mapping[str, Callable[[int], int]] = {
    "ttft": lambda tokens: 1,
    "e2e": lambda tokens: 1,
    "tpot": lambda tokens: int(tokens > 1),
    "itl": lambda tokens: max(tokens - 1, 0),
}


@dataclass(frozen=True, slots=True)
class Side:
    """On which side of its bound a percentile was, and by how much.

    ``off``: values above the bound beyond what is allowed, in standard deviations of that count
    between requests; negative where there were fewer.
    """

    holds: bool
    off: float

    @property
    def clear(self) -> bool:
        """Whether another replay would hardly say otherwise."""
        return self.off <= -1 if self.holds else self.off > 1


@dataclass(slots=True)
class Watched:
    """One bound on a percentile during a replay. Seconds; only scored requests count."""

    latency: str
    quantile: float
    bound_s: float
    #: Values that the requests which have not ended will give if they succeed.
    left: int
    within: int = 0
    above: int = 0
    #: Of each request that ended well.
    values: list[Floats] = field(default_factory=list)
    #: What was proven; None while nothing is.
    proven: bool | None = None

    def take(self, record: RequestRecord) -> None:
        """Take note of a scored request that has ended."""
        self.left -= _COUNTS[self.latency](record.output_tokens)
        if record.ok:
            values = metrics.VALUES[self.latency](record)
            above = int(np.count_nonzero(values > self.bound_s))
            self.above += above
            self.within += len(values) - above
            self.values.append(values)

    def fails(self, look: Look, allowed: int) -> bool:
        """Whether the bound is certain to be missed, or more than ``allowed`` requests to fail.

        Open requests that are late already count (end-to-end latency only), but for those that
        may fail instead: then they leave the percentile. Fewer values need fewer above.
        """
        late = 0
        if self.latency == "e2e":
            late = sum(look.now_s - record.scheduled_s > self.bound_s for record in look.open)
        lost = min(late, allowed)
        most = self._most - lost
        if 0 < most <= self.above + late - lost + math.floor((most - 1) * self.quantile):
            self.proven = False
        return self.proven is False

    def holds(self) -> bool:
        """Whether the bound is certain to be kept, whatever comes of the requests still to end."""
        most = self._most
        if most <= 0 or self.within > math.ceil((most - 1) * self.quantile):
            self.proven = True
        return self.proven is True

    @property
    def _most(self) -> int:
        return self.within + self.above + self.left

    def side(self) -> Side:
        """Return what was proven, else what the values show that there are."""
        return Side(self._kept() if self.proven is None else self.proven, self._off())

    def _kept(self) -> bool:
        values = np.concatenate(self.values or [np.array([])])
        return not len(values) or bool(np.percentile(values, 100 * self.quantile) <= self.bound_s)

    def _off(self) -> float:
        """Gaps of one request are no independent draws: the spread is the one between requests."""
        sizes = np.array([len(values) for values in self.values], np.float64)
        above = np.array([np.count_nonzero(v > self.bound_s) for v in self.values], np.float64)
        excess = above - (1 - self.quantile) * sizes
        spread = math.sqrt(float(excess @ excess))
        return float(excess.sum()) / spread if spread else 0.0


def watched(requests: Sequence[Request], slo: Slo) -> list[Watched]:
    """Return the SLO's bounds on percentiles, to be watched over a replay of scored requests."""
    return [
        _watched(latency, name, bound_s, requests)
        for name, bounds in slo.percentiles.items()
        for latency, bound_s in bounds.items()
    ]


@dataclass(slots=True)
class Slower:
    """The claim (``claims.Claim``) that a latency's percentile will exceed a bound.

    ``spare`` is how many failures the trial may have.
    """

    metric: str
    watched: Watched
    spare: int

    def take(self, record: RequestRecord) -> None:
        """See ``Claim``."""
        self.watched.take(record)

    def holds(self, look: Look) -> bool:
        """See ``Claim``."""
        return self.watched.fails(look, max(self.spare - look.failed, 0))

    def at_best(self, look: Look) -> float:
        """See ``Claim``."""
        return math.nextafter(self.watched.bound_s, math.inf)


def slower(metric: str, bound_s: float, spare: int, requests: Sequence[Request]) -> Slower | None:
    """Return the claim about a metric of a replay of scored requests, None for no percentile."""
    _, latency, statistic = (*metric.split("."), "", "")[:3]
    if latency not in metrics.VALUES or statistic not in QUANTILES:
        return None
    return Slower(metric, _watched(latency, statistic, bound_s, requests), spare)


def _watched(latency: str, name: str, bound_s: float, requests: Sequence[Request]) -> Watched:
    count = _COUNTS[latency]
    left = sum(count(request.output_tokens) for request in requests)
    return Watched(latency, QUANTILES[name], bound_s, left)
