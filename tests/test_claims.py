"""What is claimed to be certain is certain: held against every way in which a replay can go on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_metrics import record
from tuner.claims import Failing, Look, Missing, longest_s
from tuner.job import Slo
from tuner.stopping_percentiles import Slower, slower
from tuner.trace import Request

#: A request's end-to-end latency in seconds, and whether it succeeds.
fates = st.lists(st.tuples(st.floats(0.1, 10), st.booleans()), min_size=1, max_size=40)


def claimed(metric: str, bound: float, spare: int, requests: int = 100) -> Slower:
    """Return the claim about a replay of so many requests of one token."""
    asked = [
        Request(id=i, arrival_s=0.0, prompt_tokens=1, output_tokens=1) for i in range(requests)
    ]
    claim = slower(metric, bound, spare, asked)
    assert claim is not None
    return claim


def look_at(all_fates: list[tuple[float, bool]], now_s: float, claim: Slower) -> Look:
    """Replay fates that all begin at 0 until ``now_s``."""
    good = failed = 0
    still = []
    for i, (latency, succeeds) in enumerate(all_fates):
        if latency <= now_s:
            one = record(i, 0.0, (latency,), error="" if succeeds else "rejected: x")
            claim.take(one)
            good, failed = good + succeeds, failed + (not succeeds)
        else:
            still.append(record(i, 0.0, ()))
    return Look(now_s, len(all_fates), good, failed, still)


@given(
    fates,
    st.floats(0.1, 10),
    st.floats(0.1, 10),
    st.sampled_from(["p50", "p90", "p99", "max"]),
    st.integers(0, 40),
)
def test_a_percentile_that_is_claimed_to_exceed_a_bound_does(
    all_fates: list[tuple[float, bool]], now_s: float, bound: float, statistic: str, spare: int
) -> None:
    claim = claimed(f"paced.e2e.{statistic}", bound, spare, len(all_fates))
    certain = claim.holds(look_at(all_fates, now_s, claim))
    good = [latency for latency, succeeds in all_fates if succeeds]
    q = {"p50": 50, "p90": 90, "p99": 99, "max": 100}[statistic]
    if certain and len(all_fates) - len(good) <= spare and good:
        assert np.percentile(good, q) > bound


@given(fates, st.floats(0.1, 10), st.sampled_from(["p50", "p90", "p99"]))
def test_at_the_end_only_interpolation_is_left_open(
    all_fates: list[tuple[float, bool]], bound: float, statistic: str
) -> None:
    claim = claimed(f"paced.e2e.{statistic}", bound, 0, len(all_fates))
    certain = claim.holds(look_at(all_fates, 11.0, claim))
    good = [latency for latency, succeeds in all_fates if succeeds]
    q = {"p50": 50, "p90": 90, "p99": 99}[statistic]
    assert certain == bool(good and np.percentile(good, q, method="lower") > bound)


def test_one_percent_is_two_of_a_hundred() -> None:
    # P99 of 100 values lies between the two largest.
    claim = claimed("paced.e2e.p99", 1.0, spare=0)
    claim.take(record(tokens=(2.0,)))
    assert not claim.holds(Look(3.0, 100, good=1, failed=0))
    claim.take(record(tokens=(2.0,)))
    assert claim.holds(Look(3.0, 100, good=2, failed=0))


def test_an_open_request_counts_unless_it_may_still_fail() -> None:
    waiting = [record(i, 0.0, ()) for i in range(2)]
    look = Look(1.5, 100, good=5, failed=0, open=waiting)
    assert claimed("paced.e2e.p99", 1.0, spare=0).holds(look)
    assert not claimed("paced.e2e.p99", 1.0, spare=1).holds(look)
    assert not claimed("paced.e2e.p99", 2.0, spare=0).holds(look)


def test_an_open_request_says_nothing_of_its_first_token() -> None:
    waiting = [record(i, 0.0, ()) for i in range(9)]
    assert not claimed("paced.ttft.p50", 1.0, 0, 10).holds(Look(9.0, 10, 1, 0, waiting))


def test_failures_and_misses_are_counted_against_the_whole_plan() -> None:
    failing = Failing("paced.error_share", 0.01)
    assert not failing.holds(Look(1.0, 200, good=9, failed=2))
    assert failing.holds(Look(1.0, 200, good=9, failed=3))
    missing = Missing("paced.attainment", 0.99, Slo({"default": {"e2e": 1.0}}))
    missing.take(record(tokens=(1.5,)))
    assert not missing.holds(Look(2.0, 100, good=1, failed=0))
    late = Look(2.0, 100, good=1, failed=0, open=[record(1, 0.5, ())])
    assert missing.holds(late)
    assert missing.at_best(late) == pytest.approx(0.98)


def test_the_longest_way_to_meet_an_slo_is_every_token_at_its_bound() -> None:
    slo = Slo({"default": {"ttft": 1.0, "tpot": 0.5}, "batch": {"e2e": 9.0}, "free": {"tpot": 1.0}})
    assert longest_s(record(tokens=(1.0, 1.5, 2.0)), slo) == pytest.approx(2.0)
    assert longest_s(record(tokens=(1.0,)), slo) == pytest.approx(1.0)
    assert longest_s(record(slo_class="batch"), slo) == 9.0
    assert longest_s(record(slo_class="free"), slo) == math.inf
