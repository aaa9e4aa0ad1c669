"""The GPU that a study is for."""

from pathlib import Path

import pytest

from tests.study_case import load
from tuner.devices import DEVICES, GIB, Device
from tuner.errors import StudyError
from tuner.study_hardware import device_of


def device(folder: Path, hardware: str) -> Device | None:
    return device_of(load(folder, hardware=hardware).hardware)


def test_a_gpu_by_its_name(tmp_path: Path) -> None:
    assert device(tmp_path, "h200") == DEVICES["h200"]
    one = device(tmp_path, "{gpu: H200, gpus: 1}")
    assert one is not None
    assert (one.memory_bytes, one.capability, one.gpus) == (int(139.8 * GIB), (9, 0), 1)


@pytest.mark.parametrize("capability", ["9.0", "'9.0'"])
def test_a_described_gpu(tmp_path: Path, capability: str) -> None:
    found = device(tmp_path, f"{{memory_gib: 96, capability: {capability}, gpus: 2}}")
    assert found == Device("the described GPU", 96 * GIB, (9, 0), 2)


def test_what_leaves_memory_or_capability_open_stands_for_no_device(tmp_path: Path) -> None:
    assert device(tmp_path, "{gpu: Some Accelerator, memory_gib: 64}") is None
    assert device_of(None) is None


@pytest.mark.parametrize(
    ("hardware", "words"),
    [
        ("h2000", "'h2000' is no GPU that we know (h200, h100"),
        ("{memory_gib: 80, capability: hopper}", "a compute capability looks like 9.0"),
        ("{memory: 80}", "Did you mean memory_gib?"),
    ],
)
def test_an_unknown_gpu_is_refused_with_the_way_out(
    tmp_path: Path, hardware: str, words: str
) -> None:
    with pytest.raises(StudyError) as caught:
        load(tmp_path, hardware=hardware)
    assert words in str(caught.value)


def test_a_resolved_study_names_the_same_gpu(tmp_path: Path) -> None:
    spec = load(tmp_path, hardware="h200")
    assert "gpu: h200" in spec.resolved()
