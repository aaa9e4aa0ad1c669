"""The price list: made-up prices until there are measured ones, then their means."""

import pytest

from tests.strategies import case
from tuner.config import EngineConfig
from tuner.records import Cost, Dominated, Infeasible, Measured, Measurement, TrialRecord
from tuner.strategies.prices import COLD, LIVE, PRIOR_REPLAY_S, PRIOR_S, WARM, Prices

UTIL = frozenset({"gpu_memory_utilization"})


def trial(args: dict[str, object], cost: Cost, runs: bool = True) -> TrialRecord:
    config = EngineConfig("m", args)
    if not runs:
        return TrialRecord(0, config, {}, Infeasible("out_of_memory"), cost=cost)
    return TrialRecord(0, config, {}, Measured(Measurement({})), (1.0, 1.0), (), cost)


def test_prior_prices_hold_until_the_first_measured_one() -> None:
    prices = Prices(case.HOT)
    assert prices.summary() == {**PRIOR_S, "replay": PRIOR_REPLAY_S}
    prices.learn(trial({}, Cost(start_s=90, replay_s=10, other_s=2)))
    prices.learn(trial({"block_size": 32}, Cost(start_s=70, replay_s=14, other_s=2)))
    assert prices.ready_s(COLD) == 80
    assert prices.ready_s(WARM) == pytest.approx(PRIOR_S[WARM] * 80 / PRIOR_S[COLD])
    assert prices.trial_s(COLD) == 80 + 14


def test_temperature_follows_what_was_compiled_and_what_is_live() -> None:
    prices = Prices(case.HOT, UTIL)
    prices.learn(trial({"block_size": 32}, Cost(start_s=60, replay_s=10)))
    same = prices.keys(EngineConfig("m", {"block_size": 32, "max_num_seqs": 8}))
    util = prices.keys(EngineConfig("m", {"block_size": 32, "gpu_memory_utilization": 0.8}))
    other = prices.keys(EngineConfig("m", {"block_size": 64}))
    live = {same.cold}
    assert [prices.temperature(k, live) for k in (same, util, other)] == [LIVE, WARM, COLD]
    assert prices.temperature(same) == WARM


def test_warm_starts_and_live_changes_have_their_own_means() -> None:
    prices = Prices(case.HOT, UTIL)
    for start_s in (60, 20, 24):
        prices.learn(trial({"block_size": 32}, Cost(start_s=start_s, replay_s=10)))
    prices.learn(trial({"block_size": 32}, Cost(reconfigure_s=1.5, replay_s=10)))
    assert (prices.ready_s(COLD), prices.ready_s(WARM), prices.ready_s(LIVE)) == (60, 22, 1.5)


def test_a_trial_that_was_stopped_early_has_compiled() -> None:
    prices = Prices(case.HOT)
    config = EngineConfig("m", {"block_size": 32})
    stopped = TrialRecord(0, config, {}, Dominated({}), cost=Cost(start_s=60, replay_s=3))
    prices.learn(stopped)
    assert prices.temperature(prices.keys(config)) == WARM
    assert prices.replay_s == PRIOR_REPLAY_S  # its replays are no whole ones


def test_a_start_that_failed_compiled_nothing_and_says_nothing_of_replays() -> None:
    prices = Prices(case.HOT)
    config = {"block_size": 32}
    prices.learn(trial(config, Cost(start_s=30), runs=False))
    assert prices.ready_s(COLD) == 30
    assert prices.replay_s == PRIOR_REPLAY_S
    assert prices.temperature(prices.keys(EngineConfig("m", config))) == COLD


def test_an_engine_of_seconds_is_believed_at_once() -> None:
    prices = Prices(case.HOT)
    prices.learn(trial({}, Cost(start_s=4, replay_s=3)))
    assert prices.trial_s(COLD) == pytest.approx(7)
