"""The device that a study is for, beside the one at hand."""

from pathlib import Path

import pytest

from tests.study_case import load
from tuner import machine
from tuner.devices import DEVICES
from tuner.machine import Gpu
from tuner.target import elsewhere, stand_in

VLLM = "{kind: vllm}"


def has(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = [Gpu(i, name, 1, 0, "1") for i, name in enumerate(names)]
    monkeypatch.setattr(machine, "gpus", lambda: found)


def test_without_a_gpu_the_check_stands_in_for_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch)
    assert stand_in(load(tmp_path, engine=VLLM, hardware="h200")) == DEVICES["h200"]
    assert stand_in(load(tmp_path, engine=VLLM)) is None


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": "{kind: simulated}"},
        {"engine": "{kind: vllm, cpus: 2}"},
        {"engine": VLLM, "ray": "{address: 'ray://head:10001'}"},
    ],
    ids=["simulated", "a study of the CPU", "a cluster"],
)
def test_what_does_not_run_on_a_local_gpu_is_checked_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, str]
) -> None:
    has(monkeypatch)
    assert stand_in(load(tmp_path, hardware="h200", **sections)) is None


def test_a_gpu_at_hand_is_asked_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, "NVIDIA L40S")
    spec = load(tmp_path, engine=VLLM, hardware="h200")
    assert stand_in(spec) is None
    assert "for NVIDIA H200, this run is on NVIDIA L40S" in elsewhere(spec)


def test_a_run_on_the_device_of_the_study_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    assert elsewhere(load(tmp_path, engine=VLLM, hardware="h200")) == ""
    assert elsewhere(load(tmp_path, engine=VLLM)) == ""


def test_a_run_on_the_cpu_says_that_the_study_is_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch)
    said = elsewhere(load(tmp_path, engine=VLLM, hardware="{memory_gib: 80, capability: 9.0}"))
    assert said.startswith("the study is for the described GPU, this run is on a CPU")
