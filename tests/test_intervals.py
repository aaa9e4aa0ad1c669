"""Intervals and verdicts: known cases, coverage, and what must not be claimed."""

import numpy as np
import pytest

from tuner.intervals import (
    Interval,
    front_probability,
    mean_interval,
    ratio_interval,
    repeats_needed,
    surely_dominated,
    verdict,
)


def test_students_t_by_hand() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert found is not None
    # t(0.975, 2) = 4.3027, s = 1, so half = 4.3027 / sqrt(3).
    assert (found.value, found.low, found.high) == pytest.approx((2.0, -0.4841, 4.4841), abs=1e-4)


def test_one_repeat_has_no_interval() -> None:
    assert mean_interval([5.0]) is None
    assert ratio_interval([5.0], [4.0]) is None
    assert verdict(None, True) == "not shown"


def test_intervals_cover_as_often_as_they_say() -> None:
    random = np.random.default_rng(7)
    inside = [
        (i := mean_interval(random.normal(10, 2, 5).tolist())) is not None and i.low < 10 < i.high
        for _ in range(2000)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


def test_a_shared_drift_cancels_in_the_ratio() -> None:
    drift = np.array([1.0, 1.5, 2.2, 0.7])
    ratio = ratio_interval((1.1 * drift).tolist(), drift.tolist())
    assert ratio is not None
    assert (ratio.low, ratio.high) == pytest.approx((1.1, 1.1))
    assert verdict(ratio, True) == "better"
    assert verdict(ratio, False) == "worse"


def test_equal_engines_are_rarely_called_better() -> None:
    random = np.random.default_rng(3)
    calls = [
        verdict(ratio_interval(*np.exp(random.normal(0, 0.1, (2, 4))).tolist()), True)
        for _ in range(1000)
    ]
    assert calls.count("not shown") / 1000 == pytest.approx(0.95, abs=0.025)


def test_more_spread_needs_more_repeats() -> None:
    few = repeats_needed(Interval(1.0, 0.99, 1.01, 5), 0.05)
    many = repeats_needed(Interval(1.0, 0.8, 1.25, 5), 0.05)
    assert few is not None
    assert many is not None
    assert few < many
    assert repeats_needed(Interval(1.0, 1.0, 1.0, 5), 0.05) is None


def test_only_what_is_beaten_beyond_both_intervals_leaves_the_front() -> None:
    def row(*pairs: tuple[float, float]) -> list[Interval]:
        return [Interval((low + high) / 2, low, high, 3) for low, high in pairs]

    members = [row((10, 11), (1, 2)), row((8, 9), (3, 4)), row((8, 10.5), (3, 4))]
    assert surely_dominated(members, [True, False]).tolist() == [False, True, False]


def test_front_probability_follows_the_overlap() -> None:
    clear = [np.array([[10.0, 1.0]] * 3), np.array([[5.0, 2.0]] * 3)]
    assert front_probability(clear, [True, False]).tolist() == [1.0, 0.0]
    random = np.random.default_rng(0)
    even = [random.normal([10, 1], [1, 0.1], (3, 2)) for _ in range(2)]
    both = front_probability(even, [True, False])
    assert (both > 0.02).all()
