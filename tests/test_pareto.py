"""Pareto arithmetic: against the definitions, for any scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.pareto import hypervolume, knee, non_dominated, oriented

cell = st.integers(0, 6).map(float)


def matrices(columns: int) -> st.SearchStrategy[np.ndarray]:
    row = st.lists(cell, min_size=columns, max_size=columns)
    return st.lists(row, min_size=1, max_size=9).map(np.array)


@given(st.integers(1, 4).flatmap(matrices))
def test_non_dominated_is_the_definition(losses: np.ndarray) -> None:
    keep = non_dominated(losses)
    for i, row in enumerate(losses):
        beaten = any((other <= row).all() and (other < row).any() for other in losses)
        assert keep[i] == (not beaten)


@given(st.integers(1, 3).flatmap(matrices))
def test_hypervolume_counts_the_dominated_cells(losses: np.ndarray) -> None:
    reference = [6.0] * losses.shape[1]
    grids = np.meshgrid(*[np.arange(6)] * losses.shape[1], indexing="ij")
    cells = np.stack([grid.ravel() for grid in grids], axis=1)
    covered = (losses[:, None, :] <= cells[None, :, :]).all(axis=2).any(axis=0)
    assert hypervolume(losses, reference) == pytest.approx(covered.sum())


def test_equal_rows_stay_together() -> None:
    assert non_dominated(np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 2.0]])).tolist() == [1, 1, 0]


def test_maximized_columns_are_negated() -> None:
    assert oriented([[1.0, 2.0]], [True, False]).tolist() == [[-1.0, 2.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        oriented([[1.0, bad]], [True, False])


def test_knee_is_nearest_to_the_ideal() -> None:
    assert knee(np.array([[0.0, 10.0], [2.0, 2.0], [10.0, 0.0]])) == 1
    assert knee(np.array([[5.0, 5.0]])) == 0
