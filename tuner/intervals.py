"""How sure a repeated measurement is: intervals, ratios with verdicts, and who is on the front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tuner import pareto

Verdict = Literal["better", "worse", "not shown"]
LEVEL = 0.95
#: Resamples of a bootstrap: the probability's own error is then below 0.01.
RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its confidence interval. n: how many repeats it comes from."""

    value: float
    low: float
    high: float
    n: int

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share a value."""
        return self.low <= other.high and other.low <= self.high


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return the mean of independent repeats with Student's t interval; None below two repeats."""
    n = len(values)
    if n < 2:
        return None
    mean = float(np.mean(values))
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def ratio_interval(
    ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL
) -> Interval | None:
    """Return ours / theirs over repeats that were interleaved, so that pair i shares its moment.

    Student's t on the differences of logarithms, so the interval is symmetric as a factor. None
    below two pairs, or where a value is not positive.
    """
    n = min(len(ours), len(theirs))
    if n < 2 or min(*ours[:n], *theirs[:n]) <= 0:
        return None
    logs = mean_interval(list(np.log(ours[:n]) - np.log(theirs[:n])), level)
    if logs is None:
        return None
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), n)


def verdict(ratio: Interval | None, maximize: bool) -> Verdict:
    """Return what a ratio shows: nothing while 1 lies inside its interval."""
    if ratio is None or ratio.low <= 1.0 <= ratio.high:
        return "not shown"
    return "better" if (ratio.value > 1.0) == maximize else "worse"


def repeats_needed(ratio: Interval, difference: float, level: float = LEVEL) -> int | None:
    """Return the repeats that would show a relative ``difference`` (0.05) at the spread seen here.

    Normal approximation with 80 % power; None where no spread was seen.
    """
    half = math.log(ratio.high / ratio.low) / 2
    spread = half * math.sqrt(ratio.n) / float(stats.t.ppf((1 + level) / 2, ratio.n - 1))
    if spread == 0:
        return None
    z = float(stats.norm.ppf((1 + level) / 2) + stats.norm.ppf(0.8))
    return max(2, math.ceil((z * spread / math.log1p(difference)) ** 2))


def surely_dominated(
    intervals: Sequence[Sequence[Interval]], maximize: Sequence[bool]
) -> NDArray[np.bool_]:
    """Return, per member, whether another one is better in every objective beyond both intervals.

    ``intervals`` has shape (members, objectives).
    """
    sign = np.where(np.asarray(maximize, bool), -1.0, 1.0)
    ends = np.array([[(i.low, i.high) for i in row] for row in intervals]) * sign[None, :, None]
    best, worst = ends.min(axis=2), ends.max(axis=2)
    beats = (worst[:, None, :] < best[None, :, :]).all(axis=2)
    return np.asarray(beats.any(axis=0))


def front_probability(
    samples: Sequence[NDArray[np.float64]], maximize: Sequence[bool], seed: int = 0
) -> NDArray[np.float64]:
    """Return each member's probability to be non-dominated, by bootstrap over its repeats.

    ``samples[i]`` has shape (repeats of member i, objectives).
    """
    random = np.random.default_rng(seed)
    hits = np.zeros(len(samples))
    for _ in range(RESAMPLES):
        means = [s[random.integers(len(s), size=len(s))].mean(axis=0) for s in samples]
        losses = pareto.oriented([row.tolist() for row in means], maximize)
        hits += pareto.non_dominated(losses)
    return hits / RESAMPLES
