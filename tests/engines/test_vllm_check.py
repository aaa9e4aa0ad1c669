"""What the installed vLLM says to a configuration, asked in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tuner.config import EngineConfig, Json
from tuner.engines.vllm_check import Checker
from tuner.errors import ConfigRejected, EngineFault, StudyError

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

MODEL = str(Path(__file__).parents[2] / "studies" / "models" / "tiny")


def config(**args: Json) -> EngineConfig:
    return EngineConfig(MODEL, {"load_format": "dummy", **args})


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as checker:
        yield checker


def test_arguments_know_type_choices_default_and_flag(checker: Checker) -> None:
    found = checker.arguments()
    seqs, caching = found["max_num_seqs"], found["enable_prefix_caching"]
    assert (seqs.kind, seqs.optional, seqs.flag, seqs.negatable) == (
        "int",
        True,
        "--max-num-seqs",
        False,
    )
    assert (caching.kind, caching.choices, caching.negatable) == ("bool", (False, True), True)
    assert found["gpu_memory_utilization"].kind == "float"
    assert found["gpu_memory_utilization"].default == pytest.approx(0.92)
    assert "fp8" in (found["kv_cache_dtype"].choices or ())
    assert "PIECEWISE" in (found["compilation_config.cudagraph_mode"].choices or ())
    assert found["speculative_config.num_speculative_tokens"].kind == "int"
    assert not found["disable_log_stats"].negatable
    assert set(checker.performance_modes()) >= {"balanced", "throughput"}
    assert checker.version[0].isdigit()


@pytest.mark.parametrize(
    ("args", "reason", "words"),
    [
        ({"max_num_sequences": 8}, "invalid_arguments", "did you mean 'max_num_seqs'?"),
        # An abbreviation that the command line takes and the Python interface does not.
        ({"max_num_seq": 8}, "invalid_arguments", "has no engine argument 'max_num_seq'"),
        (
            {"speculative_config": {"method": "ngram", "num_spec_tokens": 2}},
            "invalid_arguments",
            "did you mean 'num_speculative_tokens'?",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}},
            "invalid_arguments",
            "num_speculative_tokens: Input should be greater than 0",
        ),
        (
            {"max_num_seqs": 64, "max_num_batched_tokens": 32},
            "invalid_arguments",
            "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)",
        ),
        ({"kv_cache_dtype": "off"}, "invalid_arguments", "Input should be 'auto'"),
        ({"gpu_memory_utilization": 1.5}, "invalid_arguments", "less than or equal to 1"),
        ({"max_model_len": 100_000}, "model_too_long", "User-specified max_model_len (100000)"),
        # Builds a configuration, and dies in the worker.
        ({"block_size": 8}, "unsupported_by_hardware", "No common block size for 8 (CPU_ATTN"),
    ],
)
def test_what_can_never_start_is_refused_in_vllm_s_words(
    checker: Checker, args: dict[str, Json], reason: str, words: str
) -> None:
    verdict = checker.check(config(**args))
    assert (verdict.ok, verdict.reason) == (False, reason)
    assert words in verdict.detail
    assert "pydantic" not in verdict.detail
    assert "input_type" not in verdict.detail


def test_a_model_that_is_not_there_is_refused(checker: Checker) -> None:
    assert checker.check(EngineConfig("/no/such/folder")).reason == "model_not_found"


def test_silently_replaced_values_are_named(checker: Checker) -> None:
    asked = {"mode": 3, "cudagraph_mode": "PIECEWISE"}
    verdict = checker.check(config(compilation_config=asked))
    assert verdict.ok
    assert verdict.changed == {
        "compilation_config.mode": [3, 2],
        "compilation_config.cudagraph_mode": ["PIECEWISE", "NONE"],
    }
    assert verdict.effective["compilation_config.mode"] == 2


def test_every_asked_argument_is_read_back(checker: Checker) -> None:
    asked: dict[str, Json] = {
        "scheduling_policy": "priority",
        "cpu_offload_gb": 1,
        "disable_log_stats": True,
        "attention_backend": "CPU_ATTN",
        "performance_mode": "throughput",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    }
    verdict = checker.check(config(**asked), ["watermark"])
    assert verdict.changed == {}
    got = verdict.effective
    assert got["scheduling_policy"] == "priority"
    assert got["cpu_offload_gb"] == 1
    assert got["disable_log_stats"] is True
    assert got["attention_backend"] == "CPU_ATTN"
    assert got["speculative_config.num_speculative_tokens"] == 2
    assert got["watermark"] == 0.0
    # What the mode means for the others is visible, too.
    assert got["max_num_seqs"] == 2 * checker.check(config()).effective["max_num_seqs"]


def test_defaults_are_those_of_vllm_serve(checker: Checker) -> None:
    got = checker.defaults(config(max_num_seqs=4))
    assert got["max_num_seqs"] == 4
    assert got["max_num_batched_tokens"] == 2048  # the library's own default is 4096
    assert got["enable_prefix_caching"] is True
    assert got["max_model_len"] == 8192
    with pytest.raises(ConfigRejected, match="max_num_batched_tokens"):
        checker.defaults(config(max_num_seqs=64, max_num_batched_tokens=32))


def test_a_check_costs_milliseconds(checker: Checker) -> None:
    checker.check(config())
    took = []
    for seqs in range(10, 20):
        began = time.monotonic()
        assert checker.check(config(max_num_seqs=seqs)).ok
        took.append(time.monotonic() - began)
    assert min(took) < 0.2


def test_variables_of_one_configuration_do_not_reach_the_next(checker: Checker) -> None:
    long = EngineConfig(MODEL, {"max_model_len": 9000}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert checker.check(long).ok
    assert checker.check(config(max_model_len=9000)).reason == "model_too_long"


def parse(checker: Checker, folder: Path, text: str) -> dict[str, Json]:
    file = folder / "preset.yaml"
    file.write_text(text)
    return checker.parse_config_file(file)


def test_a_config_file_is_read_as_vllm_serve_reads_it(checker: Checker, tmp_path: Path) -> None:
    got = parse(
        checker,
        tmp_path,
        f"model: {MODEL}\nmax-num-seqs: 8\nno-enable-prefix-caching: true\nasync-scheduling: true\n"
        "compilation-config: {mode: 3, cudagraph_mode: PIECEWISE}\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 2}\n",
    )
    assert (got["model"], got["max_num_seqs"], got["async_scheduling"]) == (MODEL, 8, True)
    assert got["enable_prefix_caching"] is False
    assert got["compilation_config"]["mode"] == 3
    assert got["compilation_config"]["cudagraph_mode"] == "PIECEWISE"
    assert got["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}


def test_a_false_that_vllm_serve_drops_shows(checker: Checker, tmp_path: Path) -> None:
    got = parse(checker, tmp_path, f"model: {MODEL}\nenable-prefix-caching: false\n")
    assert got["enable_prefix_caching"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seq: 8", "did you mean 'max-num-seqs'?"),
        ("max-num-seqs: many", "invalid int value: 'many'"),
        ("compilation-config: {cudagraph_mod: NONE}", "cudagraph_mod"),
    ],
)
def test_a_file_that_vllm_serve_does_not_load_is_a_study_error(
    checker: Checker, tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(StudyError) as caught:
        parse(checker, tmp_path, f"model: {MODEL}\n{text}\n")
    assert words in str(caught.value)
    assert "preset.yaml" in str(caught.value)


def test_the_caller_never_imports_vllm() -> None:
    code = "import sys, tuner.engines.vllm, tuner.engines.vllm_check; print('vllm' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [p for p in children if "tuner.engines.vllm_check" in command_of(p)]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # gone, or a zombie: it runs no command
        return []


def test_a_hung_checker_is_ended_and_a_dead_one_replaced() -> None:
    before = set(processes())
    with Checker({"VLLM_LOGGING_LEVEL": "ERROR"}, timeout_s=0.01) as hung:
        with pytest.raises(EngineFault, match="checker_hung"):
            hung.check(config())
        assert set(processes()) == before
    with Checker() as checker:
        os.kill(_pid_of(checker), signal.SIGKILL)
        with pytest.raises(EngineFault, match="checker_died"):
            checker.check(config())
    assert set(processes()) == before


def _pid_of(checker: Checker) -> int:
    return checker._started().pid


def test_the_process_ends_with_its_owner() -> None:
    code = (
        "import os, time; from tuner.engines.vllm_check import Checker; "
        "print(Checker()._started().pid, flush=True); os._exit(1)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
    left = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    assert psutil.wait_procs(left, timeout=60)[1] == []
