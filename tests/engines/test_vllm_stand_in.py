"""Configurations checked for a GPU that this machine does not have."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tuner.config import EngineConfig, Json
from tuner.devices import DEVICES, GIB
from tuner.engines.vllm_check import Checker, Verdict
from tuner.engines.vllm_device import VARIABLE, plugin, stand_in_env
from tuner.memory import forecast

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

MODEL = str(Path(__file__).parents[2] / "studies" / "models" / "qwen3-8b")


@pytest.fixture(scope="module")
def h200() -> Iterator[Checker]:
    with Checker({"VLLM_LOGGING_LEVEL": "ERROR", **stand_in_env(DEVICES["h200"])}) as checker:
        yield checker


def check(checker: Checker, **args: Json) -> Verdict:
    return checker.check(EngineConfig(MODEL, {"load_format": "dummy", **args}))


def test_defaults_are_those_of_the_named_gpu_not_of_this_machine(h200: Checker) -> None:
    verdict = check(h200)
    assert (verdict.ok, verdict.reason) == (True, "")
    got = verdict.effective
    assert (got["max_num_seqs"], got["max_num_batched_tokens"]) == (1024, 8192)
    assert got["compilation_config.cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert verdict.attention == "FLASH_ATTN"


@pytest.mark.parametrize(
    ("args", "reason", "words"),
    [
        ({"block_size": 17}, "unsupported_by_hardware", "FLASH_ATTN: [block_size not supported]"),
        ({"block_size": 24}, "unsupported_by_hardware", "FLASHINFER: [block_size not supported]"),
        (
            {"attention_backend": "FLEX_ATTENTION", "kv_cache_dtype": "fp8"},
            "unsupported_by_hardware",
            "kv_cache_dtype not supported",
        ),
        (
            {"attention_backend": "FLASH_ATTN", "dtype": "float32"},
            "unsupported_by_hardware",
            "dtype not supported",
        ),
        ({"attention_backend": "FLASHMLA"}, "unsupported_by_hardware", "non-MLA not supported"),
        ({"tensor_parallel_size": 16}, "too_few_gpus", "needs 16 GPUs, the host has 8"),
    ],
)
def test_what_no_attention_backend_of_the_gpu_takes_is_refused_in_vllm_s_words(
    h200: Checker, args: dict[str, Json], reason: str, words: str
) -> None:
    verdict = check(h200, **args)
    assert (verdict.ok, verdict.reason) == (False, reason)
    assert words in verdict.detail


def test_the_memory_that_a_configuration_asks_for_is_vllm_s_layout_of_it(h200: Checker) -> None:
    plain = check(h200, max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=8192).demand
    assert plain is not None
    assert (plain.total_bytes, plain.kv_token_bytes) == (int(139.80 * GIB), 147_456)
    assert forecast(plain).kv_tokens == pytest.approx(815_056, rel=0.001)
    half, split = check(h200, kv_cache_dtype="fp8").demand, check(h200, tensor_parallel_size=2)
    assert half is not None
    assert half.kv_token_bytes == 73_728
    assert split.demand is not None
    assert split.demand.weight_bytes == pytest.approx(plain.weight_bytes / 2, rel=0.001)
    assert split.demand.key != plain.key
    small = check(h200, gpu_memory_utilization=0.12).demand
    assert small is not None
    assert small.key == plain.key
    assert not forecast(small).possible


def test_vllm_says_which_model_runner_samples_with_how_much_memory(h200: Checker) -> None:
    def activations(env: dict[str, str], **args: Json) -> tuple[float, str]:
        config = EngineConfig(MODEL, {"load_format": "dummy", "max_num_seqs": 1024, **args}, env)
        found = h200.check(config).demand
        assert found is not None
        return found.activation_bytes / GIB, found.key

    first = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    (own, key), (old, old_key) = activations({}), activations(first)
    assert own == pytest.approx(1.55, abs=0.01)  # compiling is the peak
    assert old == pytest.approx(2.36, abs=0.01)  # 14 bytes per row and entry of the vocabulary
    speculating, _ = activations(first, speculative_config=ngram)
    assert speculating == pytest.approx(4.68, abs=0.01)
    assert key != old_key


def test_what_the_arithmetic_does_not_cover_is_named_and_passes(h200: Checker) -> None:
    verdict = check(h200, enable_lora=True)
    assert (verdict.ok, verdict.demand, verdict.not_modelled) == (True, None, "LoRA")


def test_only_a_process_that_names_a_device_stands_in_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert plugin() is None
    (found,) = entry_points(group="vllm.platform_plugins", name="vllm_tuner")
    assert found.load() is plugin


def test_a_device_that_vllm_does_not_take_over_leaves_the_check_undone_and_says_so() -> None:
    hidden = {**stand_in_env(DEVICES["h200"]), "VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}
    code = "from tuner.engines import vllm_device; print(vllm_device.problem())"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **hidden},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "not checked for NVIDIA H200: vLLM did not load our plugin" in said.stdout
