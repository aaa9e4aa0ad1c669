"""Whether a preset's conditions hold here: each one that does not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.config import EngineConfig
from tuner.presets import Preset
from tuner.validity import Here, check, here, model_digest, presets_at, sentence

HERE = Here("0.32.0", ["NVIDIA H200", "NVIDIA H200"], "Xeon")
THERE = {"model": "org/m", "model_digest": None, "vllm": "0.32.0", "gpu": "NVIDIA H200", "gpus": 2}


def preset(**changes: Any) -> Preset:
    return Preset("balanced", EngineConfig("org/m"), 3, {}, conditions={**THERE, **changes})


def model(folder: Path, text: str = '{"layers": 2}') -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(text)
    return str(folder)


def test_the_same_machine_breaks_nothing(tmp_path: Path) -> None:
    path = model(tmp_path / "m")
    found = check(preset(model=path, model_digest=model_digest(path)), HERE)
    assert (found.broken, found.unknown) == ([], [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vllm": "0.24.0"}, "vLLM: measured with 0.24.0, here is 0.32.0"),
        ({"gpu": "NVIDIA L4"}, "GPU: measured on 2 x NVIDIA L4, here is NVIDIA H200, NVIDIA H200"),
        ({"gpus": 4}, "GPU: measured on 4 x NVIDIA H200"),
        ({"gpu": None, "gpus": 0, "cpu": "EPYC"}, "processor: measured with EPYC, here is Xeon"),
        ({"model": "/nowhere/m"}, "there is no /nowhere/m here"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], said: str) -> None:
    [broken] = check(preset(**changes), HERE).broken
    assert said in broken


def test_a_build_is_no_other_version() -> None:
    found = check(preset(), Here("0.32.0+cpu", HERE.gpus, HERE.cpu))
    assert found.broken == []


def test_everything_that_differs_is_listed() -> None:
    found = check(preset(vllm="0.24.0", gpu="NVIDIA L4", model="/nowhere"), HERE)
    assert len(found.broken) == 3


def test_a_changed_model_is_noticed_and_a_moved_one_is_not(tmp_path: Path) -> None:
    first = model_digest(model(tmp_path / "a"))
    assert model_digest(model(tmp_path / "b")) == first
    assert model_digest(model(tmp_path / "b", '{"layers": 3}')) != first
    (tmp_path / "a" / "model.safetensors").write_bytes(b"12345")
    assert model_digest(str(tmp_path / "a")) != first
    then = preset(model=str(tmp_path / "a"), model_digest=first)
    [broken] = check(then, HERE).broken
    assert broken.startswith("digest of model")


def test_a_model_of_the_hub_is_known_by_its_cached_commit(tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path)}
    assert model_digest("org/m", env) == ""
    reference = tmp_path / "hub" / "models--org--m" / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text("abc")
    assert len(model_digest("org/m", env)) == 16


def test_what_nobody_knows_is_unknown_not_broken() -> None:
    found = check(preset(vllm=None), HERE)
    assert found.broken == []
    assert any(line.startswith("vLLM: not known where") for line in found.unknown)
    assert check(Preset("b", EngineConfig("m"), 1, {}), HERE).unknown


def test_a_simulated_preset_holds_nowhere() -> None:
    one = Preset("b", EngineConfig("m"), 1, {}, provenance={"simulated": True}, conditions=THERE)
    assert "simulated" in check(one, HERE).broken[0]


@pytest.mark.parametrize("name", ["balanced.yaml", "balanced.k8s.yaml", "balanced.json"])
def test_a_preset_is_found_by_any_of_its_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "presets").mkdir()
    record = tmp_path / "presets" / "balanced.json"
    record.write_text("{}")
    assert presets_at(tmp_path / "presets" / name) == [record]
    assert presets_at(tmp_path) == presets_at(tmp_path / "presets") == [record]


def test_this_machine_can_be_looked_at() -> None:
    assert here().cpu


def test_the_sentence_leaves_out_what_is_not_known() -> None:
    told = sentence({**THERE, "trace_digest": "ab", "workload": "chat"})
    assert told == "model org/m, vLLM 0.32.0, 2 x NVIDIA H200, workload chat, trace ab"
