"""A bound on a percentile of a whole replay: early verdicts, and what the reported value says."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.test_simulated import chat
from tests.test_metrics import record
from tuner import metrics
from tuner.capacity import RATIO, Probe
from tuner.config import EngineConfig
from tuner.engines.simulated import SimulatedLauncher
from tuner.evaluate import evaluate
from tuner.job import Job, Slo, Workload
from tuner.records import Measured, Measurement, RequestRecord
from tuner.stopping import Verdict
from tuner.stopping_percentiles import Side, Watched, watched
from tuner.trace import Request, Trace
from tuner.traces import transforms

Records = list[RequestRecord]

#: When a request arrives, the gaps before each of its tokens, and whether it fails after them.
fates = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.lists(st.sampled_from([0.1, 0.2, 0.3, 1.0, 2.0]), min_size=1, max_size=8),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=30,
)
bounds = st.dictionaries(
    st.sampled_from(["p50", "p90", "p99"]),
    st.dictionaries(
        st.sampled_from(["itl", "ttft", "tpot", "e2e"]),
        st.sampled_from([0.15, 0.2, 0.5, 0.85, 1.0, 1.5, 3.0]),
        min_size=1,
        max_size=2,
    ),
    min_size=1,
    max_size=2,
)


def records_of(every: list[tuple[float, list[float], bool]]) -> Records:
    return [
        record(i, at, tuple(at + np.cumsum(waits)), error="rejected: x" if fails else "")
        for i, (at, waits, fails) in enumerate(every)
    ]


def requests_of(records: Records) -> list[Request]:
    """Return what was asked for, as one request per record."""
    tokens = [one.output_tokens for one in records]
    return list(Trace.build(np.zeros(len(tokens)), np.full(len(tokens), 10), tokens))


def kept(verdict: Verdict) -> bool:
    """Whether the probe that a replay under this judge makes holds."""
    n, sides = verdict.requests, tuple(one.side() for one in verdict.watched)
    allowed = verdict.slo.allowed_misses(n)
    return Probe(1.0, n, allowed, verdict.met, verdict.missed, sides).holds


def reported(records: Records, slo: Slo) -> bool:
    """Whether the values that the whole replay reports keep the SLO."""
    values, _, _ = metrics.measure("paced", records, slo)
    enough = sum(metrics.meets(one, slo) for one in records)
    return enough >= len(records) - slo.allowed_misses(len(records)) and all(
        values.get(f"paced.{latency}.{name}", 0.0) <= bound
        for name, inner in slo.percentiles.items()
        for latency, bound in inner.items()
    )


@given(fates, bounds, st.sampled_from([{}, {"default": {"ttft": 1.0}}]), st.floats(0, 1))
def test_an_early_verdict_is_the_one_of_the_whole_replay_as_reported(
    every: list[tuple[float, list[float], bool]],
    percentiles: dict[str, dict[str, float]],
    per_request: dict[str, dict[str, float]],
    attainment: float,
) -> None:
    records = records_of(every)
    slo = Slo(per_request, attainment, percentiles)
    whole = reported(records, slo)
    judge = Verdict.on(requests_of(records), slo)
    by_end = sorted(records, key=lambda one: one.token_s[-1])
    for n, ended in enumerate(by_end, 1):
        judge.take(ended)
        now_s = ended.token_s[-1]
        still = [replace(r, token_s=()) for r in by_end[n:] if r.scheduled_s <= now_s]
        if judge.decided(now_s, still):
            break
    assert kept(judge) == whole


@given(fates, st.sampled_from(["itl", "ttft", "tpot", "e2e"]))
def test_a_bound_is_on_the_values_that_are_reported(
    every: list[tuple[float, list[float], bool]], latency: str
) -> None:
    good = [one for one in records_of(every) if one.ok]
    pooled = np.concatenate([np.array([]), *(metrics.VALUES[latency](one) for one in good)])
    sample = metrics.Sample(good, Slo())
    np.testing.assert_array_equal(pooled, metrics.DISTRIBUTIONS[latency](sample))


def itl_p99(tokens: list[int]) -> Watched:
    slo = Slo(percentiles={"p99": {"itl": 0.025}})
    (found,) = watched(Trace.build(np.zeros(len(tokens)), np.full(len(tokens), 4), tokens), slo)
    return found


def judged(n: int, tokens: int) -> Verdict:
    trace = Trace.build(np.zeros(n), np.full(n, 4), np.full(n, tokens))
    return Verdict.on(list(trace), Slo(percentiles={"p99": {"itl": 0.025}}))


def answer(i: int, slow: int, of: int) -> RequestRecord:
    """A request with ``of`` gaps, the first ``slow`` of them of 50 ms, the others of 10 ms."""
    return record(i, 0.0, tuple(np.cumsum([0.1] + [0.05] * slow + [0.01] * (of - slow))))


def test_more_than_one_percent_of_all_gaps_above_decide_at_once() -> None:
    # 20 requests with 100 gaps each: P99 of 2,000 lies at rank 1979.01, 20 gaps above it.
    judge = judged(20, 101)
    judge.take(answer(0, 20, 100))
    assert not judge.decided(9.0, [])
    judge.take(answer(1, 1, 100))
    assert judge.decided(9.0, [])
    assert not kept(judge)


def test_enough_gaps_in_time_decide_before_the_last_request() -> None:
    judge = Verdict.on(
        list(Trace.build(np.zeros(200), np.full(200, 4), [101] * 199 + [2])),
        Slo(percentiles={"p99": {"itl": 0.025}}),
    )
    for i in range(197):
        judge.take(answer(i, 0, 100))
        assert not judge.decided(9.0, [])
    judge.take(answer(197, 0, 100))
    # 101 gaps are to come, of 19,901 of which 199 may be above.
    assert judge.decided(9.0, [])
    assert kept(judge)


def test_one_long_gap_fails_a_request_but_not_the_percentile() -> None:
    slow = answer(0, 1, 200)
    assert not metrics.meets(slow, Slo({"default": {"itl": 0.025}}))
    judge = judged(1, 201)
    judge.take(slow)
    assert kept(judge)


def test_a_percentile_leaves_attainment_and_goodput_as_they_are() -> None:
    records = [answer(0, 30, 100), answer(1, 0, 100)]
    with_it, without = Slo(percentiles={"p99": {"itl": 0.025}}), Slo()
    assert metrics.measure("paced", records, with_it) == metrics.measure("paced", records, without)


def test_failed_requests_give_no_gaps_but_may_be_no_more_than_the_wanted_share_allows() -> None:
    judge = judged(100, 11)
    for i in range(98):
        judge.take(answer(i, 0, 10))
    for i in (98, 99):
        judge.take(record(i, 0.0, (), asked=11, error="rejected: x"))
    assert judge.decided(9.0, [])
    assert judge.watched[0].side().holds
    assert not kept(judge)


def test_requests_of_one_token_have_no_gap_that_could_be_too_long() -> None:
    found = itl_p99([1, 1])
    assert found.holds()
    assert found.side() == Side(True, 0.0)


def test_a_percentile_is_clear_beyond_the_spread_between_requests() -> None:
    even, lumped = itl_p99([101] * 20), itl_p99([101] * 20)
    for i in range(20):
        even.take(answer(i, 2, 100))  # twice what is allowed, in every request
        lumped.take(answer(i, 40 * (i == 0), 100))  # the same, but one request has it all
    assert not even.side().holds
    assert not lumped.side().holds
    assert even.side().off == pytest.approx(math.sqrt(20))
    assert even.side().clear
    assert not lumped.side().clear


@pytest.fixture
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time needs no care for memory, and a collection takes longer than a replay."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def simulated(folder: Path, trace: Trace, slo: Slo, measure: str) -> Measurement:
    workload = Workload("w", trace, (measure,), slo, warmup_requests=0)
    launcher = SimulatedLauncher()
    job = Job(0, EngineConfig("m", {"max_model_len": 8192}), workload, str(folder))
    outcome, _ = launcher.run(evaluate(job, launcher, lambda phase: None))
    assert isinstance(outcome, Measured), outcome
    return outcome.measurement


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("latency", "bound_s"), [("itl", 0.03), ("ttft", 0.5)])
def test_the_capacity_is_where_the_reported_percentile_crosses_its_bound(
    tmp_path: Path, latency: str, bound_s: float
) -> None:
    slo, trace = Slo(percentiles={"p99": {latency: bound_s}}), chat(150)
    found = simulated(tmp_path, trace, slo, "capacity").values["capacity.rate_scale"]

    def p99(scale: float) -> float:
        faster = transforms.apply(trace, [{"rate_scale": scale}])
        return simulated(tmp_path, faster, Slo(), "paced").values[f"paced.{latency}.p99"]

    # Arrivals of one seed: the percentile does not grow smoothly with the load.
    assert p99(found) <= bound_s < p99(found * RATIO**2)
