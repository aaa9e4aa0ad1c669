"""Expected hypervolume improvement, exact for independent Gaussian beliefs and any objectives.

The region that the front does not dominate, below the reference, is cut into boxes. A result f
gains in box (l, u) the volume prod_j (u_j - max(l_j, f_j))+, and the expectation of a factor is
G(u_j) - G(l_j) with G(t) = E[(t - f_j)+] (the closed form of expected improvement; Yang et al.,
"Efficient computation of expected hypervolume improvement using box decomposition", 2019).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tuner import pareto

Floats = NDArray[np.float64]
#: A front of more members than this is thinned: boxes grow with members ** (objectives - 1).
_MEMBERS = {1: 1, 2: 64, 3: 24}
_MEMBERS_BEYOND = 8


def free_boxes(front: Floats, reference: Floats) -> tuple[Floats, Floats]:
    """Return lower and upper corners, shape (boxes, m), of what ``front`` leaves undominated.

    Smaller is better. Lower corners reach to -inf. Rows outside of the reference are ignored.
    """
    inside = front[(front < reference).all(axis=1)]
    if not len(inside):
        return np.full((1, len(reference)), -np.inf), reference[None, :].copy()
    inside = inside[pareto.non_dominated(inside)]
    most = _MEMBERS.get(len(reference), _MEMBERS_BEYOND)
    inside = np.unique(inside, axis=0)
    if len(inside) > most:
        inside = inside[np.linspace(0, len(inside) - 1, most).round().astype(int)]
    if len(reference) == 1:
        return np.array([[-np.inf]]), inside.min(axis=0)[None, :]
    return _slabs(inside, reference)


def _slabs(inside: Floats, reference: Floats) -> tuple[Floats, Floats]:
    order = inside[np.argsort(inside[:, -1], kind="stable")]
    edges = np.concatenate([[-np.inf], order[:, -1], reference[-1:]])
    lows, highs = [], []
    for n in range(len(order) + 1):
        if edges[n] == edges[n + 1]:
            continue
        low, high = free_boxes(order[:n, :-1], reference[:-1])
        lows.append(np.column_stack([low, np.full(len(low), edges[n])]))
        highs.append(np.column_stack([high, np.full(len(high), edges[n + 1])]))
    return np.concatenate(lows), np.concatenate(highs)


def expected_improvement(
    mean: Floats, std: Floats, boxes: tuple[Floats, Floats]
) -> NDArray[np.float64]:
    """Return the expected volume gained per candidate; ``mean`` and ``std``: (candidates, m)."""
    lower, upper = boxes
    total = np.ones((len(mean), len(lower)))
    for j in range(mean.shape[1]):
        at, spread = mean[:, j : j + 1], std[:, j : j + 1]
        total *= _below(upper[:, j], at, spread) - _below(lower[:, j], at, spread)
    return np.asarray(np.maximum(total, 0.0).sum(axis=1), np.float64)


def _below(bound: Floats, mean: Floats, std: Floats) -> Floats:
    """Return E[(bound - f)+], 0 where the bound is -inf."""
    finite = np.where(np.isfinite(bound), bound, 0.0)
    z = (finite - mean) / std
    value = std * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
    return np.asarray(np.where(np.isfinite(bound), value, 0.0), np.float64)
