"""The largest time scale at which an SLO holds: known on paper, and under noise."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.queueing import QueueingLauncher
from tuner.capacity import FINE, RATIO, STEP, WIDEST, Capacity, Probe, Search
from tuner.config import EngineConfig
from tuner.evaluate import evaluate
from tuner.job import Job, Near, Slo, Workload
from tuner.measures_capacity import near
from tuner.records import Faulted, Measured, Measurement, TrialRecord
from tuner.results_requests import requests_frame
from tuner.trace import Ragged, Trace


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time needs no care for memory, and a collection takes longer than a replay."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def searched(
    misses: Callable[[float], int], start: float = 1.0, most: int = 30, step: float = STEP
) -> tuple[Capacity, list[float]]:
    """Search where a replay of 1,000 requests, of which 10 may miss, gives so many misses."""
    asked: list[float] = []

    async def probe(scale: float) -> Probe:
        asked.append(scale)
        missed = min(misses(scale), 1000)
        return Probe(scale, 1000, 10, 1000 - missed, missed)

    return asyncio.run(Search(probe, 1 / 16, 64.0, most, step).run(start)), asked


@pytest.mark.parametrize("true", [0.07, 0.3, 1.0, 2.9, 17.0, 63.0])
def test_a_clear_limit_is_found_within_three_percent_and_held_twice(true: float) -> None:
    found, asked = searched(lambda scale: 0 if scale <= true else 500)
    assert found.best is not None
    assert found.best.scale <= true < found.failed_at  # type: ignore[operator]
    assert found.failed_at / found.best.scale <= RATIO  # type: ignore[operator]
    assert found.settled
    assert asked.count(found.best.scale) == 2
    assert found.probes == len(asked) <= 13


def test_a_start_near_the_limit_takes_fewer_probes() -> None:
    far, _ = searched(lambda scale: 0 if scale <= 20 else 500)
    near, _ = searched(lambda scale: 0 if scale <= 20 else 500, start=15.0)
    assert near.probes < far.probes


@given(st.floats(0.07, 60), st.floats(0, 1))
def test_from_an_earlier_answer_three_replays_find_it_again_and_hold_it_twice(
    true: float, further: float
) -> None:
    def misses(scale: float) -> int:
        return 0 if scale <= true else 500

    earlier, _ = searched(misses)
    assert earlier.best is not None
    again, asked = searched(misses, earlier.best.scale * FINE**further, step=FINE)
    assert again.best is not None
    assert again.failed_at is not None
    assert again.best.scale <= true < again.failed_at <= again.best.scale * RATIO
    assert asked.count(again.best.scale) == 2
    assert again.probes <= 4  # of a bracket narrower than a step, the start may lie beyond
    assert again.settled


@given(st.floats(1 / 16, 64), st.floats(1 / 16, 64), st.sampled_from([FINE, FINE**4, STEP]))
def test_wherever_a_search_begins_it_ends_at_the_limit(
    true: float, start: float, step: float
) -> None:
    found, _ = searched(lambda scale: 0 if scale <= true else 500, start, step=step)
    assert found.settled
    assert found.best is not None
    assert found.best.scale <= true
    assert found.probes <= 18
    if found.failed_at is not None:
        assert true < found.failed_at <= found.best.scale * RATIO


def test_what_fails_at_the_smallest_scale_has_no_capacity() -> None:
    found, asked = searched(lambda scale: 500)
    assert found == Capacity(None, 6, 1 / 16)
    steps = [asked[0], STEP, STEP**2, WIDEST, WIDEST]
    assert asked == pytest.approx([*(1.0 / np.cumprod(steps)), 1 / 16])


def test_what_holds_at_the_largest_scale_ends_there() -> None:
    found, _ = searched(lambda scale: 0)
    assert found.best is not None
    assert (found.best.scale, found.failed_at) == (64.0, None)


def test_a_close_verdict_is_asked_again_and_a_third_replay_decides() -> None:
    answers = {1.0: iter([9, 12, 9])}
    found, asked = searched(
        lambda scale: next(answers[scale]) if scale in answers else (0 if scale < 1 else 500)
    )
    assert asked[:3] == [1.0, 1.0, 1.0]
    assert found.best is not None
    assert found.best.scale == pytest.approx(1.0, rel=0.03)


def test_luck_at_one_scale_does_not_stand() -> None:
    # True limit 2.0; the first replay at a scale above it that is asked holds by luck.
    lucky: list[float] = []

    def misses(scale: float) -> int:
        if scale > 2.0 and scale < 2.2 and not lucky:
            lucky.append(scale)
            return 0
        return 0 if scale <= 2.0 else 500

    found, asked = searched(misses, start=1.5)
    assert lucky
    assert asked.count(lucky[0]) == 3
    assert found.best is not None
    assert 2.0 / RATIO <= found.best.scale <= 2.0


def test_an_engine_that_holds_once_and_never_again_is_not_settled() -> None:
    held: set[float] = set()

    def misses(scale: float) -> int:
        if scale in held:
            return 500
        held.add(scale)
        return 0

    found, asked = searched(misses, most=20)
    assert not found.settled
    assert 20 <= len(asked) <= 22


@pytest.mark.parametrize(
    ("missed", "met", "clear"),
    [
        (0, 1000, True), (6, 994, True), (7, 993, False), (10, 990, False),
        (13, 987, False), (14, 986, True), (11, 300, True), (11, 900, False),
    ],
)  # fmt: skip
def test_a_verdict_is_clear_beyond_one_standard_deviation(
    missed: int, met: int, clear: bool
) -> None:
    assert Probe(1.0, 1000, 10, met, missed).clear == clear


BOUNDS = Slo({"default": {"ttft": 0.15}})


def capacity(folder: Path, **changes: object) -> Measurement:
    """200 requests of one token, 0.5 s apart, before one server that takes 0.1 s for each."""
    trace = Trace.build(np.arange(200) * 500_000, np.full(200, 4), np.ones(200, np.int32))
    workload = Workload("w", trace, ("capacity",), BOUNDS, warmup_requests=0)
    config = EngineConfig("queue", {"servers": 1, "token_s": 0.1})
    job = Job(0, config, replace(workload, **changes), str(folder))  # type: ignore[arg-type]
    launcher = QueueingLauncher()
    outcome, _ = launcher.run(evaluate(job, launcher, lambda phase: None))
    assert isinstance(outcome, Measured), outcome
    return outcome.measurement


def test_one_server_has_the_capacity_of_its_queue(tmp_path: Path) -> None:
    # At scale k the i-th request is answered 0.1 + i (0.1 - 0.5 / k) s after its arrival. Two of
    # 200 may miss, so that request 197 must be in time: 0.1 - 0.5 / k <= 0.05 / 197.
    limit = 0.5 / (0.1 - 0.05 / 197)
    found = capacity(tmp_path)
    assert limit / RATIO <= found.values["capacity.rate_scale"] <= limit
    scale = found.values["capacity.rate_scale"]
    assert found.values["capacity.requests_per_s"] == pytest.approx(2 * scale, rel=1e-6)
    assert found.values["capacity.attainment"] >= 0.99
    assert found.values["capacity.probes"] == found.counts["capacity.probes"] < 15
    assert not found.warnings
    assert (tmp_path / "requests.parquet").is_file()


def test_repeats_begin_where_the_first_ended_but_not_at_the_same_scales(tmp_path: Path) -> None:
    limit = 0.5 / (0.1 - 0.05 / 197)
    trace = Trace.build(np.arange(200) * 500_000, np.full(200, 4), np.ones(200, np.int32))
    workload = Workload("w", trace, ("capacity",), BOUNDS, warmup_requests=0)
    job = Job(0, EngineConfig("queue", {"token_s": 0.1}), workload, str(tmp_path), repeats=5)
    launcher = QueueingLauncher()
    outcome, _ = launcher.run(evaluate(job, launcher, lambda phase: None))
    assert isinstance(outcome, Measured)
    found = outcome.measurement
    low, high = found.intervals["capacity.rate_scale"]
    # Answers lie evenly between limit / RATIO and limit.
    assert low < limit / math.sqrt(RATIO) < high
    assert found.values["capacity.probes"] <= 4


@pytest.mark.parametrize(
    ("told", "fewest", "most"), [(None, 8, 13), (Near(4.9, 1), 3, 4), (Near(4.5, 0), 5, 7)]
)
def test_the_more_is_known_the_fewer_replays(
    tmp_path: Path, told: Near | None, fewest: int, most: int
) -> None:
    trace = Trace.build(np.arange(200) * 500_000, np.full(200, 4), np.ones(200, np.int32))
    workload = Workload("w", trace, ("capacity",), BOUNDS, warmup_requests=0)
    config = EngineConfig("queue", {"token_s": 0.1})
    job = Job(0, config, workload, str(tmp_path), near=told)
    launcher = QueueingLauncher()
    outcome, _ = launcher.run(evaluate(job, launcher, lambda phase: None))
    assert isinstance(outcome, Measured)
    found = outcome.measurement
    limit = 0.5 / (0.1 - 0.05 / 197)
    assert limit / RATIO <= found.values["capacity.rate_scale"] <= limit
    assert fewest <= found.values["capacity.probes"] <= most


def test_answers_of_the_same_configuration_come_before_those_of_others() -> None:
    def trial(n: int, name: str, scale: float | None) -> TrialRecord:
        values = {} if scale is None else {"capacity.rate_scale": scale}
        return TrialRecord(n, EngineConfig(name), {}, Measured(Measurement(values)))

    broken = TrialRecord(9, EngineConfig("a"), {}, Faulted("worker_lost"))
    records = [
        trial(0, "a", 2.0),
        trial(1, "b", 3.0),
        trial(2, "b", 5.0),
        trial(3, "a", None),
        broken,
    ]
    assert near(records, EngineConfig("b")) == Near(4.0, 2)
    assert near(records, EngineConfig("a")) == Near(2.0, 1)
    assert near(records, EngineConfig("c")) == Near(3.0, 0)
    assert near(records[3:], EngineConfig("a")) is None


def test_a_wanted_share_is_what_counts(tmp_path: Path) -> None:
    # Half may miss: request 99 is the last that must be in time.
    limit = 0.5 / (0.1 - 0.05 / 99)
    found = capacity(tmp_path, slo=replace(BOUNDS, attainment=0.5))
    assert limit / RATIO <= found.values["capacity.rate_scale"] <= limit


def test_each_class_has_its_own_bounds(tmp_path: Path) -> None:
    strict = Slo({"default": {"ttft": 0.15}, "free": {}})
    classes = np.arange(200) % 2
    trace = Trace.build(
        np.arange(200) * 500_000, np.full(200, 4), np.ones(200, np.int32),
        slo_class=classes, class_names=("default", "free"),
    )  # fmt: skip
    # Requests 0, 2, ..., 198 are bound; two of 200 may miss, so 194 must be in time.
    limit = 0.5 / (0.1 - 0.05 / 194)
    found = capacity(tmp_path, slo=strict, trace=trace)
    assert limit / RATIO <= found.values["capacity.rate_scale"] <= limit


def test_a_bound_that_no_load_meets_leaves_the_capacity_out_and_says_why(tmp_path: Path) -> None:
    found = capacity(tmp_path, slo=Slo({"default": {"ttft": 0.05}}))
    assert "capacity.requests_per_s" not in found.values
    assert found.absent["capacity.requests_per_s"] == (
        "even at 0.0625 of the recorded rate the SLO does not hold"
    )
    requests = requests_frame(tmp_path / "requests.parquet")
    assert (requests["measure"] == "capacity").all()
    assert requests["ttft_s"].min() > 0.05


def test_a_trace_too_short_to_find_the_limit_says_so(tmp_path: Path) -> None:
    found = capacity(tmp_path, slo=Slo({"default": {"ttft": 50.0}}))
    assert found.values["capacity.rate_scale"] == pytest.approx(99.5 / 50.0)
    (warning,) = found.warnings
    assert "take a longer window" in warning


def test_arrivals_too_short_for_a_queue_to_grow_are_told(tmp_path: Path) -> None:
    limit = 0.5 / (0.1 - 2.4 / 197)
    found = capacity(tmp_path, slo=Slo({"default": {"ttft": 2.5}}))
    assert limit / RATIO <= found.values["capacity.rate_scale"] <= limit
    (warning,) = found.warnings
    assert "too short for a queue to grow" in warning


def test_without_bounds_or_duration_there_is_none(tmp_path: Path) -> None:
    assert "no bounds" in capacity(tmp_path, slo=Slo()).absent["capacity.rate_scale"]
    at_once = Trace.build(np.zeros(9), np.full(9, 4), np.ones(9, np.int32))
    assert "at once" in capacity(tmp_path, trace=at_once).absent["capacity.rate_scale"]
    assert not (tmp_path / "requests.parquet").exists()  # no empty table


def test_sessions_start_faster_and_users_think_as_long(tmp_path: Path) -> None:
    # 100 sessions of two turns, 2 s of thought between; a session starts every 0.5 s.
    starts = np.repeat(np.arange(100) * 500_000, 2)
    starts[1::2] += 2_100_000
    parents = Ragged.of([[] if i % 2 == 0 else [i - 1] for i in range(200)])
    gaps = np.where(np.arange(200) % 2 == 0, -1, 2_000_000)
    trace = Trace.build(
        starts, np.full(200, 4), np.ones(200, np.int32), parents=parents, gap_us=gaps
    )
    found = capacity(tmp_path, trace=trace, slo=Slo({"default": {"ttft": 0.25}}, 0.9))
    # Two turns take 0.2 s of the server, so that 2.5 times as many sessions keep it busy.
    assert 2.4 < found.values["capacity.rate_scale"] < 3.2
    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    at = {row["id"]: row for row in rows if row["measure"] == "capacity"}
    children = [i for i in at if len(trace[i].parents) and at[i]["token_s"]]
    assert children
    for child in children:
        parent = at[trace[child].parents[0]]
        assert at[child]["scheduled_s"] - parent["token_s"][-1] == pytest.approx(2.0, abs=1e-3)


def test_a_hopeless_probe_is_cut_short(tmp_path: Path) -> None:
    # 0.1 s of service against a bound of 0.05 s: the third request decides every probe.
    trace = Trace.build(np.arange(200) * 500_000, np.full(200, 4), np.ones(200, np.int32))
    slo = Slo({"default": {"ttft": 0.05}})
    workload = Workload("w", trace, ("capacity",), slo, warmup_requests=0)
    job = Job(0, EngineConfig("queue", {"token_s": 0.1}), workload, str(tmp_path))
    launcher = QueueingLauncher()
    _, cost = launcher.run(evaluate(job, launcher, lambda phase: None))
    whole_s = sum(100 / scale for scale in (1.0, 0.5, 0.25, 0.125, 0.0625))  # fewer than there are
    assert cost.replay_s < 0.02 * whole_s
    assert math.isclose(cost.saved_s, 0.0)
