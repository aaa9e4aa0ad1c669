"""The loop over fake and simulated parts: budgets, failures, interruption, resume."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tuner.config import EngineConfig
from tuner.engines.simulated import SimulatedCosts, SimulatedLauncher
from tuner.errors import ConfigRejected, EngineFault
from tuner.evaluate import evaluate
from tuner.events import Event, StudyFinished, TrialFinished
from tuner.job import Deadlines, Job, Near, Workload
from tuner.knobs import ChoiceDomain, IntDomain, Knob, SearchSpace
from tuner.objectives import Constraint, Objective
from tuner.pools.inline import InlinePool
from tuner.records import (
    Cost,
    Dominated,
    Faulted,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
)
from tuner.store import Store, sqlite_url
from tuner.strategies.plain import Plain
from tuner.strategies.repeats import Repeats
from tuner.study_sections import Budget
from tuner.trace import Trace
from tuner.tune import Loop, StopRequest, front

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))
SPACE = SearchSpace(
    (
        Knob("max_num_seqs", IntDomain(1, 128, log=True)),
        Knob("max_num_batched_tokens", ChoiceDomain.of([128, 256, 1024, 4096])),
    ),
    rules=("max_num_batched_tokens >= max_num_seqs",),
)


def trace(n: int = 120) -> Trace:
    random = np.random.default_rng(1)
    return Trace.build(
        np.cumsum(random.exponential(0.05, n)) * 1e6,
        random.integers(20, 200, n),
        random.integers(5, 40, n),
    )


class Watcher:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


Answer = Callable[[Job], Outcome]


def answering(answer: Answer) -> Callable[..., object]:
    async def fake(job: Job, launcher: object, on_phase: object) -> tuple[Outcome, Cost]:
        return answer(job), Cost(start_s=10, replay_s=5)

    return fake


def good(job: Job) -> Outcome:
    seqs = job.config.args["max_num_seqs"]
    values = {OBJECTIVES[0].metric: 10.0 * seqs, OBJECTIVES[1].metric: 1.0 * seqs}
    return Measured(Measurement({**values, "paced.error_share": 0.0}))


def loop(folder: Path, run: object = evaluate, **changes: object) -> Loop:
    constraints = (Constraint("paced.error_share", upper=0.01),)
    store = Store.open(sqlite_url(folder), "s", OBJECTIVES, constraints, {"v": 1})
    store.reap()
    parts: dict[str, object] = {
        "name": "s",
        "store": store,
        "strategy": Plain(store, SPACE, EngineConfig("m"), trials=8),
        "pool": InlinePool(SimulatedLauncher(), run, slots=2),  # type: ignore[arg-type]
        "check": lambda config: None,
        "workload": Workload("w", trace()),
        "deadlines": Deadlines(),
        "budget": Budget(trials=8),
        "folder": folder,
        **changes,
    }
    return Loop(**parts)  # type: ignore[arg-type]


def test_the_whole_path_on_the_simulated_engine(tmp_path: Path) -> None:
    watcher = Watcher()
    running = loop(tmp_path, observers=[watcher])
    assert running.run() == "budget of 8 trials spent"
    records = running.store.records()
    assert len(records) == 8
    assert all(isinstance(record.outcome, Measured) for record in records)
    best = front(records, OBJECTIVES)
    assert best
    for member in best:
        assert not any(
            other.scores[0] > member.scores[0] and other.scores[1] < member.scores[1]
            for other in records
        )
    assert (tmp_path / "trials" / "0" / "requests.parquet").is_file()
    finished = [event for event in watcher.events if isinstance(event, TrialFinished)]
    assert len(finished) == 8
    assert isinstance(watcher.events[-1], StudyFinished)


def test_what_can_never_start_costs_nothing_and_no_budget(tmp_path: Path) -> None:
    def check(config: EngineConfig) -> Infeasible | None:
        return Infeasible("invalid_arguments") if config.args["max_num_seqs"] > 16 else None

    running = loop(tmp_path, answering(good), check=check, budget=Budget(trials=5))
    running.run()
    records = running.store.records()
    started = [r for r in records if r.cost.total_s > 0]
    assert len(started) == 5
    assert all(r.config.args["max_num_seqs"] <= 16 for r in started)
    assert all(isinstance(r.outcome, Infeasible) for r in records if r.cost.total_s == 0)


def test_a_dead_space_ends_at_once_without_a_start(tmp_path: Path) -> None:
    running = loop(tmp_path, answering(good), check=lambda config: Infeasible("out_of_memory"))
    reason = running.run()
    assert "can never start" in reason or "every point" in reason
    assert all(record.cost.total_s == 0 for record in running.store.records())


def test_a_study_in_which_nothing_works_ends_early_and_says_why(tmp_path: Path) -> None:
    running = loop(
        tmp_path, answering(lambda job: Infeasible("out_of_memory", "x")), budget=Budget(trials=50)
    )
    assert running.run() == "none of the first 6 trials gave a result: out_of_memory (6)"


def test_trials_that_were_stopped_for_a_constraint_are_no_hopeless_study(tmp_path: Path) -> None:
    stopped = Dominated({"paced.error_share": 0.5}, "certain after 9 of 100 requests")
    running = loop(tmp_path, answering(lambda job: stopped), early_end=True)
    assert running.run() == "budget of 8 trials spent"


def test_what_may_yet_leave_the_front_is_nobodys_rival(tmp_path: Path) -> None:
    known: list[tuple[float, ...]] = []

    def noting(job: Job) -> Outcome:
        known.extend(job.rivals.front if job.rivals else ())
        return good(job)

    def large(config: EngineConfig) -> bool:
        return int(config.args["max_num_seqs"]) > 12

    running = loop(tmp_path, answering(noting), early_end=True, provisional=large)
    running.run()
    records = running.store.records()
    assert any(large(record.config) for record in front(records, OBJECTIVES))
    assert known
    assert max(scores[0] for scores in known) <= 10.0 * 12


def test_a_trial_is_told_where_the_capacity_of_others_was_and_of_itself(tmp_path: Path) -> None:
    told: dict[int, Near | None] = {}

    def noting(job: Job) -> Outcome:
        told[job.number] = job.near
        found = good(job)
        assert isinstance(found, Measured)
        values = {**found.measurement.values, "capacity.rate_scale": 2.0 + job.number}
        return Measured(Measurement(values))

    one = [(0, EngineConfig("m", {"max_num_seqs": 8})), (1, EngineConfig("m", {"max_num_seqs": 4}))]
    pool = InlinePool(SimulatedLauncher(), answering(noting), slots=1)  # type: ignore[arg-type]
    running = loop(tmp_path, pool=pool, budget=Budget(trials=4))
    running.strategy = Repeats(running.store, one, 2)
    running.run()
    scales = {r.number: (r.config.key, 2.0 + r.number) for r in running.store.records()}
    first, second, third, _ = sorted(scales)
    assert told[first] is None
    assert told[second] == Near(2.0 + first, 0)
    same = next(n for n in (first, second) if scales[n][0] == scales[third][0])
    assert told[third] == Near(2.0 + same, 1)


def test_weather_is_tried_again_and_does_not_count(tmp_path: Path) -> None:
    failed: set[int] = set()

    def flaky(job: Job) -> Outcome:
        if job.number % 3 == 0:
            failed.add(job.number)
            return Faulted("worker_lost", "node died")
        return good(job)

    running = loop(tmp_path, answering(flaky), budget=Budget(trials=6))
    running.run()
    records = running.store.records()
    assert sum(isinstance(r.outcome, Measured) for r in records) == 6
    lost = [r.point for r in records if isinstance(r.outcome, Faulted)]
    measured = [r.point for r in records if isinstance(r.outcome, Measured)]
    assert failed
    assert all(point in measured for point in lost[:1])


def test_a_measurement_without_an_objective_is_no_result(tmp_path: Path) -> None:
    def half(job: Job) -> Outcome:
        return Measured(Measurement({OBJECTIVES[0].metric: 1.0}))

    running = loop(tmp_path, answering(half))
    assert "no_result" in running.run()
    assert all("paced.e2e.p99" in r.outcome.detail for r in running.store.records())


def test_stop_once_finishes_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    stop = StopRequest()

    def stopping(job: Job) -> Outcome:
        stop.requested = True
        return good(job)

    running = loop(tmp_path, answering(stopping), stop=stop)
    assert running.run() == "stopped on request"
    assert len(running.store.records()) == 2  # both slots were busy when it came


def test_stop_twice_leaves_no_trial_running_and_the_study_resumes(tmp_path: Path) -> None:
    def interrupted(job: Job) -> Outcome:
        if job.number == 3:
            raise KeyboardInterrupt
        return good(job)

    running = loop(tmp_path, answering(interrupted))
    with pytest.raises(KeyboardInterrupt):
        running.run()
    states = {trial.state.name for trial in running.store.study.trials}
    assert "RUNNING" not in states
    resumed = loop(tmp_path, answering(good))
    assert resumed.run() == "budget of 8 trials spent"
    measured = [r for r in resumed.store.records() if isinstance(r.outcome, Measured)]
    assert len(measured) == 8
    assert len({str(record.point) for record in measured}) == 8


def test_gpu_hours_are_counted_over_runs(tmp_path: Path) -> None:
    running = loop(tmp_path, answering(good), on_gpus=True, budget=Budget(gpu_hours=45 / 3600))
    assert "GPU hours" in running.run()
    assert len(running.store.records()) in (3, 4)
    again = loop(tmp_path, answering(good), on_gpus=True, budget=Budget(gpu_hours=45 / 3600))
    again.run()
    assert len(again.store.records()) == len(running.store.records())


def test_more_gpus_than_there_are_is_infeasible_not_a_wait_for_ever(tmp_path: Path) -> None:
    base = EngineConfig("m", {"tensor_parallel_size": 4})
    pool = InlinePool(SimulatedLauncher(), answering(good), slots=2, gpus=2)  # type: ignore[arg-type]
    running = loop(tmp_path, pool=pool)
    running.strategy = Plain(running.store, SPACE, base)
    running.run()
    assert {r.outcome.reason for r in running.store.records()} == {"too_few_gpus"}


class Broken(SimulatedLauncher):
    error: Exception = RuntimeError("a bug of ours")

    def launch(self, config: EngineConfig, log: str):  # type: ignore[no-untyped-def]
        raise type(self).error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConfigRejected("out_of_memory", "no blocks"), Infeasible("out_of_memory", "no blocks")),
        (EngineFault("gpu_busy", "pid 7"), Faulted("gpu_busy", "pid 7")),
    ],
)
def test_a_launch_that_fails_is_an_outcome(
    tmp_path: Path, error: Exception, outcome: Outcome
) -> None:
    launcher = type("Failing", (Broken,), {"error": error})()
    job = Job(0, EngineConfig("m"), Workload("w", trace()), str(tmp_path))
    assert SimulatedLauncher.run(evaluate(job, launcher, lambda phase: None))[0] == outcome


def test_a_bug_of_ours_is_kept_whole(tmp_path: Path) -> None:
    job = Job(0, EngineConfig("m"), Workload("w", trace()), str(tmp_path))
    outcome, _ = SimulatedLauncher.run(evaluate(job, Broken(), lambda phase: None))
    assert isinstance(outcome, Faulted)
    assert outcome.reason == "unknown"
    assert "RuntimeError: a bug of ours" in outcome.detail


def test_a_request_that_cannot_fit_rejects_the_configuration(tmp_path: Path) -> None:
    job = Job(0, EngineConfig("m", {"max_model_len": 100}), Workload("w", trace()), str(tmp_path))
    launcher = SimulatedLauncher()
    outcome, cost = launcher.run(evaluate(job, launcher, lambda phase: None))
    assert isinstance(outcome, Infeasible)
    assert outcome.reason == "model_too_long"
    assert cost.replay_s == 0


def test_the_same_job_measures_the_same_twice(tmp_path: Path) -> None:
    launcher = SimulatedLauncher(SimulatedCosts(warm_start_s=60.0))  # both start at one time
    job = Job(0, EngineConfig("m", {"max_num_seqs": 8}), Workload("w", trace()), str(tmp_path))
    first, _ = launcher.run(evaluate(job, launcher, lambda phase: None))
    second, _ = launcher.run(evaluate(job, launcher, lambda phase: None))
    assert first == second
