"""Proposals: distinct, allowed, known-good ones first, failures told so that the search learns."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tuner.config import EngineConfig, canonical
from tuner.errors import StoreError
from tuner.knobs import ChoiceDomain, FloatDomain, IntDomain, Knob, SearchSpace
from tuner.objectives import Constraint, Objective
from tuner.records import Cost, Faulted, Infeasible, Measured, Measurement, TrialRecord
from tuner.store import Store, sqlite_url
from tuner.strategies import Proposal
from tuner.strategies.plain import SAMPLERS, KnownGood, Plain

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))
CONSTRAINTS = (Constraint("paced.error_share", upper=0.01),)
BASE = EngineConfig("model", {"max_model_len": 512})
SMALL = SearchSpace(
    (
        Knob("max_num_seqs", ChoiceDomain.of([8, 16, 32])),
        Knob("enable_prefix_caching", ChoiceDomain.of([True, False])),
    )
)
WIDE = SearchSpace(
    (
        Knob("max_num_seqs", IntDomain(1, 1024, log=True)),
        Knob("max_num_batched_tokens", ChoiceDomain.of([256, 512, 1024, 2048])),
        Knob("gpu_memory_utilization", FloatDomain(0.5, 0.95, 0.05)),
        Knob("spec", ChoiceDomain.of({"none": None, "ngram": {"method": "ngram", "k": 2}})),
        Knob("draft", IntDomain(1, 5), when={"spec": ({"method": "ngram", "k": 2},)}),
    ),
    fixed={"block_size": 32},
    rules=("max_num_batched_tokens >= max_num_seqs",),
)


def store(folder: Path, definition: dict[str, object] | None = None) -> Store:
    return Store.open(sqlite_url(folder), "s", OBJECTIVES, CONSTRAINTS, definition or {"a": 1})


def measured(proposal: Proposal, speed: float = 100.0, late: float = 1.0) -> TrialRecord:
    values = {"saturated.output_tokens_per_s": speed, "paced.e2e.p99": late}
    return TrialRecord(
        proposal.number, proposal.config, proposal.point, Measured(Measurement(values)),
        (speed, late), (0.0,), Cost(start_s=1, replay_s=2),
    )  # fmt: skip


def asked(strategy: Plain) -> Proposal:
    proposal = strategy.ask()
    assert proposal is not None
    return proposal


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_point_twice_and_the_space_ends(tmp_path: Path, sampler: str) -> None:
    strategy = Plain(store(tmp_path), SMALL, BASE, sampler)
    points = []
    for n in range(6):
        proposal = asked(strategy)
        points.append(canonical(proposal.point))
        strategy.tell(measured(proposal, speed=n))
    assert len(set(points)) == 6
    assert strategy.ask() is None


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_parallel_asks_differ(tmp_path: Path, sampler: str) -> None:
    strategy = Plain(store(tmp_path), SMALL, BASE, sampler)
    assert len({canonical(asked(strategy).point) for _ in range(6)}) == 6


def test_proposals_keep_rules_conditions_and_rounding(tmp_path: Path) -> None:
    strategy = Plain(store(tmp_path), WIDE, BASE, trials=30)
    for n in range(30):
        proposal = asked(strategy)
        point = proposal.point
        assert point["max_num_batched_tokens"] >= point["max_num_seqs"]
        assert ("draft" in point) == (point["spec"] is not None)
        assert len(str(point["gpu_memory_utilization"])) <= 4
        assert proposal.config.args["block_size"] == 32
        assert proposal.config.args["max_model_len"] == 512
        strategy.tell(measured(proposal, speed=point["max_num_seqs"], late=n))


def test_known_good_comes_first_and_teaches_what_lies_in_the_space(tmp_path: Path) -> None:
    kept = store(tmp_path)
    strategy = Plain(kept, WIDE, BASE)
    effective = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "spec": None}
    strategy.enqueue(KnownGood("baseline: vllm serve defaults", {}, effective))
    proposal = asked(strategy)
    assert proposal.config.label == "baseline: vllm serve defaults"
    assert proposal.config.args == {"max_model_len": 512}
    strategy.tell(measured(proposal))
    trial = kept.study.trials[0]
    assert trial.params == {"max_num_seqs": 256, "spec": "none"}
    assert trial.user_attrs["config"]["args"] == {"max_model_len": 512}


def test_a_known_good_point_is_not_proposed_again(tmp_path: Path) -> None:
    strategy = Plain(store(tmp_path), SMALL, BASE)
    strategy.enqueue(KnownGood("known", {}, {"max_num_seqs": 8, "enable_prefix_caching": True}))
    points = [canonical(asked(strategy).point) for _ in range(6)]
    assert len(set(points)) == 6
    assert strategy.ask() is None


def test_infeasible_is_pruned_with_a_violated_constraint_and_no_values(tmp_path: Path) -> None:
    kept = store(tmp_path)
    strategy = Plain(kept, SMALL, BASE)
    proposal = asked(strategy)
    refused = Infeasible("out_of_memory", "No available memory for the cache blocks.")
    strategy.tell(TrialRecord(proposal.number, proposal.config, proposal.point, refused))
    trial = kept.study.trials[0]
    assert trial.state == TrialState.PRUNED
    assert trial.values is None
    assert trial.user_attrs["reason"] == "out_of_memory"
    assert kept.records()[0].outcome == refused
    assert kept.study.best_trials == []


def test_the_search_leaves_a_region_that_cannot_run(tmp_path: Path) -> None:
    space = SearchSpace((Knob("x", FloatDomain(0.0, 1.0)), Knob("y", FloatDomain(0.0, 1.0))))
    strategy = Plain(store(tmp_path), space, BASE, seed=1, trials=60)
    infeasible = []
    for _ in range(60):
        p = asked(strategy)
        x, y = p.point["x"], p.point["y"]
        infeasible.append(x < 0.5)
        if x < 0.5:
            strategy.tell(TrialRecord(p.number, p.config, p.point, Infeasible("invalid_arguments")))
        else:
            strategy.tell(measured(p, speed=x, late=y))
    assert sum(infeasible[30:]) <= 6


def test_weather_is_failed_and_tried_again_once(tmp_path: Path) -> None:
    kept = store(tmp_path)
    strategy = Plain(kept, SMALL, BASE)
    first = asked(strategy)
    broken = Faulted("engine_died", "exit code -9")
    strategy.tell(TrialRecord(first.number, first.config, first.point, broken))
    second = asked(strategy)
    assert second.point == first.point
    assert kept.study.trials[second.number].user_attrs["retry_of"] == first.number
    strategy.tell(TrialRecord(second.number, second.config, second.point, broken))
    third = asked(strategy)
    assert third.point != first.point
    assert kept.study.trials[0].state == TrialState.FAIL


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_a_point_whose_run_always_breaks_is_given_up(tmp_path: Path, sampler: str) -> None:
    strategy = Plain(store(tmp_path), SMALL, BASE, sampler)
    asked_for: list[str] = []
    while (proposal := strategy.ask()) is not None and len(asked_for) < 20:
        asked_for.append(canonical(proposal.point))
        record = measured(proposal)
        if proposal.point["max_num_seqs"] == 8:
            parts = proposal.number, proposal.config, proposal.point
            record = TrialRecord(*parts, Faulted("trial_deadline"))
        strategy.tell(record)
    assert len(set(asked_for)) == 6
    assert len(asked_for) == 6 + 2


def test_the_baseline_stays_the_baseline_when_it_is_tried_again(tmp_path: Path) -> None:
    kept = store(tmp_path)
    strategy = Plain(kept, SMALL, BASE)
    strategy.enqueue(KnownGood("baseline: x", {"block_size": 64}, {"max_num_seqs": 8}))
    first = asked(strategy)
    strategy.tell(TrialRecord(first.number, first.config, first.point, Faulted("engine_died")))
    assert asked(strategy).config == first.config


def test_a_resumed_study_reaps_what_was_running_and_tries_it_again(tmp_path: Path) -> None:
    before = Plain(store(tmp_path), SMALL, BASE)
    done, left = asked(before), asked(before)
    before.tell(measured(done))
    kept = store(tmp_path)
    assert kept.reap() == [left.number]
    after = Plain(kept, SMALL, BASE)
    again = asked(after)
    assert again.point == left.point
    points = [canonical(p.point) for p in (done, again, *(asked(after) for _ in range(4)))]
    assert len(set(points)) == 6
    assert after.ask() is None
    assert [r.outcome.__class__.__name__ for r in kept.records()] == ["Measured", "Faulted"]


def test_records_come_back_as_they_were_told(tmp_path: Path) -> None:
    kept = store(tmp_path)
    strategy = Plain(kept, WIDE, BASE)
    record = measured(asked(strategy))
    strategy.tell(record)
    assert Store.load(sqlite_url(tmp_path), "s").records() == [record]


@pytest.mark.parametrize("definition", [{"a": 2}, {}, {"a": 1, "b": 0}])
def test_a_changed_definition_is_refused_with_the_difference(
    tmp_path: Path, definition: dict[str, object]
) -> None:
    store(tmp_path)
    with pytest.raises(StoreError, match=r"stored .*, now "):
        store(tmp_path, definition or {"c": 3})


def test_no_study_to_load_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        Store.load(sqlite_url(tmp_path), "missing")
    assert "tuner run" in caught.value.hint


def test_a_violated_constraint_keeps_a_trial_off_optunas_front(tmp_path: Path) -> None:
    kept = store(tmp_path)
    strategy = Plain(kept, SMALL, BASE)
    good, bad = asked(strategy), asked(strategy)
    strategy.tell(measured(good, 10.0, 1.0))
    record = measured(bad, 99.0, 0.1)
    strategy.tell(TrialRecord(**{**_fields(record), "violations": (0.5,)}))
    assert [t.number for t in kept.study.best_trials] == [good.number]
    assert kept.study.directions == [
        optuna.study.StudyDirection.MAXIMIZE,
        optuna.study.StudyDirection.MINIMIZE,
    ]


def _fields(record: TrialRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in TrialRecord.__dataclass_fields__}
