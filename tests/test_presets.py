from __future__ import annotations

import dataclasses
import json

import pytest

from tuner.config import EngineConfig
from tuner.objectives import Objective
from tuner.presets import (
    DEFAULT_BASELINE,
    Preset,
    Provenance,
    choose,
    default_baseline,
    is_baseline,
    ratios,
)
from tuner.records import Cost, Infeasible, Measured, Measurement, TrialRecord

UP = Objective("saturated.output_tokens_per_s", True)
DOWN = Objective("paced.e2e.p99", False)


def trial(number: int, scores: tuple[float, ...] | None, label: str = "", **args) -> TrialRecord:
    metrics = (UP.metric, DOWN.metric)
    outcome = (
        Infeasible("out_of_memory")
        if scores is None
        else Measured(Measurement(dict(zip(metrics, scores, strict=False)), {"requests": 40}))
    )
    config = EngineConfig("m", {"max_num_seqs": number, **args}, label=label)
    return TrialRecord(number, config, {}, outcome, scores, cost=Cost(start_s=3.0))


FRONT = [trial(1, (100.0, 1.0)), trial(2, (90.0, 0.4)), trial(3, (10.0, 0.3))]
WHENCE = Provenance("s", versions={"vllm": "0.32.0"}, date="2026-12-01T00:00:00+00:00")


def names(presets: list[Preset]) -> dict[str, int]:
    return {preset.name: preset.trial for preset in presets}


def test_the_three_names_go_to_the_ends_and_the_knee() -> None:
    presets = choose(FRONT, [UP, DOWN], WHENCE)
    assert names(presets) == {"max-throughput": 1, "low-latency": 3, "balanced": 2}
    assert presets[0].scores == {UP.metric: 100.0, DOWN.metric: 1.0}


def with_values(record: TrialRecord, **values: float) -> TrialRecord:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return dataclasses.replace(record, outcome=Measured(Measurement(named)))


def test_capacity_and_cost_name_members_wherever_they_were_measured() -> None:
    front = [
        with_values(FRONT[0], capacity__requests_per_s=9.0, saturated__cost_per_million_tokens=0.5),
        with_values(FRONT[1], capacity__requests_per_s=12.0),
        with_values(FRONT[2], saturated__cost_per_million_tokens=0.2),
    ]
    found = names(choose(front, [UP, DOWN], WHENCE))
    assert found["max-capacity"] == 2
    assert found["cheapest"] == 3
    assert list(found)[:3] == ["max-throughput", "low-latency", "balanced"]


def test_capacity_and_cost_as_objectives_are_not_called_throughput_and_latency() -> None:
    objectives = [
        Objective("capacity.requests_per_s", True),
        Objective("paced.cost_per_million_tokens", False),
    ]
    found = names(choose(FRONT, objectives, WHENCE))
    assert found == {"balanced": 2, "max-capacity": 1, "cheapest": 3}


def test_a_confirmed_mean_goes_before_the_search_s_measurement() -> None:
    objectives = [Objective("capacity.requests_per_s", True), DOWN]
    front = [with_values(FRONT[0], capacity__requests_per_s=1.0), FRONT[1]]
    assert names(choose(front, objectives, WHENCE))["max-capacity"] == 1


def test_one_member_carries_every_name() -> None:
    presets = choose(FRONT[:1], [UP, DOWN], WHENCE)
    assert names(presets) == {"max-throughput": 1, "low-latency": 1, "balanced": 1}


@pytest.mark.parametrize(("objective", "name"), [(UP, "max-throughput"), (DOWN, "low-latency")])
def test_one_objective_gives_one_preset(objective: Objective, name: str) -> None:
    records = [trial(1, (5.0,))]
    assert names(choose(records, [objective], WHENCE)) == {name: 1}


def test_an_empty_front_and_unmeasured_members_give_no_presets() -> None:
    assert choose([], [UP, DOWN], WHENCE) == []
    assert choose([trial(1, None)], [UP, DOWN], WHENCE) == []


def test_among_equal_bests_the_other_objective_decides() -> None:
    front = [trial(1, (100.0, 2.0)), trial(2, (100.0, 1.0))]
    assert names(choose(front, [UP, DOWN], WHENCE))["max-throughput"] == 2


def test_gains_are_ratios_to_the_default_baseline() -> None:
    base = trial(0, (50.0, 2.0), DEFAULT_BASELINE)
    [best, *_] = choose(FRONT, [UP, DOWN], WHENCE, base)
    assert best.gains == {UP.metric: 2.0, DOWN.metric: 0.5}


def test_no_ratio_without_a_measured_baseline_or_to_zero() -> None:
    assert ratios(FRONT[0], None, [UP, DOWN]) == {}
    assert ratios(FRONT[0], trial(0, None), [UP, DOWN]) == {}
    assert ratios(FRONT[0], trial(0, (0.0, 2.0)), [UP, DOWN]) == {DOWN.metric: 0.5}


def test_the_default_baseline_is_found_among_the_records() -> None:
    other = trial(4, (1.0, 1.0), "baseline: throughput mode")
    failed = trial(5, None, DEFAULT_BASELINE)
    base = trial(6, (1.0, 1.0), DEFAULT_BASELINE)
    assert default_baseline([*FRONT, other, failed, base]) is base
    assert default_baseline([*FRONT, other, failed]) is None
    assert [is_baseline(r) for r in (FRONT[0], other)] == [False, True]


def test_provenance_says_what_was_measured_and_how_sure_it_is() -> None:
    [best, *_] = choose([trial(1, (1.0, 1.0), load_format="dummy")], [UP, DOWN], WHENCE)
    assert best.provenance["caution"] == "single measurement, not confirmed"
    assert best.provenance["random_weights"] is True
    assert best.provenance["simulated"] is False
    assert best.provenance["counts"] == {"requests": 40}
    assert best.provenance["start_s"] == 3.0
    confirmed = Provenance("s", confirmed={1: 3}).of(FRONT[0])
    assert (confirmed["confirmed_repeats"], confirmed["caution"]) == (3, "")


def test_a_preset_survives_json() -> None:
    intervals = {1: {UP.metric: (90.0, 110.0)}}
    [best, *_] = choose(FRONT, [UP, DOWN], WHENCE, trial(0, (50.0, 2.0)), intervals)
    assert Preset.from_json(json.loads(json.dumps(best.to_json()))) == best
