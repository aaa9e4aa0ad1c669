"""Drift between answers: by hand, and its bound."""

import math

import pytest

from tuner.accuracy import (
    Drift,
    Scored,
    bounded,
    changes_numbers,
    from_attribute,
    to_attribute,
)
from tuner.config import EngineConfig
from tuner.records import Measured, Measurement, TrialRecord

REFERENCE = [Scored((1, 2), (-1.0, -2.0), (1, 2)), Scored((3, 4), (-0.5, -0.5), (3, 4))]


def test_the_same_answers_have_no_drift() -> None:
    drift = Drift.between(REFERENCE, REFERENCE, 0.1)
    assert (drift.mean, drift.worst, drift.top1_agreement, drift.exact_match) == (0, 0, 1, 1)
    assert not drift.misses


def test_drift_is_the_difference_per_token_and_agreement_a_share() -> None:
    found = [Scored((1, 2), (-1.0, -2.4), (1, 2)), Scored((3, 9), (-0.5, -0.3), (3, 9))]
    drift = Drift.between(REFERENCE, found, 0.3)
    assert drift.mean == pytest.approx((0.4 + 0.2) / 4)
    assert drift.worst == pytest.approx(0.4)
    assert (drift.top1_agreement, drift.exact_match, drift.tokens) == (0.75, 0.5, 4)
    assert drift.misses
    assert not Drift.between(REFERENCE, found).misses


@pytest.mark.parametrize("found", [[], [Scored((1, 2), (math.nan, 0.0), (1, 2)), REFERENCE[1]]])
def test_what_cannot_be_compared_is_refused(found: list[Scored]) -> None:
    with pytest.raises(ValueError, match=r"finite|shorter"):
        Drift.between(REFERENCE, found)


@pytest.mark.parametrize(
    ("args", "touches"),
    [
        ({"kv_cache_dtype": "fp8"}, True),
        ({"quantization": "fp8"}, True),
        ({"speculative_config": {"method": "ngram"}}, True),
        ({"kv_cache_dtype": "auto", "quantization": None}, False),
        ({"max_num_seqs": 8}, False),
    ],
)
def test_what_may_change_the_answers(args: dict[str, object], touches: bool) -> None:
    assert changes_numbers(EngineConfig("m", args)) is touches


def test_beyond_the_bound_a_trial_is_no_candidate() -> None:
    records = [
        TrialRecord(n, EngineConfig("m"), {}, Measured(Measurement({})), (1.0,), (-1.0,))
        for n in range(3)
    ]
    drifts = {0: Drift(0, 0.5, 1, 1, 9, 0.1), 1: Drift(0, 0.05, 1, 1, 9, 0.1)}
    kept = from_attribute(to_attribute(drifts))
    assert kept == drifts
    assert [record.feasible for record in bounded(records, kept)] == [False, True, True]
    assert bounded(records, kept)[0].violations == (-1.0, pytest.approx(0.4))
    assert from_attribute(None) == {}
