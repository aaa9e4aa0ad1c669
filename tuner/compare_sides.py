"""The two sides of a comparison: what a name on the command line stands for, and if it still holds.

A side is a trial's number, a preset's name, ``defaults``, or the path of a preset's YAML file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from tuner import machine
from tuner.config import EngineConfig, Json
from tuner.engines.flags import config_text
from tuner.errors import Problem, StudyError
from tuner.presets import Preset, default_baseline
from tuner.records import Infeasible
from tuner.results import StudyResults
from tuner.study import StudySpec
from tuner.yaml_file import nearest

DEFAULTS = "defaults"
_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration under the name that it was asked for by."""

    name: str
    config: EngineConfig
    #: Of the machine that found it, as far as known: package -> version, and ``gpus``: names.
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Json] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The name as part of a folder's name."""
        name = Path(self.name).stem if self.name.endswith(_FILES) else self.name
        return re.sub(r"[^\w.]+", "-", name).strip("-.") or "side"


def sides(names: Sequence[str], results: StudyResults, spec: StudySpec) -> list[Side]:
    """Return what the names stand for. Raises StudyError for every one that stands for nothing."""
    found: list[Side] = []
    problems: list[Problem] = []
    for name in names:
        try:
            found.append(_side(name, results, spec))
        except StudyError as error:
            problems += error.problems
    if problems:
        raise StudyError(problems)
    return found


def _side(name: str, results: StudyResults, spec: StudySpec) -> Side:
    if name.endswith(_FILES):
        return _of_file(Path(name), spec)
    here = results.provenance()
    config = _stored(name, results, spec)
    return Side(name, replace(config, label=""), here.versions, here.hardware)


def _stored(name: str, results: StudyResults, spec: StudySpec) -> EngineConfig:
    if name == DEFAULTS:
        default = default_baseline(results.records)
        return spec.base if default is None else default.config
    if name.isdigit():
        return _trial(int(name), results)
    presets = {p.name: p.config for p in results.presets(results.provenance())}
    if name not in presets:
        known = [*presets, DEFAULTS]
        what = f"there is no preset {name!r}.{nearest(name, known)} There is: {', '.join(known)}."
        raise StudyError(Problem(str(results.folder), "", f"{what} A number is a trial."))
    return presets[name]


def _trial(number: int, results: StudyResults) -> EngineConfig:
    record = next((r for r in results.records if r.number == number and r.config.model), None)
    if record is None:
        last = max((r.number for r in results.records), default=None)
        there = "it has none yet" if last is None else f"they go up to {last}"
        raise StudyError(Problem(str(results.folder), "", f"there is no trial {number}: {there}."))
    if isinstance(record.outcome, Infeasible):
        why = f"trial {number} can never run: {record.outcome.reason}: {record.outcome.detail}"
        raise StudyError(Problem(str(results.folder), "", why))
    return record.config


def _of_file(path: Path, spec: StudySpec) -> Side:
    """Read a preset's file; the provenance beside it tells the rest while the two agree."""
    try:
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = str(error).partition("\n")[0]
        raise StudyError(Problem(str(path), "", f"cannot be read: {what}")) from None
    if not isinstance(keys, dict) or not isinstance(keys.get("model"), str):
        what = "needs flat keys as `vllm serve --config` takes them, model among them."
        raise StudyError(Problem(str(path), "", what))
    preset = _beside(path)
    if preset is None:
        return Side(
            str(path), EngineConfig(keys["model"], _arguments(keys, path), dict(spec.base.env))
        )
    config = replace(preset.config, label="")
    if yaml.safe_load(config_text(config)) != keys:  # someone has edited the file
        config = replace(config, model=keys["model"], args=_arguments(keys, path))
    whence = preset.provenance
    return Side(str(path), config, whence.get("versions", {}), whence.get("hardware", {}))


def _beside(path: Path) -> Preset | None:
    try:
        return Preset.from_json(json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _arguments(keys: Mapping[str, Json], path: Path) -> dict[str, Json]:
    """Return a file's keys as engine arguments: ``engines.flags`` the other way round.

    Raises StudyError for what looks like JSON and is none.
    """
    args: dict[str, Json] = {}
    for key, value in keys.items():
        name = str(key).replace("-", "_")
        if name.startswith("no_") and value is True:
            args[name.removeprefix("no_")] = False
        elif isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                args[name] = json.loads(value)
            except ValueError as error:
                raise StudyError(Problem(str(path), str(key), f"not JSON: {error}")) from None
        elif name != "model":
            args[name] = value
    return args


def drift(side: Side) -> list[str]:
    """Return how the place where a side was found differs from this one; nothing if unknown."""
    said: list[str] = []
    was, now = side.versions.get("vllm"), machine.versions().get("vllm")
    if was and now and _release(was) != _release(now):
        said.append(f"{side.name} was found with vLLM {was}; {now} is installed here")
    gpus = [gpu.name for gpu in machine.gpus()]
    before = side.hardware.get("gpus")
    if before is not None and set(before) != set(gpus):
        there, here = (", ".join(sorted(set(names))) or "no GPU" for names in (before, gpus))
        said.append(f"{side.name} was found on {there}; here: {here}")
    return said


def _release(version: str) -> str:
    """Return a version without its build ("0.32.0+cpu")."""
    return version.partition("+")[0]
