from __future__ import annotations

import io

import pytest
from rich.console import Console

from tuner.config import EngineConfig
from tuner.objectives import Objective
from tuner.presets import DEFAULT_BASELINE, Provenance, choose
from tuner.records import Measured, Measurement, TrialRecord
from tuner.report_table import front_rows, front_table
from tuner.report_text import (
    change,
    differences,
    number,
    quantity,
    seconds,
    title,
    unit,
)

UP = Objective("saturated.output_tokens_per_s", True)
DOWN = Objective("paced.e2e.p99", False)


def trial(number: int, scores: tuple[float, ...], label: str = "", **args) -> TrialRecord:
    config = EngineConfig("m", args, label=label)
    return TrialRecord(number, config, {}, Measured(Measurement({})), scores)


BASE = trial(0, (800.0, 1.6), DEFAULT_BASELINE, block_size=32)
FRONT = [
    trial(3, (1000.0, 1.2), max_num_seqs=64, enable_prefix_caching=False, block_size=32),
    trial(5, (2000.0, 2.4), block_size=32, compilation_config={"cudagraph_mode": "PIECEWISE"}),
]


@pytest.mark.parametrize(
    ("metric", "symbol"),
    [
        ("saturated.output_tokens_per_s", "tok/s"),
        ("capacity.requests_per_s", "req/s"),
        ("paced.goodput", "req/s"),
        ("paced.ttft.p99", "ms"),
        ("paced.itl.mean", "ms"),
        ("paced.lateness.max", "ms"),
        ("paced.error_share", "%"),
        ("paced.attainment", "%"),
        ("saturated.preemptions", ""),
        ("something", ""),
    ],
)
def test_every_metric_has_its_unit(metric: str, symbol: str) -> None:
    assert unit(metric).symbol == symbol


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.5, "1.50"),
        (99.94, "99.9"),
        (812.3, "812"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_have_three_to_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_quantities_are_shown_in_the_unit_of_people() -> None:
    assert quantity(1.5324, DOWN.metric) == "1,532 ms"
    assert quantity(0.013, "paced.error_share") == "1.30 %"
    assert title(DOWN.metric) == "P99 end-to-end latency (paced)"
    assert title("paced.ttft.p50") == "Median time to first token (paced)"
    assert title("saturated.preemptions") == "Preemptions (saturated)"


def test_durations_are_short() -> None:
    assert [seconds(s) for s in (0.085, 7.21, 75, 725, 7400)] == [
        "85 ms",
        "7.2 s",
        "75 s",
        "12 min 05 s",
        "2 h 03 min",
    ]


def test_changes_say_percent_until_they_double() -> None:
    assert [change(r) for r in (1.32, 0.925, 3.1)] == ["+32 %", "-7.5 %", "3.1 x"]


def test_differences_are_flat_and_name_what_is_unset() -> None:
    ours = EngineConfig("m", {"a": {"b": 1, "c": 2}}, {"X": "1"})
    theirs = EngineConfig("m", {"a": {"b": 1}, "d": True})
    assert differences(ours, theirs) == {"$X": "1", "a.c": 2, "d": None}


def shown(front: list[TrialRecord], baselines: list[TrialRecord]) -> str:
    presets = choose(front, [UP, DOWN], Provenance("s"), BASE)
    out = io.StringIO()
    Console(file=out, width=140).print(front_table(front, [UP, DOWN], baselines, presets))
    return out.getvalue()


def test_the_table_holds_members_against_the_default() -> None:
    text = shown(FRONT, [BASE])
    lines = text.splitlines()
    rows = [i for i, line in enumerate(lines) if "tok/s" in line]
    assert [lines[i].split()[0] for i in rows] == ["0", "5", "3"]
    assert "2.5 x" in lines[rows[1] + 1]
    assert "+50 %" in lines[rows[1] + 1]
    assert "enable_prefix_caching off" in text
    assert "block_size" not in text


def test_the_table_says_when_there_is_no_default() -> None:
    assert "not measured" in shown(FRONT, [])
    assert "vllm serve defaults" in shown([BASE], [BASE])


def test_the_rows_share_their_columns_and_are_in_milliseconds() -> None:
    rows = front_rows(FRONT, [UP, DOWN], [BASE])
    assert [(row["trial"], row["kind"]) for row in rows] == [
        (0, "baseline"),
        (5, "member"),
        (3, "member"),
    ]
    assert len({tuple(row) for row in rows}) == 1
    assert rows[1]["paced.e2e.p99_ms"] == 2400.0
    assert rows[1]["saturated.output_tokens_per_s"] == 2000.0
    assert rows[1]["saturated.output_tokens_per_s.ratio_to_default"] == 2.5
    assert rows[1]["compilation_config.cudagraph_mode"] == "PIECEWISE"
