"""Pareto arithmetic on score matrices. Every direction is brought to 'smaller is better' first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def oriented(scores: Sequence[Sequence[float]], maximize: Sequence[bool]) -> Scores:
    """Return scores of shape (n, m) with every maximized column negated.

    Raises ValueError for a value that is not finite: such a trial has no scores.
    """
    matrix = np.asarray(scores, np.float64).reshape(len(scores), len(maximize))
    if not np.isfinite(matrix).all():
        raise ValueError("scores must be finite")
    signs = np.where(np.asarray(maximize, bool), -1.0, 1.0)
    return np.asarray(matrix * signs, np.float64)


def non_dominated(losses: Scores) -> NDArray[np.bool_]:
    """Return, per row, whether no other row is at least as good in all columns and better in one.

    Equal rows do not dominate each other: all of them stay.
    """
    no_worse = (losses[:, None, :] <= losses[None, :, :]).all(axis=2)
    better = (losses[:, None, :] < losses[None, :, :]).any(axis=2)
    return np.asarray(~(no_worse & better).any(axis=0))


def knee(losses: Scores) -> int:
    """Return the row nearest to the ideal point, columns scaled to the rows' range.

    With one row, or where all rows are equal, it is row 0.
    """
    low, high = losses.min(axis=0), losses.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return int(np.argmin((((losses - low) / span) ** 2).sum(axis=1)))


def hypervolume(losses: Scores, reference: Sequence[float]) -> float:
    """Return the volume that rows dominate up to ``reference`` (smaller is better), any m >= 1.

    Rows that are not better than the reference in every column add nothing. Recursive slicing on
    the last column (Fonseca, Paquete, Lopez-Ibanez, CEC 2006, without its speed-ups).
    """
    bound = np.asarray(reference, np.float64)
    inside = losses[(losses < bound).all(axis=1)]
    if not len(inside):
        return 0.0
    if losses.shape[1] == 1:
        return float(bound[0] - inside.min())
    inside = inside[non_dominated(inside)]
    inside = inside[np.argsort(inside[:, -1], kind="stable")]
    edges = np.append(inside[:, -1], bound[-1])
    return float(
        sum(
            hypervolume(inside[: i + 1, :-1], reference[:-1]) * (edges[i + 1] - edges[i])
            for i in range(len(inside))
        )
    )
