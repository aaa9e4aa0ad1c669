"""What a search found over its seconds, and the tables that compare several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner import pareto

#: GPU seconds of one search, and those at which the volumes are told.
BUDGET_S = 3600.0
MARKS_S = (300, 600, 1200, 2400, 3600)
#: The row that no other one should ever be behind.
RANDOM = "random, a restart per trial"

#: Hypervolume of scores, relative to the default's.
Volume = Callable[[Sequence[Sequence[float]], Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Step:
    """GPU seconds spent after a trial, and its true scores; none where it cannot run."""

    spent_s: float
    scores: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Curve:
    """The true hypervolume over GPU seconds of one search, as a step function."""

    seconds: Sequence[float]
    volume: Sequence[float]
    #: True scores of the trials that no other one dominates.
    front: Sequence[Sequence[float]]

    def at(self, spent: float) -> float:
        """Return the volume after so many GPU seconds."""
        n = int(np.searchsorted(self.seconds, spent, side="right"))
        return self.volume[n - 1] if n else 0.0

    def reaches(self, volume: float) -> float:
        """Return the GPU seconds until a volume is reached, inf where it is not."""
        hit = [s for s, v in zip(self.seconds, self.volume, strict=True) if v >= volume]
        return hit[0] if hit else float("inf")


def curve(run: Iterator[Step], volume: Volume, default: Sequence[float]) -> Curve:
    """Follow a search."""
    front: list[tuple[float, float]] = []
    seconds, volumes = [], []
    for step in run:
        if step.scores is not None:
            front.append(step.scores)
            keep = pareto.non_dominated(pareto.oriented(front, [True, False]))
            front = [scores for scores, stays in zip(front, keep, strict=True) if stays]
        seconds.append(round(step.spent_s, 2))
        volumes.append(volume(front, default))
    return Curve(seconds, volumes, front)


def table(curves: Mapping[str, Sequence[Curve]], best: float) -> str:
    """Return the comparison as a Markdown table; volumes are shares of the best known one."""
    marks = [f"at {mark} s" for mark in MARKS_S]
    head = ["strategy", "trials", "s to 90 %", "s to 95 %", *marks]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in curves.items():
        cells = [name, f"{np.median([len(run.seconds) for run in runs]):.0f}"]
        cells += [_quartiles([run.reaches(share * best) for run in runs]) for share in (0.9, 0.95)]
        for mark in MARKS_S:
            cells.append(f"{np.median([run.at(mark) / best for run in runs]):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _quartiles(values: Sequence[float]) -> str:
    """Return the median with the quartiles; values that are not reached are the largest."""
    picked = np.percentile(np.minimum(values, 1e9), (50, 25, 75), method="nearest")
    middle, low, high = (f"{v:.0f}" if v < 1e9 else "-" for v in picked)
    return f"{middle} ({low} to {high})" if middle != "-" else f"- ({low} to -)"


def against_random(curves: Mapping[str, Sequence[Curve]], best: float) -> str:
    """Return, per row, the least lead of its mean volume over random's at equal GPU seconds.

    From the moment on at which every search has its first result.
    """
    first = max(run.seconds[0] for runs in curves.values() for run in runs)
    times = np.arange(first, BUDGET_S, 10.0)
    means = {
        name: np.mean([[run.at(float(t)) / best for t in times] for run in runs], axis=0)
        for name, runs in curves.items()
    }
    base = means.get(RANDOM)
    if base is None:
        return ""
    leads = [
        f"{name} {(mean - base).min():+.3f} at {times[(mean - base).argmin()]:.0f} s"
        for name, mean in means.items()
        if name != RANDOM
    ]
    return "Least lead of the mean volume over random's at any time: " + "; ".join(leads) + "."
