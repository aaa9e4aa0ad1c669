"""Metrics: definitions on paper, and what must hold for any records."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import metrics
from tuner.job import Slo
from tuner.records import RequestRecord


def record(
    id: int = 0,
    scheduled: float = 0.0,
    tokens: tuple[float, ...] = (1.0, 2.0, 4.0),
    asked: int | None = None,
    **more: object,
) -> RequestRecord:
    asked = len(tokens) if asked is None else asked
    values = {"slo_class": "default", "sent_s": scheduled, **more}
    return RequestRecord(
        id, prompt_tokens=10, output_tokens=asked, scheduled_s=scheduled, token_s=tokens,
        answered_tokens=len(tokens), **values,  # type: ignore[arg-type]
    )  # fmt: skip


def test_tpot_leaves_out_the_first_token() -> None:
    assert metrics.tpot(record(tokens=(1.0, 2.0, 4.0))) == pytest.approx(1.5)


def test_tpot_of_one_token_does_not_exist() -> None:
    values, counts, _ = metrics.measure("paced", [record(tokens=(1.0,))], Slo())
    assert counts["paced.tpot"] == counts["paced.itl"] == 0
    assert "paced.tpot.p99" not in values
    assert "paced.itl.p99" not in values


def test_a_late_send_does_not_flatter_the_engine() -> None:
    late = record(scheduled=0.0, sent_s=0.9, tokens=(1.0,))
    values, _, _ = metrics.measure("paced", [late], Slo())
    assert values["paced.ttft.p50"] == 1.0
    assert values["paced.lateness.p50"] == pytest.approx(0.9)


def test_slo_is_by_class_and_every_bound_counts() -> None:
    slo = Slo({"default": {"ttft": 1.0}, "batch": {"e2e": 100.0}})
    assert metrics.meets(record(tokens=(0.9, 50.0)), slo)
    assert not metrics.meets(record(tokens=(1.1, 1.2)), slo)
    assert metrics.meets(record(tokens=(99.0,), slo_class="batch"), slo)
    assert not metrics.meets(record(tokens=(0.5, 3.0)), Slo({"default": {"ttft": 1, "itl": 2.0}}))
    assert not metrics.meets(record(tokens=(0.5,), error="rejected"), slo)


def test_p99_from_few_requests_warns_and_from_many_does_not() -> None:
    few = metrics.measure("paced", [record(i) for i in range(99)], Slo())[2]
    assert few == ["paced: P99 from 99 requests is nearly the maximum; use 100 or more"]
    assert metrics.measure("paced", [record(i) for i in range(100)], Slo())[2] == []


def test_no_request_gives_no_value() -> None:
    values, counts, _ = metrics.measure("paced", [], Slo())
    assert values == {}
    assert counts["paced.requests"] == 0


def test_a_span_below_the_resolution_of_the_clock_has_no_rates() -> None:
    values, _, _ = metrics.measure("paced", [record(0, 0.0, (2e-311,))], Slo())
    assert "paced.output_tokens_per_s" not in values
    assert values["paced.error_share"] == 0


times = st.floats(0, 1e4, allow_nan=False)
answers = st.lists(times, min_size=1, max_size=6).map(lambda x: tuple(sorted(x)))
many = st.lists(st.tuples(st.floats(0, 10), answers, st.booleans()), min_size=1, max_size=30)


@given(many)
def test_values_are_finite_known_and_ordered(
    rows: list[tuple[float, tuple[float, ...], bool]],
) -> None:
    records = [
        record(i, at, tuple(at + t for t in tokens), error="" if good else "rejected: x")
        for i, (at, tokens, good) in enumerate(rows)
    ]
    values, counts, _ = metrics.measure("saturated", records, Slo({"default": {"e2e": 5.0}}))
    assert all(math.isfinite(value) for value in values.values())
    assert set(values) <= set(metrics.NAMES)
    assert values["saturated.error_share"] == pytest.approx(
        np.mean([not good for *_, good in rows])
    )
    assert values["saturated.attainment"] <= 1 - values["saturated.error_share"] + 1e-12
    for name in ("ttft", "e2e", "itl", "tpot"):
        if counts[f"saturated.{name}"]:
            low, mid, high = (values[f"saturated.{name}.{q}"] for q in ("p50", "p90", "p99"))
            assert low <= mid <= high <= values[f"saturated.{name}.max"] + 1e-9
