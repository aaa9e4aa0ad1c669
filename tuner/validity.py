"""Whether the conditions of a preset hold on this machine: its model, device and vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner import machine
from tuner.config import Json, digest
from tuner.errors import Problem, StudyError
from tuner.presets import Preset

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True, slots=True)
class Here:
    """What counts of the machine at hand: its vLLM, its GPUs by name, its processor."""

    vllm: str | None
    gpus: Sequence[str] = ()
    cpu: str | None = None


def here() -> Here:
    """Look at this machine."""
    hardware = machine.hardware()
    return Here(machine.versions().get("vllm"), hardware["gpus"], hardware["cpu"])


def model_digest(model: str, env: Mapping[str, str] = os.environ) -> str:
    """Return 16 hex digits for a model: of its config.json and the names and sizes of its weights.

    For a name on a hub, of the commit that the local cache has of it. '' where there is neither.
    """
    folder = Path(model)
    if folder.is_dir():
        config = folder / "config.json"
        text = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else None
        files = [file for file in folder.iterdir() if file.suffix in _WEIGHTS]
        return digest([text, sorted([file.name, file.stat().st_size] for file in files)])
    home = Path(env.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    commit = home / "hub" / f"models--{model.replace('/', '--')}" / "refs" / "main"
    return digest(commit.read_text(encoding="utf-8").strip()) if commit.is_file() else ""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a preset's conditions: those that no longer hold, and those left unknown."""

    preset: str
    broken: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        return {"preset": self.preset, "broken": self.broken, "unknown": self.unknown}


def check(preset: Preset, at: Here) -> Checked:
    """Hold a preset's conditions against a machine. Traffic cannot be looked at: see ``trace``."""
    conditions = preset.conditions
    found = Checked(preset.name)
    if preset.provenance.get("simulated"):
        found.broken.append("measured on a simulated engine: nothing of it holds anywhere")
        return found
    if not conditions:
        found.unknown.append("its file states no conditions: export it again")
        return found
    _compare(found, "vLLM", _release(conditions.get("vllm")), _release(at.vllm))
    _compare_device(found, conditions, at)
    model = str(conditions.get("model"))
    if Path(model).is_absolute() and not Path(model).is_dir():
        found.broken.append(f"model: there is no {model} here")
    else:
        now = model_digest(model) or None
        _compare(found, f"digest of model {model}", conditions.get("model_digest"), now)
    return found


def _release(version: Json) -> Json:
    """Leave out how it was built: the engine says 0.32.0, its package 0.32.0+cpu."""
    return version.partition("+")[0] if isinstance(version, str) else version


def _compare(found: Checked, what: str, then: Json, now: Json) -> None:
    if then is None or now is None:
        side = "where it was measured" if then is None else "here"
        found.unknown.append(f"{what}: not known {side}")
    elif then != now:
        found.broken.append(f"{what}: measured with {then}, here is {now}")


def _compare_device(found: Checked, conditions: Mapping[str, Json], at: Here) -> None:
    gpu, wanted = conditions.get("gpu"), conditions.get("gpus", 0)
    if gpu is None:
        _compare(found, "processor", conditions.get("cpu"), at.cpu)
        return
    same = sum(name == gpu for name in at.gpus)
    if same < wanted:
        there = ", ".join(at.gpus) or "no GPU"
        found.broken.append(f"GPU: measured on {wanted} x {gpu}, here is {there}")


def sentence(conditions: Mapping[str, Json]) -> str:
    """Return the conditions as one line: model, vLLM, device, workload and trace."""
    model, digest_ = conditions.get("model"), conditions.get("model_digest")
    gpu = conditions.get("gpu")
    device = f"{conditions.get('gpus')} x {gpu}" if gpu else conditions.get("cpu")
    parts = [
        f"model {model}" + (f" ({digest_})" if digest_ else ""),
        f"vLLM {conditions['vllm']}" if conditions.get("vllm") else "",
        str(device or ""),
        f"workload {conditions['workload']}" if conditions.get("workload") else "",
        f"trace {conditions['trace_digest']}" if conditions.get("trace_digest") else "",
    ]
    return ", ".join(part for part in parts if part)


def presets_at(place: Path) -> list[Path]:
    """Return the files that say what presets are: of a results or presets folder, or of one preset.

    A preset may be named by any of its files: balanced.yaml, balanced.k8s.yaml, balanced.json.

    Raises StudyError where there are none.
    """
    if place.is_dir():
        inner = place / "presets"
        files = sorted((inner if inner.is_dir() else place).glob("*.json"))
    else:
        files = [place.with_name(place.name.split(".")[0] + ".json")]
    found = [file for file in files if file.is_file()]
    if not found:
        what = "holds no preset" if place.is_dir() else "has no .json file beside it"
        raise StudyError(Problem(str(place), "", f"{what}: `tuner export` writes them."))
    return found
