"""Bootstrap intervals against brute force, and against how often they cover the truth."""

import numpy as np
import pytest

from tests.test_metrics import record
from tuner import uncertainty
from tuner.job import Slo
from tuner.records import RequestRecord


def records(latencies: np.ndarray, tokens: int = 3) -> list[RequestRecord]:
    return [
        record(i, float(i), tuple(i + latency * np.arange(1, tokens + 1) / tokens))
        for i, latency in enumerate(latencies)
    ]


@pytest.mark.parametrize(("n", "q"), [(7, 0.5), (40, 0.9), (40, 0.99), (101, 0.99), (300, 0.5)])
def test_percentiles_of_resamples_are_drawn_as_if_each_resample_were(n: int, q: float) -> None:
    random = np.random.default_rng(n)
    values = np.sort(random.lognormal(0, 1, n))
    drawn = np.concatenate([uncertainty._quantiles(values, q, random) for _ in range(30)])
    brute = np.quantile(values[random.integers(n, size=(30_000, n))], q, axis=1)
    for tail in (2.5, 25, 50, 75, 97.5):
        assert np.mean(drawn <= np.percentile(brute, tail)) == pytest.approx(
            np.mean(brute <= np.percentile(brute, tail)), abs=0.015
        )


def test_intervals_cover_the_true_value_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    names = ("paced.e2e.p50", "paced.e2e.p90", "paced.e2e.mean", "paced.attainment")
    truth = dict(zip(names, (np.log(2), np.log(10), 1.0, 1 - np.exp(-1.5)), strict=True))
    covered = dict.fromkeys(names, 0)
    for _ in range(120):
        found = uncertainty.within_replay(
            "paced", records(random.exponential(1.0, 150), tokens=1), Slo({"default": {"e2e": 1.5}})
        )
        for name in names:
            low, high = found[name]
            covered[name] += low <= truth[name] <= high
    assert all(0.86 < n / 120 <= 1.0 for n in covered.values()), covered


def test_gaps_of_one_request_are_not_many_observations() -> None:
    # 30 requests, each with gaps of one length of its own: 30 observations, not 3,000.
    random = np.random.default_rng(2)
    few = records(random.lognormal(0, 0.5, 30), tokens=101)
    low, high = uncertainty.within_replay("paced", few, Slo())["paced.itl.p50"]
    gaps = np.array([r.token_s[1] - r.token_s[0] for r in few])
    inner = np.sort(gaps)
    assert low <= inner[11]
    assert high >= inner[18]


def test_the_same_records_give_the_same_intervals_and_few_give_none() -> None:
    some = records(np.random.default_rng(3).exponential(1.0, 60))
    assert uncertainty.within_replay("paced", some, Slo()) == uncertainty.within_replay(
        "paced", some, Slo()
    )
    assert uncertainty.within_replay("paced", some[:4], Slo()) == {}
    assert uncertainty.within_replay("paced", [], Slo()) == {}


def test_the_mean_of_many_is_drawn_from_its_limit() -> None:
    random = np.random.default_rng(4)
    values = np.sort(random.exponential(1.0, uncertainty.MANY + 1))
    drawn = uncertainty._means(values, random)
    assert drawn.std() == pytest.approx(values.std() / len(values) ** 0.5, rel=0.1)
    few = uncertainty._means(values[::2], random)
    assert few.std() == pytest.approx(values[::2].std() / len(values[::2]) ** 0.5, rel=0.1)


def test_over_replays_is_students_t() -> None:
    found = uncertainty.over_replays({"x": [1.0, 2.0, 3.0], "y": [1.0]})
    assert found["x"] == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-5)
    assert "y" not in found
