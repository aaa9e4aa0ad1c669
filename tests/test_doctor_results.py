"""The three questions of the field, answered from results with a planted cause or none."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.test_blame import points
from tests.test_tune import OBJECTIVES, SPACE, answering, good, loop
from tests.vllm_words import KV_LEN
from tuner.accuracy import Drift
from tuner.cli import app
from tuner.config import EngineConfig, Json
from tuner.doctor_findings import Finding
from tuner.doctor_results import accuracy, examine
from tuner.job import Job
from tuner.records import Cost, Faulted, Infeasible, Measured, Measurement, Outcome, TrialRecord
from tuner.tune import Budget


def record(number: int, point: dict[str, Json], outcome: Outcome) -> TrialRecord:
    scores = (1.0, 1.0) if isinstance(outcome, Measured) else None
    config = EngineConfig("m", point)
    return TrialRecord(number, config, point, outcome, scores, (), Cost(start_s=60))


def measured(median: float = 0.010, tail: float = 0.015, **more: float) -> Measured:
    return Measured(Measurement({"paced.itl.p50": median, "paced.itl.p99": tail, **more}))


def about(findings: list[Finding], words: str) -> Finding:
    found = [one for one in findings if words in one.title]
    assert len(found) == 1, [one.title for one in findings]
    return found[0]


def test_memory_that_is_short_is_blamed_on_its_knob_with_counts_and_the_way_out() -> None:
    records = [
        record(
            n,
            dict(p),
            Infeasible("out_of_memory", KV_LEN) if p["max_model_len"] > 8192 else measured(),
        )
        for n, p in enumerate(points(1))
    ]
    found = about(examine(records), "out_of_memory: ")
    bad = sum(p["max_model_len"] > 8192 for p in points(1))
    assert found.title == f"out_of_memory: {bad} of 60 trials"
    assert f"explained by max_model_len > 8192: {bad} of {bad} trials with it, 0 of {60 - bad}" in (
        found.detail
    )
    assert f"{bad} of them cost an engine start" in found.detail
    assert "lower max_model_len to 4096, which fits" in found.remedy
    assert "keep to max_model_len <= 8192" in found.remedy


def test_failures_without_a_cause_blame_no_knob() -> None:
    random = np.random.default_rng(3)
    records = [
        record(n, dict(p), Faulted("engine_died", "x") if random.random() < 0.3 else measured())
        for n, p in enumerate(points(2))
    ]
    found = about(examine(records), "engine_died")
    assert "no single knob explains it" in found.detail
    assert "keep to" not in found.remedy


def test_trials_that_failed_otherwise_do_not_count_as_good() -> None:
    """A value that always fails early must not look innocent of what comes later."""
    records = [
        record(
            n,
            dict(p),
            Infeasible("invalid_arguments", "x")
            if p["enforce_eager"]
            else Infeasible("out_of_memory", "y")
            if p["max_num_seqs"] > 128
            else measured(),
        )
        for n, p in enumerate(points(3, 120))
    ]
    found = about(examine(records), "out_of_memory")
    assert "explained by max_num_seqs > 128" in found.detail
    assert "enforce_eager" not in found.detail


def test_jitter_is_blamed_on_its_knob() -> None:
    records = [
        record(n, dict(p), measured(tail=0.2 if p["max_num_seqs"] > 128 else 0.012))
        for n, p in enumerate(points(4))
    ]
    found = about(examine(records), "latency jitters")
    assert "explained by max_num_seqs > 128: 20.0 times" in found.detail
    assert found.remedy.startswith("keep to max_num_seqs <= 128")


def test_jitter_without_a_cause_is_repeated_and_tells_of_preemptions() -> None:
    random = np.random.default_rng(5)
    records = [
        record(n, dict(p), measured(tail=random.choice([0.012, 0.2]), **{"paced.preemptions": 3.0}))
        for n, p in enumerate(points(5))
    ]
    found = about(examine(records), "latency jitters")
    assert "no single knob explains it" in found.detail
    assert "preempted for want of KV cache in" in found.detail
    assert "repeats: 3" in found.remedy


def test_even_latency_and_enough_memory_are_said_so() -> None:
    findings = examine([record(n, dict(p), measured()) for n, p in enumerate(points(6))])
    assert {one.level for one in findings} == {"ok"}
    assert about(findings, "latency is even")
    assert about(findings, "no trial ran out of memory")


def quantized(n: int, dtype: str) -> TrialRecord:
    return record(n, {"kv_cache_dtype": dtype, "max_num_seqs": n}, measured())


def drift(worst: float, bound: float | None = 0.1) -> Drift:
    return Drift(worst / 10, worst, 0.9, 0.5, 512, bound)


def test_quantization_that_nobody_scored_is_told() -> None:
    [found] = accuracy([quantized(0, "fp8"), quantized(1, "auto")], {})
    assert found.title.startswith("1 trials change what the model answers (kv_cache_dtype)")
    assert "accuracy was not measured" in found.title
    assert "max_logprob_drift" in found.remedy


def test_accuracy_after_quantization_is_told_by_trial_and_knob() -> None:
    records = [quantized(n, "fp8" if n % 2 else "fp8_e5m2") for n in range(20)]
    drifts = {n: drift(0.02 if n % 2 else 0.5 + n / 100) for n in range(20)}
    [found] = accuracy(records, drifts)
    assert found.level == "warn"
    assert "10 miss the bound" in found.title
    assert "trial 2: logprob drift 0.0520 at the mean, 0.5200 at worst, bound 0.1" in found.detail
    assert "explained by kv_cache_dtype = fp8_e5m2" in found.detail
    good_ones = {n: drift(0.02) for n in range(20)}
    assert [one.level for one in accuracy(records, good_ones)] == ["ok"]


def test_without_quantization_there_is_no_question() -> None:
    assert [one.level for one in accuracy([quantized(0, "auto")], {})] == ["ok"]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Results of a study on whose engine many tokens in a batch never fit."""

    def small(job: Job) -> Outcome:
        tokens = job.config.args["max_num_batched_tokens"]
        return Infeasible("out_of_memory", "x") if tokens > 256 else good(job)

    budget = Budget(trials=40)
    running = loop(tmp_path, answering(small), budget=budget)
    assert {o.metric for o in OBJECTIVES}
    assert SPACE.names
    running.run()
    (tmp_path / "study.yaml").write_text("name: s\n")
    return tmp_path


def test_the_command_answers_for_a_folder_of_results(study: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(study), "--json"])
    found = {one["title"].split(":")[0]: one for one in json.loads(done.output)}
    assert "explained by max_num_batched_tokens > 256" in found["out_of_memory"]["detail"]
    table = CliRunner().invoke(app, ["doctor", str(study)])
    assert "keep to max_num_batched_tokens <= 256" in " ".join(table.output.split())
    assert table.exit_code == (1 if found["out_of_memory"]["level"] == "error" else 0)


def test_a_folder_without_results_is_bad_input(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert done.exit_code == 2


def test_no_trial_yet_is_said() -> None:
    assert examine([])[0].level == "warn"


@pytest.mark.parametrize(("high", "smaller"), [(True, True), (False, False)])
def test_a_reason_is_given_only_for_the_side_that_it_speaks_of(high: bool, smaller: bool) -> None:
    records = [
        record(n, dict(p), measured(tail=0.2 if (p["max_num_seqs"] > 128) == high else 0.012))
        for n, p in enumerate(points(4))
    ]
    found = about(examine(records), "latency jitters")
    assert "max_num_seqs" in found.remedy
    assert ("fewer sequences" in found.remedy) is smaller


def test_only_what_changes_answers_is_named() -> None:
    config = {"quantization": "fp8", "kv_cache_dtype": "auto"}
    [found] = accuracy([record(0, dict(config), measured())], {})
    assert "(quantization)" in found.title


def test_without_a_bound_nothing_is_within_it() -> None:
    [found] = accuracy([quantized(0, "fp8")], {0: drift(0.5, None)})
    assert found.level == "ok"
    assert "1 scored, no bound was set" in found.title
