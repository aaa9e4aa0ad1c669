"""Objectives and constraints."""

from pathlib import Path

import pytest

from tests.study_case import load, problems
from tuner.objectives import Constraint, Objective

SLO = "{synthetic: {requests: 20}, slo: {ttft_ms: 500}}"


def test_the_default_is_throughput_against_latency(tmp_path: Path) -> None:
    assert load(tmp_path).objectives == (
        Objective("saturated.output_tokens_per_s", maximize=True),
        Objective("paced.e2e.p99", maximize=False),
    )


def test_order_and_direction_are_kept(tmp_path: Path) -> None:
    text = """
  - {metric: paced.ttft.p50, direction: minimize}
  - {metric: paced.goodput, direction: maximize}
"""
    assert load(tmp_path, workload=SLO, objectives=text).objectives == (
        Objective("paced.ttft.p50", maximize=False),
        Objective("paced.goodput", maximize=True),
    )


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("[]", "objectives",
         "needs a list of at least one {metric, direction}, found an empty list."),
        ("{metric: paced.e2e.p99}", "objectives",
         "needs a list of at least one {metric, direction}, found a mapping."),
        ("[{metric: paced.e2e.p99}]", "objectives[0].direction", "is missing."),
        ("[paced.e2e.p99]", "objectives[0]",
         'needs a mapping (key: value), found "paced.e2e.p99".'),
        ("[{metric: paced.e2e.p99, direction: min}]", "objectives[0].direction",
         'needs one of maximize, minimize; found "min". Did you mean minimize?'),
        ("[{metric: paced.e2e.p95, direction: minimize}]", "objectives[0].metric",
         'there is no metric "paced.e2e.p95". Did you mean paced.e2e.p99?'),
        ("[{metric: latency, direction: minimize}]", "objectives[0].metric",
         'there is no metric "latency". It begins with saturated or paced or capacity, '
         "as saturated.output_tokens_per_s."),
        ("[{metric: paced.e2e.p99, direction: minimize}, {metric: paced.e2e.p99, "
         "direction: minimize}]", "objectives[1].metric", "paced.e2e.p99 is given twice."),
        ("[{metric: paced.output_tokens_per_s, direction: maximize}]", "objectives[0].metric",
         "paced.output_tokens_per_s only echoes the offered load, as a paced replay sends at the "
         "recorded times: take saturated.output_tokens_per_s."),
        ("[{metric: paced.requests_per_s, direction: maximize}]", "objectives[0].metric",
         "paced.requests_per_s only echoes the offered load, as a paced replay sends at the "
         "recorded times: take saturated.requests_per_s."),
        ("[{metric: paced.goodput, direction: maximize}]", "objectives[0].metric",
         "paced.goodput counts requests within the SLO, and the workload has no slo."),
    ],
)  # fmt: skip
def test_faulty_objectives(tmp_path: Path, text: str, field: str, message: str) -> None:
    assert problems(tmp_path, objectives=text) == [f"case.yaml: {field} (line 6): {message}"]


def test_a_metric_of_a_measure_that_is_not_taken_is_refused(tmp_path: Path) -> None:
    workload = "{synthetic: {requests: 20}, measures: [saturated]}"
    text = "[{metric: saturated.requests_per_s, direction: maximize}]"
    constraints = "[{metric: paced.error_share, max: 0}]"
    assert problems(tmp_path, workload=workload, objectives=text, constraints=constraints) == [
        "case.yaml: constraints[0].metric (line 7): paced.error_share: the workload measures "
        "saturated only; add paced to its measures."
    ]


def test_default_objectives_need_their_measures_too(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, workload="{synthetic: {}, measures: [paced]}")
    assert problem == (
        "case.yaml: objectives: saturated.output_tokens_per_s: the workload measures paced only; "
        "add saturated to its measures."
    )


def test_maximizing_a_latency_warns(tmp_path: Path) -> None:
    spec = load(tmp_path, objectives="[{metric: paced.ttft.p99, direction: maximize}]")
    (warning,) = spec.warnings
    assert warning.endswith(
        "objectives[0].direction (line 6): maximizes paced.ttft.p99, a latency: is minimize meant?"
    )


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("{metric: paced.error_share, max: 0.01}", Constraint("paced.error_share", 0.01)),
        ("{metric: paced.ttft.p99, max_ms: 500}", Constraint("paced.ttft.p99", 0.5)),
        ("{metric: paced.ttft.p99, max: 0.5, min_ms: 1}", Constraint("paced.ttft.p99", 0.5, 0.001)),
        ("{metric: paced.attainment, min: 0.99}", Constraint("paced.attainment", None, 0.99)),
    ],
)
def test_constraints_are_kept_in_base_units(
    tmp_path: Path, text: str, constraint: Constraint
) -> None:
    assert load(tmp_path, workload=SLO, constraints=f"[{text}]").constraints == (constraint,)


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("3", "constraints", "needs a list of {metric, max, min}, found 3."),
        ("[{metric: paced.error_share}]", "constraints[0]", "needs max, min, or both."),
        ("[{metric: paced.error_share, max: 1%}]", "constraints[0].max",
         'needs a number, found the text "1%".'),
        ("[{metric: paced.error_share, max_ms: 3}]", "constraints[0].max_ms",
         "paced.error_share is no time: write max."),
        ("[{metric: paced.e2e.p99, max_ms: 3, max: 4}]", "constraints[0].max_ms",
         "bounds what max bounds: keep one of them."),
        ("[{metric: paced.e2e.p99, max: 3, min: 4}]", "constraints[0].min",
         "min 4.0 is above max 3.0."),
        ("[{metric: paced.e2e.p99, maximum: 3}]", "constraints[0].maximum",
         "unknown key. Did you mean max? Known: metric, max, min, max_ms, min_ms."),
        ("[{metric: paced.e2e.p99, max: 3}, {metric: paced.e2e.p99, min: 1}]",
         "constraints[1].metric", "paced.e2e.p99 is bounded twice: join the two."),
    ],
)  # fmt: skip
def test_faulty_constraints(tmp_path: Path, text: str, field: str, message: str) -> None:
    assert f"case.yaml: {field} (line 6): {message}" in problems(tmp_path, constraints=text)


def test_seconds_that_look_like_milliseconds_warn(tmp_path: Path) -> None:
    spec = load(tmp_path, constraints="[{metric: paced.e2e.p99, max: 500}]")
    (warning,) = spec.warnings
    assert warning.endswith(
        "constraints[0].max (line 6): 500.0 seconds; for milliseconds write max_ms."
    )
