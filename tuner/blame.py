"""Which knob explains that some trials went badly: one split of one knob, tested and counted.

A knob's values are split in two in every way that reads as a rule: one option against the others, a
number's lower against its upper values. Each split is tested, and since many are, a split counts
only where its p value stands the number of tests (Bonferroni). No split is better than a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tuner.config import Json, canonical

#: Largest p value, after the correction, that counts as an explanation.
ALPHA = 0.01
#: Trials that a side of a split must have at least.
FEWEST = 3
#: Explanations that are looked for one after another, each among what is left.
MOST = 3
Points = Sequence[Mapping[str, Json]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Split:
    """The trials inside a rule on one knob: ``name == value``, ``<= value`` or ``> value``."""

    name: str
    relation: str
    value: Json

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else canonical(self.value)
        return f"{self.name} {self.relation} {text}"

    @property
    def other(self) -> Split:
        """The other side."""
        turned = {"<=": ">", ">": "<=", "=": "other than", "other than": "="}
        return Split(self.name, turned[self.relation], self.value)


@dataclass(frozen=True, slots=True)
class Blame:
    """A split that explains what went badly: inside of it more went so than outside."""

    split: Split
    #: Of ``inside`` trials in the split ``bad_inside`` went badly; ``outside`` it ``bad_outside``.
    #: For a number per trial, the medians on both sides stand in ``levels`` instead.
    inside: int
    outside: int
    bad_inside: int
    bad_outside: int
    p_value: float
    levels: tuple[float, float] | None = None


def share_explained(points: Points, bad: Sequence[bool]) -> list[Blame]:
    """Return the splits in which more trials went badly, the surest first; often none.

    After the first, what is left is what lies outside of those found so far.
    """
    found: list[Blame] = []
    left = list(range(len(points)))
    while len(found) < MOST:
        some = [points[i] for i in left]
        went = np.array([bad[i] for i in left], dtype=bool)
        best = _surest(some, lambda mask, went=went: _fisher(went, mask))  # type: ignore[misc]
        if best is None:
            break
        split, mask, p_value = best
        outside = ~mask
        found.append(
            Blame(
                split,
                int(mask.sum()),
                int(outside.sum()),
                int(went[mask].sum()),
                int(went[outside].sum()),
                p_value,
            )
        )
        left = [i for i, inside in zip(left, mask, strict=True) if not inside]
    return found


def level_explained(points: Points, levels: Sequence[float]) -> Blame | None:
    """Return the split inside of which a number is higher, None where no knob explains it."""
    values = np.asarray(levels, dtype=float)
    best = _surest(points, lambda mask: _mann_whitney(values, mask))
    if best is None:
        return None
    split, mask, p_value = best
    medians = (float(np.median(values[mask])), float(np.median(values[~mask])))
    return Blame(split, int(mask.sum()), int((~mask).sum()), 0, 0, p_value, medians)


def _surest(points: Points, test: Callable[[Mask], float]) -> tuple[Split, Mask, float] | None:
    """Return the split with the smallest p value, corrected for the number of splits."""
    tried = [(split, mask) for split, mask in _splits(points) if _large_enough(mask)]
    if not tried:
        return None
    p_values = [test(mask) for _, mask in tried]
    at = int(np.argmin(p_values))
    corrected = min(p_values[at] * len(tried), 1.0)
    return (*tried[at], corrected) if corrected <= ALPHA else None


def _large_enough(mask: Mask) -> bool:
    return bool(FEWEST <= mask.sum() <= len(mask) - FEWEST)


def _splits(points: Points) -> Iterator[tuple[Split, Mask]]:
    """Yield every split and which trials lie in it; a trial without the knob lies outside."""
    for name in sorted({name for point in points for name in point}):
        values = [point.get(name) for point in points]
        given = np.array([name in point for point in points])
        kinds = [value for value, there in zip(values, given, strict=True) if there]
        if all(_is_number(value) for value in kinds):
            yield from _thresholds(name, values, given)
        else:
            yield from _options(name, values, given)


def _options(name: str, values: list[Json], given: Mask) -> Iterator[tuple[Split, Mask]]:
    """Yield "is this option" first: of two splits that say the same, that is the plainer."""
    options = {canonical(v): v for v, there in zip(values, given, strict=True) if there}
    same = {
        text: np.array([canonical(value) == text for value in values]) & given
        for text in sorted(options)
    }
    for text, mask in same.items():
        yield Split(name, "=", options[text]), mask
    for text, mask in same.items():
        yield Split(name, "other than", options[text]), ~mask & given


def _thresholds(name: str, values: list[Json], given: Mask) -> Iterator[tuple[Split, Mask]]:
    numbers = np.array([float(v) if v is not None else math.nan for v in values])
    for value in sorted({v for v in values if v is not None})[:-1]:
        low = numbers <= float(value)  # False for what is not given
        yield Split(name, "<=", value), low
        yield Split(name, ">", value), ~low & given


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fisher(bad: Mask, mask: Mask) -> float:
    """Return Fisher's exact p value, one-sided: more went badly inside."""
    inside, outside = bad[mask], bad[~mask]
    table = [[inside.sum(), (~inside).sum()], [outside.sum(), (~outside).sum()]]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)


def _mann_whitney(values: NDArray[np.float64], mask: Mask) -> float:
    """Return the p value of Mann and Whitney, one-sided: higher inside."""
    return float(stats.mannwhitneyu(values[mask], values[~mask], alternative="greater").pvalue)
