"""The report's answer to whether the memory was predicted right."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.calibration import Memory
from tuner.config import EngineConfig, Json
from tuner.devices import GIB
from tuner.engines.vllm_check import Verdict
from tuner.errors import EngineFault
from tuner.memory import Demand
from tuner.objectives import Objective
from tuner.presets import Provenance
from tuner.records import Cost, Infeasible, Measured, Measurement, TrialRecord
from tuner.report import markdown, write_report
from tuner.report_files import write_tables
from tuner.report_memory import columns, memory_rows, memory_text, starts
from tuner.results import StudyResults

TOKENS = 41 * 1024
OBJECTIVE = Objective("saturated.output_tokens_per_s", True)


def ask(config: EngineConfig) -> Verdict:
    """A GPU of 100 GiB, weights of 40, activations of 1 GiB; a token of KV cache takes 1 MiB."""
    demand = Demand(100 * GIB, 0.9, 40 * GIB, GIB, 1 << 20, 16, 1024, 64, key="k")
    return Verdict(True, demand=demand)


def trial(number: int, *said: Any, real: int = TOKENS, **point: Json) -> TrialRecord:
    """``said``: (formula, calibrated) of the trial's own start and alone, where it has them."""
    forecast = dict(zip(("started", "alone"), said, strict=False))
    facts = {"kv_cache_tokens": real, **({"kv_forecast": forecast} if said else {})}
    return TrialRecord(number, EngineConfig("m"), point, Measured(Measurement({}, facts=facts)))


def test_a_trial_keeps_what_was_predicted_of_its_start_before_it_taught_anything() -> None:
    memory, outcome = Memory(ask), Measured(Measurement({}, facts={"kv_cache_tokens": TOKENS}))
    first = memory.noted(EngineConfig("m"), outcome, Cost(start_s=30.0))
    assert isinstance(first, Measured)
    both = [49 * 1024, None]
    assert first.measurement.facts["kv_forecast"] == {"started": both, "alone": both}
    memory.offsets["k"] = 8 * GIB
    live = Measured(Measurement({}, facts={"live": {"reused": True}}))
    later = memory.noted(EngineConfig("m"), live, Cost(reconfigure_s=0.5))
    assert isinstance(later, Measured)
    assert later.measurement.facts["kv_forecast"] == {"alone": [49 * 1024, 41 * 1024]}
    assert memory.noted(EngineConfig("m"), Infeasible("x"), Cost()) == Infeasible("x")


def test_what_was_measured_is_kept_where_nothing_can_be_asked() -> None:
    def dead(config: EngineConfig) -> Verdict:
        raise EngineFault("checker_died", "the check process ended")

    outcome = Measured(Measurement({}, facts={"kv_cache_tokens": TOKENS}))
    assert Memory(dead).noted(EngineConfig("m"), outcome, Cost(start_s=30.0)) is outcome


@pytest.mark.parametrize("given", [{"total_bytes": 0}, {"kv_bytes": GIB}, {"blocks": 8}])
def test_nothing_is_predicted_where_memory_leaves_nothing_open(given: dict[str, int]) -> None:
    def outright(config: EngineConfig) -> Verdict:
        found = ask(config).demand
        assert found is not None
        return Verdict(True, demand=replace(found, **given))

    outcome = Measured(Measurement({}, facts={"kv_cache_tokens": 64}))
    assert Memory(outright).noted(EngineConfig("m"), outcome, Cost(start_s=1.0)) is outcome


def test_errors_are_counted_per_kind_of_prediction_with_the_worst_named() -> None:
    records = [
        trial(0, (1010, None), (1010, None), real=1000),
        trial(1, (970, 1001), (950, 990), real=1000),
        trial(2, real=1000),  # changed live, and nothing predicted
    ]
    repeats = [trial(7, real=1000, member=1, repeat=0), trial(8, real=1000, member=2, repeat=0)]
    rows = memory_rows(starts(records, repeats))
    assert rows == [
        ("by the formula", "3", "3.00 %", "-5.00 % (a repeat of trial 1)"),
        ("corrected by an earlier start", "2", "0.55 %", "-1.00 % (a repeat of trial 1)"),
    ]
    assert memory_text(rows) == (
        "Predicted tokens of KV cache: by the formula 3.00 % off in the median of 3 starts, "
        "-5.00 % (a repeat of trial 1) at worst; corrected by an earlier start 0.55 % off in the "
        "median of 2 starts, -1.00 % (a repeat of trial 1) at worst."
    )
    assert memory_text(memory_rows(starts(records[:1], []))).count("start") == 1
    assert memory_text(memory_rows(starts(records[2:], []))) == ""


def test_the_table_of_trials_has_the_tokens_that_were_there_and_those_predicted() -> None:
    assert columns(trial(1, (970, 1001), real=1000)) == {
        "kv_cache_tokens": 1000,
        "kv_formula_tokens": 970,
        "kv_calibrated_tokens": 1001,
    }
    assert columns(trial(1, (970, None), real=1000)) == {
        "kv_cache_tokens": 1000,
        "kv_formula_tokens": 970,
    }


def test_report_markdown_and_table_of_a_study_say_it(tmp_path: Path) -> None:
    scored = replace(trial(0, (1010, None), real=1000), scores=(800.0,))
    results = StudyResults(tmp_path, "s", (OBJECTIVE,), (), (scored,))
    page = write_report(tmp_path / "report.html", results, [], Provenance("s")).read_text()
    assert "Was the memory predicted right?" in page
    assert "+1.00 % (trial 0)" in page
    text = markdown(results, [], Provenance("s"))
    assert "by the formula 1.00 % off in the median of 1 start, +1.00 % (trial 0) at worst" in text
    write_tables(results)
    row = "0,measured,,True,,800.0,0.0,0.0,0.0,0.0,0,1000,1010"
    assert row in (tmp_path / "trials.csv").read_text()


def test_a_study_whose_memory_was_not_predicted_says_nothing_of_it(tmp_path: Path) -> None:
    scored = replace(trial(0), scores=(800.0,))
    results = StudyResults(tmp_path, "s", (OBJECTIVE,), (), (scored,))
    page = write_report(tmp_path / "report.html", results, [], Provenance("s")).read_text()
    assert "Was the memory predicted right?" not in page
    assert "KV cache:" not in markdown(results, [], Provenance("s"))
