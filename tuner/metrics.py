"""Metrics of one replay, as a table: name -> function. All values in base units (seconds, shares).

Definitions (design, section 7): TTFT and E2E count from the *scheduled* arrival, so that a client
that sends late cannot flatter the engine. TPOT is (E2E - TTFT) / (output tokens - 1) and does not
exist for one token. ITL is the gap between consecutive tokens, pooled over requests. Percentiles
interpolate linearly. A value without samples is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.job import REPLAYS, Slo
from tuner.records import RequestRecord

Floats = NDArray[np.float64]

#: Fewest samples for which a P99 is more than almost the maximum.
ENOUGH_FOR_P99 = 100

#: A shorter span is no duration: the clocks count nanoseconds.
CLOCK_RESOLUTION_S = 1e-9

STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda x: float(np.mean(x)),
    "p50": lambda x: float(np.percentile(x, 50)),
    "p90": lambda x: float(np.percentile(x, 90)),
    "p99": lambda x: float(np.percentile(x, 99)),
    "max": lambda x: float(np.max(x)),
}


def ttft(record: RequestRecord) -> float:
    """Return seconds from the scheduled arrival to the first token."""
    return record.token_s[0] - record.scheduled_s


def e2e(record: RequestRecord) -> float:
    """Return seconds from the scheduled arrival to the last token."""
    return record.token_s[-1] - record.scheduled_s


def tpot(record: RequestRecord) -> float | None:
    """Return seconds per output token after the first; None for one token."""
    if record.answered_tokens < 2:
        return None
    return (record.token_s[-1] - record.token_s[0]) / (record.answered_tokens - 1)


def gaps(record: RequestRecord) -> Floats:
    """Return the seconds between consecutive tokens, shape (tokens - 1,)."""
    return np.diff(np.asarray(record.token_s, np.float64))


def meets(record: RequestRecord, slo: Slo) -> bool:
    """Whether the request succeeded and met every bound of its class; a failed one never does."""
    if not record.ok:
        return False
    bounds = slo.of(record.slo_class)
    return all((VALUES[name](record) <= bound).all() for name, bound in bounds.items())


def _one(value: float | None) -> Floats:
    return np.array([] if value is None else [value], np.float64)


#: Latencies of a request that was answered in full, what an SLO can bound: name -> its values.
VALUES: dict[str, Callable[[RequestRecord], Floats]] = {
    "ttft": lambda record: _one(ttft(record)),
    "e2e": lambda record: _one(e2e(record)),
    "tpot": lambda record: _one(tpot(record)),
    "itl": gaps,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The scored records of one replay, and the engine's counters during it."""

    records: Sequence[RequestRecord]
    slo: Slo

    @property
    def good(self) -> list[RequestRecord]:
        """Records answered in full."""
        return [record for record in self.records if record.ok]

    @property
    def span_s(self) -> float:
        """Seconds from the first scheduled arrival to the last token of any success; 0 if none."""
        ends = [record.token_s[-1] for record in self.good]
        starts = [record.scheduled_s for record in self.records]
        return max(ends) - min(starts) if ends else 0.0

    def per_second(self, amount: float) -> float | None:
        """Return ``amount`` per second; none for a span below the clock's resolution."""
        return amount / self.span_s if self.span_s >= CLOCK_RESOLUTION_S else None

    def share(self, count: float) -> float | None:
        """Return ``count`` as a share of all scored requests."""
        return count / len(self.records) if self.records else None


def _pooled(values: Callable[[RequestRecord], Floats]) -> Callable[[Sample], Floats]:
    return lambda sample: np.concatenate([_one(None), *map(values, sample.good)])


#: Distributions: name -> values of a sample; each gets every statistic.
DISTRIBUTIONS: dict[str, Callable[[Sample], Floats]] = {
    **{name: _pooled(values) for name, values in VALUES.items()},
    "lateness": lambda s: np.array(
        [r.sent_s - r.scheduled_s for r in s.records if r.sent_s is not None]
    ),
}

SCALARS: dict[str, Callable[[Sample], float | None]] = {
    "output_tokens_per_s": lambda s: s.per_second(sum(r.answered_tokens for r in s.good)),
    "total_tokens_per_s": lambda s: s.per_second(
        sum(r.answered_tokens + r.prompt_tokens for r in s.good)
    ),
    "requests_per_s": lambda s: s.per_second(len(s.good)),
    "goodput": lambda s: s.per_second(sum(meets(r, s.slo) for r in s.records)),
    "attainment": lambda s: s.share(sum(meets(r, s.slo) for r in s.records)),
    "error_share": lambda s: s.share(sum(not r.ok for r in s.records)),
    "short_share": lambda s: s.share(sum(not r.error and not r.ok for r in s.records)),
}

#: What an engine may count during a replay (``Engine.counters``), passed on under the measure.
COUNTERS = (
    "preemptions",
    "kv_usage_max_share",
    "prefix_hit_share",
    "running_max",
    "waiting_max",
    "generated_tokens",
    # Of the engine's GPUs, where it has any: see ``engines.metered``.
    "gpu_memory_max_bytes",
    "gpu_utilization_share",
    "energy_j",
    "tokens_per_joule",
)
#: What a study that gives a price gets besides: see ``tuner.price``.
COST = "saturated.cost_per_million_tokens"

_PER_MEASURE = (
    *SCALARS,
    *COUNTERS,
    *(f"{name}.{statistic}" for name in DISTRIBUTIONS for statistic in STATISTICS),
)
#: What the search for the capacity gives: see ``tuner.capacity``.
CAPACITY = ("requests_per_s", "rate_scale", "attainment", "probes")
#: Every metric name that a measurement can hold.
NAMES = (
    *(f"{measure}.{name}" for measure in REPLAYS for name in _PER_MEASURE),
    COST,
    *(f"capacity.{name}" for name in CAPACITY),
)


def measure(
    name: str, records: Sequence[RequestRecord], slo: Slo
) -> tuple[dict[str, float], dict[str, int], list[str]]:
    """Return values and sample counts of one replay under measure ``name``, and warnings.

    Only scored records count. Values that do not exist are absent.
    """
    sample = Sample([record for record in records if record.scored], slo)
    values: dict[str, float] = {}
    counts = {f"{name}.requests": len(sample.records), f"{name}.errors": 0}
    counts[f"{name}.errors"] = sum(not record.ok for record in sample.records)
    for metric, scalar in SCALARS.items():
        value = scalar(sample)
        if value is not None:
            values[f"{name}.{metric}"] = float(value)
    for metric, distribution in DISTRIBUTIONS.items():
        data = distribution(sample)
        counts[f"{name}.{metric}"] = len(data)
        if len(data):
            for statistic, function in STATISTICS.items():
                values[f"{name}.{metric}.{statistic}"] = function(data)
    return values, counts, _warnings(name, counts)


def _warnings(name: str, counts: dict[str, int]) -> list[str]:
    n = counts[f"{name}.requests"]
    if n >= ENOUGH_FOR_P99:
        return []
    return [f"{name}: P99 from {n} requests is nearly the maximum; use {ENOUGH_FOR_P99} or more"]
