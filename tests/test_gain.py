"""The gain of live engines, counted by hand."""

import pytest

from tests.strategies import case
from tuner.config import EngineConfig
from tuner.gain import gain
from tuner.records import Cost, Dominated, Infeasible, Measured, Measurement, TrialRecord


def trial(cost: Cost, runs: bool = True) -> TrialRecord:
    config = EngineConfig("m")
    if not runs:
        return TrialRecord(0, config, {}, Infeasible("out_of_memory"), cost=cost)
    return TrialRecord(0, config, {}, Measured(Measurement({})), (1.0,), (), cost)


def test_a_start_per_trial_would_have_cost_the_mean_start_each() -> None:
    live = [trial(Cost(reconfigure_s=1, replay_s=9, gpus=2))] * 3
    found = gain([trial(Cost(start_s=50, replay_s=10, gpus=2)), *live])
    assert found is not None
    assert (found.starts, found.reconfigures, found.start_s, found.reconfigure_s) == (1, 3, 50, 1)
    assert found.trials_per_hour == pytest.approx(3600 * 4 / (2 * 90))
    assert found.with_restarts == pytest.approx(3600 * 4 / (2 * (90 + 3 * 49)))
    assert str(found) == (
        "1 starts of 50 s, 3 live changes of 1.0 s; 80 trials per GPU hour, "
        "a start per trial would have given 30 (x 2.6)"
    )


def test_a_failed_start_costs_but_counts_neither_as_a_trial_nor_as_a_mean() -> None:
    found = gain([trial(Cost(start_s=8, replay_s=2)), trial(Cost(start_s=30), runs=False)])
    assert found is not None
    assert (found.starts, found.start_s, found.per_gpu) == (2, 8, False)
    assert found.trials_per_hour == found.with_restarts == pytest.approx(3600 / 40)
    assert found.to_json()["factor"] == 1
    assert "no live change; 90 trials per hour" in str(found)


def test_the_start_of_a_trial_that_was_stopped_early_is_one_of_the_starts() -> None:
    cost = Cost(start_s=50, replay_s=2)
    stopped = TrialRecord(0, EngineConfig("m"), {}, Dominated({}), cost=cost)
    found = gain([trial(Cost(start_s=30, replay_s=8)), stopped])
    assert found is not None
    assert found.start_s == 40


def test_nothing_measured_gained_nothing() -> None:
    assert gain([trial(Cost(start_s=30), runs=False)]) is None


def test_a_ride_along_search_gains() -> None:
    plain = case.strategy("ride-along")
    case.searched(plain, 12)
    found = gain(plain._store.records())
    assert found is not None
    assert found.trials_per_hour > 1.3 * found.with_restarts
