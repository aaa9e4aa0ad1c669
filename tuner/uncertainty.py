"""How far a metric would have moved with other requests of the same kind: bootstrap intervals.

Resampling requests with replacement from one replay. What is resampled need not be drawn request
by request: the k-th smallest of n draws from n values is the value at rank n * Beta(k, n - k + 1),
so that a percentile of a thousand resamples costs a thousand draws, however long the replay was.
Requests of one replay share its queue: the intervals say nothing of how replays differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner import metrics
from tuner.intervals import LEVEL, mean_interval
from tuner.job import Slo
from tuner.metrics import Sample
from tuner.records import RequestRecord

Floats = NDArray[np.float64]
Range = tuple[float, float]

RESAMPLES = 1000
#: The mean of more values than this is drawn from its normal limit.
MANY = 1000
#: Percentiles that get an interval; of fewer requests than this none does.
_QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ENOUGH = 5
#: Distributions of one value per request.
_PER_REQUEST = ("ttft", "e2e", "tpot")


def within_replay(measure: str, records: Sequence[RequestRecord], slo: Slo) -> dict[str, Range]:
    """Return the intervals of one replay's main metrics: name -> (low, high), in base units.

    Percentiles and means of latencies, and the shares of requests. The same records give the same.
    """
    sample = Sample([record for record in records if record.scored], slo)
    random = np.random.default_rng(len(sample.records))
    found: dict[str, Range] = {}
    for name in _PER_REQUEST:
        values = np.sort(metrics.DISTRIBUTIONS[name](sample))
        if len(values) >= ENOUGH:
            found |= {f"{measure}.{name}.{s}": r for s, r in _latency(values, random).items()}
    gaps = [metrics.gaps(record) for record in sample.good]
    found |= {f"{measure}.itl.{s}": r for s, r in _pooled(gaps, random).items()}
    for name in ("attainment", "error_share"):
        share = metrics.SCALARS[name](sample)
        if share is not None and len(sample.records) >= ENOUGH:
            drawn = random.binomial(len(sample.records), share, RESAMPLES) / len(sample.records)
            found[f"{measure}.{name}"] = _middle(drawn)
    return found


def over_replays(values: Mapping[str, Sequence[float]]) -> dict[str, Range]:
    """Return Student's t intervals of what was measured in several replays."""
    found = {name: mean_interval(repeats) for name, repeats in values.items()}
    return {name: (i.low, i.high) for name, i in found.items() if i is not None}


def _latency(values: Floats, random: np.random.Generator) -> dict[str, Range]:
    """Return the intervals of sorted values, shape (n,)."""
    found = {name: _middle(_quantiles(values, q, random)) for name, q in _QUANTILES.items()}
    return {**found, "mean": _middle(_means(values, random))}


def _quantiles(values: Floats, q: float, random: np.random.Generator) -> Floats:
    """Return a linearly interpolated quantile of each resample, shape (RESAMPLES,)."""
    n = len(values)
    rank = (n - 1) * q
    below, part = math.floor(rank) + 1, rank - math.floor(rank)
    # Ranks from 1: the next one first, then, below it, the largest of ``below`` draws.
    upper = np.ones(RESAMPLES) if below == n else random.beta(below + 1, n - below, RESAMPLES)
    lower = upper * random.random(RESAMPLES) ** (1.0 / below)
    pick = [np.minimum((u * n).astype(np.int64), n - 1) for u in (lower, upper)]
    low = values[pick[0]]
    return np.asarray(low if below == n else low + part * (values[pick[1]] - low), np.float64)


def _means(values: Floats, random: np.random.Generator) -> Floats:
    """Return the mean of each resample, shape (RESAMPLES,); of many values by its normal limit."""
    n = len(values)
    if n > MANY:
        return random.normal(values.mean(), values.std() / math.sqrt(n), RESAMPLES)
    return np.asarray(values[random.integers(n, size=(RESAMPLES, n))].mean(axis=1), np.float64)


def _pooled(gaps: Sequence[Floats], random: np.random.Generator) -> dict[str, Range]:
    """Return intervals of percentiles over all gaps, where requests, not gaps, are resampled.

    By Woodruff's method: the share of gaps up to the percentile is resampled (linearised, as a
    request's number of gaps varies too), and its interval read off the pooled gaps.
    """
    several = [inner for inner in gaps if len(inner)]
    if len(several) < ENOUGH:
        return {}
    pool = np.sort(np.concatenate(several))
    sizes = np.array([len(inner) for inner in several], np.float64)
    found: dict[str, Range] = {}
    for name, q in _QUANTILES.items():
        at = np.quantile(pool, q)
        under = np.array([np.count_nonzero(inner <= at) for inner in several], np.float64)
        off = (under - sizes * under.sum() / sizes.sum()) / sizes.mean()
        ends = np.clip(q + np.array(_middle(_means(off, random))), 0.0, 1.0)
        found[name] = (float(np.quantile(pool, ends[0])), float(np.quantile(pool, ends[1])))
    return found


def _middle(drawn: Floats) -> Range:
    """Return the percentile interval at ``LEVEL``."""
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(low), float(high)
