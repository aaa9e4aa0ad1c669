"""``tuner export``: formats, profiles, and whether presets still hold here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.study_case import load
from tuner import machine
from tuner.cli import app
from tuner.config import EngineConfig
from tuner.exports import write
from tuner.presets import Preset
from tuner.runner import run_study
from tuner.surroundings import Surroundings
from tuner.validity import model_digest


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small study on the simulated engine."""
    folder = tmp_path_factory.mktemp("study")
    run_study(load(folder), Surroundings(folder / "results"))
    return folder / "results"


def tuner(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_preset_is_written_for_a_tool_and_a_machine(results: Path, tmp_path: Path) -> None:
    words = ("--format", "kubernetes", "--profile", "production", "--preset", "balanced")
    code, said = tuner("export", results, *words, "--to", tmp_path, "--json")
    assert code == 0
    assert json.loads(said) == {"written": [str(tmp_path / "balanced.k8s.yaml")]}
    assert "ScaledObject" in (tmp_path / "balanced.k8s.yaml").read_text()


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("--format", "helm", "production-stack"),
        ("--profile", "big", "local, production"),
        ("--preset", "best", "max-throughput"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_ones(
    results: Path, tmp_path: Path, option: str, value: str, known: str
) -> None:
    code, said = tuner("export", results, option, value, "--to", tmp_path)
    assert code == 2
    assert known in said


def test_a_simulated_preset_never_holds(results: Path, tmp_path: Path) -> None:
    tuner("export", results, "--to", tmp_path)
    code, said = tuner("export", "--check", tmp_path, "--preset", "balanced")
    assert code == 1
    assert said.startswith("balanced: no longer holds here\n  measured on a simulated engine")


def exported(folder: Path, **conditions: Any) -> Path:
    """Write a preset that was measured on this very machine, but for the given conditions."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    hardware = machine.hardware()
    device = {"gpu": (hardware["gpus"] or [None])[0], "gpus": 0, "cpu": hardware["cpu"]}
    truth = {"model": str(model), "model_digest": model_digest(str(model)), "vllm": None, **device}
    config = EngineConfig(str(model), {"max_num_seqs": 8})
    [path] = write([Preset("balanced", config, 3, {}, conditions={**truth, **conditions})], folder)
    return path


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without vLLM: there its parser cannot be asked."""
    monkeypatch.setattr(machine, "versions", dict)


@pytest.mark.usefixtures("no_vllm")
def test_a_preset_of_this_machine_holds_and_says_what_was_not_looked_at(tmp_path: Path) -> None:
    code, said = tuner("export", "--check", exported(tmp_path))
    assert code == 0
    assert said.splitlines()[0] == "balanced: holds here"
    assert "not looked at: vLLM" in said


@pytest.mark.usefixtures("no_vllm")
def test_every_condition_that_broke_is_listed_for_machines_too(tmp_path: Path) -> None:
    path = exported(tmp_path, gpu="NVIDIA X1", gpus=2, model_digest="0" * 16)
    code, said = tuner("export", "--check", path, "--json")
    assert code == 1
    [one] = json.loads(said)["presets"]
    assert len(one["broken"]) == 2


@pytest.mark.vllm
def test_a_file_that_vllm_reads_otherwise_than_measured_no_longer_holds(tmp_path: Path) -> None:
    path = exported(tmp_path, vllm=machine.versions().get("vllm"))
    assert tuner("export", "--check", path)[0] == 0
    path.write_text(path.read_text().replace("max-num-seqs: 8", "max-num-seqs: 9"))
    code, said = tuner("export", "--check", path)
    assert code == 1
    assert "max_num_seqs: measured with 8, the file gives 9" in said


def test_a_folder_without_presets_is_bad_input(tmp_path: Path) -> None:
    code, said = tuner("export", "--check", tmp_path)
    assert code == 2
    assert "holds no preset" in said
