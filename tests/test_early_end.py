"""A trial that is proven off the front is stopped, and the front is the same as without that."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.queueing import QueueingLauncher
from tests.test_tune import OBJECTIVES, SPACE, Watcher, loop, trace
from tuner.cli_run import run_command
from tuner.config import EngineConfig
from tuner.engines.simulated import SimulatedCosts, SimulatedLauncher
from tuner.evaluate import evaluate
from tuner.job import Deadlines, Job, Rivals, Slo, Workload
from tuner.objectives import Constraint, Objective, scores
from tuner.pools.inline import InlinePool
from tuner.records import Cost, Dominated, Faulted, Measured, Outcome, TrialRecord
from tuner.results import load_results
from tuner.results_requests import requests_frame
from tuner.runner import run_study
from tuner.store import Store, sqlite_url
from tuner.strategies.plain import KnownGood, Plain
from tuner.study import load_study
from tuner.surroundings import Surroundings
from tuner.trace import Trace
from tuner.tune import front

THROUGHPUT = Objective("saturated.output_tokens_per_s", maximize=True)
P99 = Objective("paced.e2e.p99", maximize=False)
GOALS = [
    (THROUGHPUT, P99),
    (P99,),
    (THROUGHPUT, Objective("paced.ttft.p90", False), Objective("paced.e2e.p50", False)),
    (THROUGHPUT, Objective("paced.attainment", True)),
    (Objective("saturated.e2e.p50", False), Objective("paced.tpot.max", False)),
    (THROUGHPUT, Objective("paced.itl.p90", False)),
]
CONSTRAINTS = [
    (),
    (Constraint("paced.error_share", upper=0.02),),
    (Constraint("paced.attainment", lower=0.9), Constraint("paced.error_share", upper=0.1)),
    (Constraint("paced.e2e.p99", upper=3.0),),
]
SLO = Slo({"default": {"ttft": 0.5, "tpot": 0.1}})


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time needs no care for memory, and a collection takes longer than a replay."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def random_trace(random: np.random.Generator, n: int = 40) -> Trace:
    arrivals = np.cumsum(random.exponential(0.2, n)) * 1e6
    return Trace.build(arrivals, np.full(n, 4), random.integers(1, 10, n))


def random_engines(random: np.random.Generator, n: int = 6) -> list[EngineConfig]:
    return [
        EngineConfig(
            "queue",
            {
                "servers": int(random.integers(1, 9)),
                "token_s": float(random.uniform(0.01, 0.2)),
                "refuse": frozenset(random.integers(0, 40, random.integers(0, 2)).tolist()),
            },
        )
        for _ in range(n)
    ]


def measured(job: Job, launcher: QueueingLauncher | None = None) -> tuple[Outcome, Cost]:
    launcher = launcher or QueueingLauncher()
    return launcher.run(evaluate(job, launcher, lambda phase: None))


def study(
    configs: list[EngineConfig], workload: Workload, rivals: Rivals, folder: Path, early: bool
) -> list[TrialRecord]:
    records: list[TrialRecord] = []
    for number, config in enumerate(configs):
        best = tuple(member.scores or () for member in front(records, rivals.objectives))
        job = Job(number, config, workload, str(folder / f"{early}-{number}"))
        job = replace(job, rivals=replace(rivals, front=best) if early else None)
        outcome, cost = measured(job)
        record = TrialRecord(number, config, {}, outcome, cost=cost)
        if isinstance(outcome, Measured):
            found = outcome.measurement
            violations = tuple(c.violation(found) for c in rivals.constraints)
            record = replace(record, scores=scores(found, rivals.objectives), violations=violations)
        records.append(record)
    return records


def test_the_front_is_the_same_with_and_without_early_ends(tmp_path: Path) -> None:
    stopped = 0
    for seed, (goals, constraints) in enumerate(itertools.product(GOALS, CONSTRAINTS)):
        random = np.random.default_rng(seed)
        workload = Workload("w", random_trace(random), slo=SLO, warmup_requests=1)
        configs, rivals = random_engines(random), Rivals(goals, constraints)
        whole = study(configs, workload, rivals, tmp_path, early=False)
        early = study(configs, workload, rivals, tmp_path, early=True)
        expected = [(r.number, r.scores) for r in front(whole, goals)]
        assert [(r.number, r.scores) for r in front(early, goals)] == expected, (goals, constraints)
        for one, other in zip(whole, early, strict=True):
            if isinstance(other.outcome, Dominated):
                stopped += 1
                assert other.cost.replay_s <= one.cost.replay_s
                _holds(other.outcome, one.outcome, goals)
            else:
                assert other.outcome == one.outcome
    assert stopped > 25


def _holds(stopped: Dominated, whole: Outcome, goals: tuple[Objective, ...]) -> None:
    """The bound is one: the whole measurement is no better in any metric of it."""
    assert isinstance(whole, Measured)
    directions = {goal.metric: goal.maximize for goal in goals} | {"paced.attainment": True}
    for metric, bound in stopped.bound.items():
        value = whole.measurement.values[metric]
        if directions.get(metric, False):
            assert value <= bound
        else:
            assert value >= bound


SLOW = EngineConfig("queue", {"servers": 1, "token_s": 1.0})


def slow_job(tmp_path: Path, **changes: object) -> Job:
    """100 requests of one token, 0.5 s apart, before one server that takes 1 s for each."""
    trace = Trace.build(np.arange(100) * 500_000, np.full(100, 4), np.ones(100, np.int32))
    rivals = Rivals((THROUGHPUT, P99), (Constraint("paced.error_share", upper=0.0),), ((2.0, 5.0),))
    workload = Workload("w", trace, warmup_requests=0)
    return Job(0, SLOW, workload, str(tmp_path), **{"rivals": rivals, **changes})  # type: ignore[arg-type]


def test_a_trial_is_stopped_at_the_second_request_that_exceeds_what_it_needs(
    tmp_path: Path,
) -> None:
    # Request i has taken 5 s at 5 + i / 2 and would end at i + 1: the ninth is the first beyond 5 s
    # (9.0 s - 4.0 s = 5 s exactly), so 9 and 10 count, open, from 9.5 s and 10 s on.
    launcher = QueueingLauncher()
    outcome, cost = measured(slow_job(tmp_path), launcher)
    assert isinstance(outcome, Dominated)
    assert outcome.bound[THROUGHPUT.metric] == pytest.approx(1.0)
    assert outcome.bound[P99.metric] == pytest.approx(5.0)
    proof = "paced.e2e.p99 cannot be better than 5,000.0 ms: certain after 10 of 100"
    assert proof in outcome.detail
    paced_s = cost.replay_s - 100.0
    assert 10.0 < paced_s < 10.5
    assert cost.saved_s == pytest.approx(49.5 - paced_s)
    assert launcher.engines[0].cut_off > 0
    assert launcher.engines[0].resets == 3  # before both replays, and after what was cut off
    assert not (tmp_path / "measurement.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"rivals": None},
        {"repeats": 3},  # medians are not known before the last replay
        {"rivals": Rivals((THROUGHPUT, P99), (), ())},  # nobody to lose against
        {"rivals": Rivals((THROUGHPUT, P99), (), ((0.5, 5.0),))},  # the rival has less throughput
        {"rivals": Rivals((THROUGHPUT, Objective("paced.goodput", True)), (), ((2.0, 5.0),))},
        {"rivals": Rivals((Objective("paced.itl.p99", False),), (), ((0.0,),))},  # no gaps at all
    ],
)
def test_what_cannot_be_proven_is_measured_whole(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    job = slow_job(tmp_path, **changes)
    if changes.get("repeats"):
        job = replace(job, workload=replace(job.workload, measures=("paced",)))
    outcome, cost = measured(job)
    assert isinstance(outcome, Measured)
    assert cost.saved_s == 0.0


def test_requests_beyond_the_deadline_of_a_replay_have_failed_before_it_begins(
    tmp_path: Path,
) -> None:
    # From 20 s on nothing is sent any more: 60 of 100 requests are lost, whatever the engine does.
    job = slow_job(tmp_path, deadlines=Deadlines(replay_s=20.0))
    limit = Constraint("paced.error_share", upper=0.5)
    job = replace(job, workload=replace(job.workload, measures=("paced",)))
    job = replace(job, rivals=Rivals((P99,), (limit,)))
    outcome, cost = measured(job)
    assert isinstance(outcome, Dominated)
    assert outcome.bound == {"paced.error_share": pytest.approx(0.6)}
    assert cost.replay_s < 1.5


def test_a_broken_engine_is_no_slow_one(tmp_path: Path) -> None:
    config = EngineConfig("queue", {"token_s": 0.1, "refuse": frozenset(range(100))})
    outcome, _ = measured(replace(slow_job(tmp_path), config=config))
    assert isinstance(outcome, Faulted)
    assert outcome.reason == "too_many_errors"
    errors = requests_frame(tmp_path / "requests.parquet")["error"]
    assert errors.str.startswith("rejected").all()


def test_what_breaks_a_constraint_is_told_as_that_and_never_as_a_value(tmp_path: Path) -> None:
    limit = (Constraint("paced.error_share", upper=0.01), Constraint("paced.ttft.p99", upper=1.0))
    store = Store.open(sqlite_url(tmp_path), "s", OBJECTIVES, limit, {})
    number = store.study.ask().number
    outcome = Dominated({"paced.error_share": 0.05}, "certain after 9 of 100 requests")
    violations = tuple(c.excess_of(outcome.bound) for c in limit)
    record = TrialRecord(number, SLOW, {}, outcome, violations=violations, cost=Cost(saved_s=7.0))
    store.finish(record)
    (trial,) = store.study.trials
    assert (trial.state.name, trial.values) == ("PRUNED", None)
    assert trial.constraints == {"can_run": 0.0, "paced.error_share": pytest.approx(0.04)}
    (found,) = store.records()
    assert (found.outcome, found.feasible, found.cost.saved_s) == (outcome, False, 7.0)
    assert store.study.best_trials == []


def test_the_loop_stops_trials_keeps_baselines_whole_and_stores_the_bound(tmp_path: Path) -> None:
    costs = SimulatedCosts(step_s=0.02, noise=0.0)

    def run(early: bool) -> tuple[list[TrialRecord], Watcher]:
        folder, watcher = tmp_path / str(early), Watcher()
        folder.mkdir()
        running = loop(folder, early_end=early, observers=[watcher])
        running.pool = InlinePool(SimulatedLauncher(costs), evaluate)
        running.strategy = Plain(running.store, SPACE, EngineConfig("m"), "random", trials=8)
        running.strategy.enqueue(KnownGood("baseline: vllm serve defaults"))
        running.workload = Workload("w", trace(), warmup_requests=0)
        running.run()
        return running.store.records(), watcher

    (whole, _), (early, watcher) = run(False), run(True)
    assert [r.config for r in whole] == [r.config for r in early]
    stopped = [r for r in early if isinstance(r.outcome, Dominated)]
    assert stopped
    assert isinstance(early[0].outcome, Measured)
    best = [(r.number, r.scores) for r in front(early, OBJECTIVES)]
    assert best == [(r.number, r.scores) for r in front(whole, OBJECTIVES)]
    for record in stopped:
        assert set(record.outcome.bound) == {o.metric for o in OBJECTIVES}  # type: ignore[union-attr]
        assert record.scores is None
        assert record.cost.saved_s > 0
    told = [event.record for event in watcher.events if hasattr(event, "record")]
    assert [r.outcome for r in told] == [r.outcome for r in early]


STUDY = """
name: case
model: {name: org/model}
engine: {kind: simulated, options: {step_s: 0.01}}
space: {knobs: {max-num-seqs: {choice: [32, 16, 2, 1]}}}
workload:
  synthetic:
    requests: 100
    rate_per_s: 5
    output_tokens: {lognormal: {median: 30, p99: 60, max: 80}}
  warmup: {requests: 0}
budget: {trials: 4}
confirm: {members: 0}
"""


DEFAULT, OWN = "baseline: vllm serve defaults", "baseline: mine"
#: fp8 is faster in everything; it comes first, so that the other one loses against it.
FP8 = """
name: case
model: {name: org/model}
engine: {kind: simulated, options: {step_s: 0.01}}
space: {knobs: {quantization: {choice: [fp8, null]}}}
workload:
  synthetic: {requests: 100, rate_per_s: 30, prompt_tokens: 500, output_tokens: 60}
  warmup: {requests: 0}
budget: {trials: 2}
confirm: {members: 0}
"""


@pytest.mark.parametrize(("trials", "labels"), [(2, ["", ""]), (4, [DEFAULT, OWN, ""])])
def test_a_simulated_study_has_baselines_where_the_budget_has_room_for_them(
    tmp_path: Path, trials: int, labels: list[str]
) -> None:
    own = "baselines: [{name: mine, args: {max-num-seqs: 8}}]\n"
    (tmp_path / "study.yaml").write_text(FP8 + own)
    run_study(
        load_study(tmp_path / "study.yaml", [f"budget.trials={trials}"]), Surroundings(tmp_path)
    )
    records = load_results(tmp_path).records
    assert [record.config.label for record in records] == labels


@pytest.mark.parametrize(("accuracy", "dominated"), [("{}", 1), ("{max_logprob_drift: 0.1}", 0)])
def test_what_the_accuracy_guard_may_drop_ends_no_trial_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accuracy: str, dominated: int
) -> None:
    (tmp_path / "study.yaml").write_text(f"{FP8}accuracy: {accuracy}\n")
    run_command(tmp_path / "study.yaml", tmp_path / "out", (), True, "tuner run")
    assert json.loads(capsys.readouterr().out)["trials"]["dominated"] == dominated


def test_a_study_says_what_early_ends_saved_and_can_do_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)

    def told(*overrides: str) -> dict[str, Any]:
        out = tmp_path / ("-".join(overrides) or "default")
        run_command(tmp_path / "study.yaml", out, overrides, True, "tuner run")
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return {**found, "rows": (out / "front.csv").read_text()}

    stopping, whole = told(), told("early_end=false")
    assert stopping["trials"]["dominated"] >= 2  # one and two sequences at a time
    assert stopping["saved"]["seconds"] > 10
    assert stopping["saved"]["gpu_seconds"] == 0  # nothing simulated holds a GPU
    assert stopping["seconds"]["replay"] < whole["seconds"]["replay"]
    assert (whole["trials"]["dominated"], whole["saved"]["seconds"]) == (0, 0)
    assert stopping["rows"] == whole["rows"]
