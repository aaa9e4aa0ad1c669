from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.config import EngineConfig
from tuner.exports import EXPORTERS, write
from tuner.exports.vllm_config import _same
from tuner.presets import Preset

ARGS = {
    "enable_prefix_caching": False,
    "hf_overrides": {"a": "it's $HOME $(NAME)"},
    "cudagraph_capture_sizes": [1, 2],
    "max_num_seqs": 8,
    "seed": -1,
    "tensor_parallel_size": 2,
}


def preset(model: str = "org/model", **provenance: Any) -> Preset:
    config = EngineConfig(model, ARGS, {"VLLM_X": "a $b"})
    return Preset("low-latency", config, 3, {"m": 1.0}, provenance=provenance)


def only(kind: str, one: Preset) -> str:
    [(_, text)] = EXPORTERS[kind](one)
    return text


def test_the_shell_line_is_what_vllm_parses_to_the_same_values(parse_words: Any) -> None:
    script = only("shell", preset())
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    assert words[:4] == ["exec", "env", "VLLM_X=a $b", "vllm"]
    parsed = parse_words(words[4:])
    assert parsed["model_tag"] == "org/model"
    assert all(_same(value, parsed[name]) for name, value in ARGS.items())


def test_the_shell_script_is_valid_shell(tmp_path: Path) -> None:
    [path] = write([preset()], tmp_path, kind="shell")
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_compose_reserves_gpus_and_checks_health(parse_words: Any) -> None:
    text = only("compose", preset(versions={"vllm": "0.32.0"}, hardware={"gpus": ["H200"]}))
    service = yaml.safe_load(text)["services"]["vllm"]
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["count"], device["capabilities"]) == (2, ["gpu"])
    assert service["healthcheck"]["start_period"] == "900s"
    assert service["environment"] == {"VLLM_X": "a $$b"}
    words = [word.replace("$$", "$") for word in service["command"]]
    assert parse_words(["serve", *words])["hf_overrides"] == ARGS["hf_overrides"]


def test_compose_of_a_cpu_preset_reserves_no_gpu_and_mounts_a_local_model() -> None:
    text = only("compose", preset("/models/tiny", hardware={"gpus": []}, start_s=8.0))
    service = yaml.safe_load(text)["services"]["vllm"]
    assert "deploy" not in service
    assert "cpu" in service["image"]
    assert service["volumes"] == ["/models/tiny:/models/tiny:ro"]
    assert service["healthcheck"]["start_period"] == "300s"


def test_kubernetes_has_probes_resources_and_shared_memory(parse_words: Any) -> None:
    deployment, service = yaml.safe_load_all(only("kubernetes", preset(start_s=70.0)))
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert container["startupProbe"]["failureThreshold"] * 10 == 350
    assert {v["name"] for v in pod["spec"]["volumes"]} == {"shm", "cache"}
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    words = [word.replace("$$(", "$(") for word in container["args"]]
    assert parse_words(["serve", *words])["hf_overrides"] == ARGS["hf_overrides"]


@pytest.mark.parametrize("kind", EXPORTERS)
def test_every_format_has_its_provenance_beside_it(kind: str, tmp_path: Path) -> None:
    [path] = write([preset(study="s")], tmp_path, kind=kind)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "low-latency.json"])
