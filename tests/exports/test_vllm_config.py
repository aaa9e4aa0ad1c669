from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.config import EngineConfig
from tuner.engines.flags import ONLY_TRUE
from tuner.errors import TunerError
from tuner.exports import verify, write
from tuner.exports.vllm_config import vllm_config
from tuner.presets import Preset

Parse = Callable[[Path], dict[str, Any]]


def preset(env: dict[str, str] | None = None, **args: Any) -> Preset:
    return Preset("balanced", EngineConfig("org/model", args, env or {}), 7, {"m": 1.0})


AWKWARD: dict[str, dict[str, Any]] = {
    "booleans true": {"enable_prefix_caching": True, "async_scheduling": True},
    "booleans false": {"enable_prefix_caching": False, "enable_chunked_prefill": False},
    "false without a no-form": dict.fromkeys(ONLY_TRUE, False),
    "true without a no-form": {"disable_log_stats": True},
    "nested": {
        "compilation_config": {
            "cudagraph_mode": "PIECEWISE",
            "cudagraph_capture_sizes": [1, 2, 4],
            "pass_config": {"fuse_norm_quant": False},
        }
    },
    "speculative": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "words that YAML takes for booleans": {"served_model_name": ["off", "yes", "no", "on"]},
    "words that YAML takes for null or numbers": {"revision": "1e3", "tokenizer": "null"},
    "auto": {"kv_cache_dtype": "auto", "dtype": "auto", "moe_backend": "auto"},
    "zero": {"long_prefill_token_threshold": 0, "watermark": 0.0, "cpu_offload_gb": 0},
    "small and long floats": {"gpu_memory_utilization": 0.8500000000000001, "watermark": 1e-05},
    "whole float": {"gpu_memory_utilization": 1.0, "max_num_batched_tokens": 16384},
    "negative": {"max_logprobs": -1, "seed": -5},
    "lists": {"cudagraph_capture_sizes": [1, 2, 4, 8], "ignore_patterns": ["a b", "*.pt"]},
    "text that the parser keeps": {"optimization_level": 2, "performance_mode": "throughput"},
    "mapping or text": {"hf_overrides": {"a": {"b": None, "c": [1, True]}}, "quantization": "fp8"},
    "quotes and unicode": {"tokenizer": 'it\'s "ö" # not: a comment', "runner": "generate"},
    "none": {"max_model_len": None, "max_num_seqs": 4},
    "dotted": {"compilation_config.cudagraph_mode": "NONE", "max_model_len": 4096},
}


@pytest.mark.parametrize("name", AWKWARD)
def test_every_value_comes_back_through_vllm_s_own_parser(
    name: str, tmp_path: Path, parse: Parse
) -> None:
    [path] = write([preset(**AWKWARD[name])], tmp_path, parse)
    assert path.name == "balanced.yaml"


#: Fields of vLLM's engine arguments that its command line does not offer.
NO_OPTION = {"enable_mm_processor_stats"}


def test_every_engine_flag_comes_back_both_ways(tmp_path: Path, parse: Parse) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text("model: m\n")
    flags = {name for name, value in parse(bare).items() if isinstance(value, bool)}
    names = sorted(flags - NO_OPTION)
    assert len(names) > 30
    for value in (True, False):
        [path] = write([preset(**dict.fromkeys(names, value))], tmp_path, parse)
        read = parse(path)
        assert {name: read[name] for name in names} == dict.fromkeys(names, value)


def test_a_plain_false_would_be_lost(tmp_path: Path, parse: Parse) -> None:
    """The trap that the export avoids: if this fails, vLLM has mended it."""
    path = tmp_path / "x.yaml"
    path.write_text("model: m\nenable-prefix-caching: false\n")
    assert parse(path)["enable_prefix_caching"] is not False


@pytest.mark.parametrize(
    "args",
    [
        {"max_num_seq": 4, "max_num_seqs": 8},
        {"no_such_argument": 1},
        {"ignore_patterns": []},
        {"revision": "--dashes"},
        {"max_num_seqs": "many"},
        {"compilation_config": {"no_such_key": 1}},
    ],
)
def test_what_does_not_come_back_equal_is_not_exported(
    args: dict[str, Any], tmp_path: Path, parse: Parse
) -> None:
    with pytest.raises(TunerError, match="does not survive its export"):
        write([preset(**args)], tmp_path, parse)
    assert list(tmp_path.iterdir()) == []


def test_an_abbreviated_name_is_found_out(tmp_path: Path, parse: Parse) -> None:
    """C15: the command line takes max-num-seq for max-num-seqs, the Python API does not."""
    one = preset(max_num_seq=4)
    [(name, text)] = vllm_config(one)
    path = tmp_path / name
    path.write_text(text)
    [problem] = verify(path, one, parse)
    assert "did you mean 'max-num-seqs'?" in problem


def test_the_file_is_flat_dashed_and_holds_nothing_else() -> None:
    [(_, text)] = vllm_config(preset(max_num_seqs=8, hf_overrides={"a": {"b": 1}}))
    keys = yaml.safe_load(text)
    assert keys == {"model": "org/model", "hf-overrides": '{"a":{"b":1}}', "max-num-seqs": 8}


def test_the_header_shows_a_launch_line_of_two_words_and_the_environment() -> None:
    """C71: ``--config=FILE`` is ignored by vLLM."""
    [(_, text)] = vllm_config(preset(env={"VLLM_X": "a b", "A": "1"}))
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert header[-1] == "#   A=1 VLLM_X='a b' vllm serve --config balanced.yaml"
    assert len(header) <= 3


def test_the_header_says_under_what_the_numbers_hold() -> None:
    conditions = {"model": "org/m", "vllm": "0.32.0", "gpu": "H200", "gpus": 2}
    one = Preset("balanced", EngineConfig("org/m"), 7, {}, conditions=conditions)
    [(_, text)] = vllm_config(one)
    assert "# Holds for model org/m, vLLM 0.32.0, 2 x H200.\n" in text
    assert "# Whether it still does here: tuner export --check balanced.json\n" in text


def test_a_failed_export_leaves_the_old_file(tmp_path: Path) -> None:
    args = {"model": "org/model", "max_num_seqs": 8}
    [path] = write([preset(max_num_seqs=8)], tmp_path, lambda _: args)
    before = path.read_text()
    with pytest.raises(TunerError, match="measured with 9, the file gives 8"):
        write([preset(max_num_seqs=9)], tmp_path, lambda _: args)
    assert path.read_text() == before
