"""The benchmark that holds two clients against each other: the same requests, the right verdict."""

import json
from pathlib import Path

import pytest

from benchmarks.agreement import OURS, THEIRS, Figures, Place, table, write_trace
from tuner.study import load_workload


def runs(throughput: float, ttft: float, e2e: float) -> list[Figures]:
    """Five runs around these medians, one of them far off."""
    return [
        Figures(throughput * x, ttft * x, e2e * x, 1.0, lateness=2.0)
        for x in (0.97, 0.99, 1.0, 1.02, 3.0)
    ]


@pytest.mark.parametrize(
    ("throughput", "ttft", "e2e", "differing"),
    [
        (104, 91, 109, []),
        (106, 100, 100, ["output tokens/s"]),
        (94, 100, 100, ["output tokens/s"]),
        (100, 112, 100, ["P99 TTFT"]),
        (100, 100, 88, ["P99 E2E"]),
    ],
)
def test_medians_are_held_against_the_bounds(
    throughput: float, ttft: float, e2e: float, differing: list[str]
) -> None:
    found = {
        (client, measure): runs(*figures)
        for client, figures in ((OURS, (throughput, ttft, e2e)), (THEIRS, (100, 100, 100)))
        for measure in ("saturated", "paced")
    }
    text, agreed = table(found)
    assert agreed == (not differing)
    rows = [line for line in text.splitlines() if "DIFFERS" in line]
    assert len(rows) == len(differing)
    assert all(name in row for name, row in zip(differing, rows, strict=True))


@pytest.mark.parametrize(("name", "rate"), [("saturated", None), ("paced", 20.0)])
def test_both_clients_get_the_same_requests(tmp_path: Path, name: str, rate: float | None) -> None:
    write_trace(Place("", tmp_path, frozenset()), 30, rate)
    trace = load_workload(tmp_path / f"{name}.yaml").build().trace
    text = (tmp_path / f"{name}.timed.jsonl").read_text()
    theirs = [json.loads(line) for line in text.splitlines()]
    assert [(r.prompt_tokens, r.output_tokens) for r in trace] == [
        (row["input_length"], row["output_length"]) for row in theirs
    ]
    assert [r.arrival_s for r in trace] == pytest.approx([row["timestamp"] for row in theirs])
    assert len({row["hash_ids"][0] for row in theirs}) == 30
