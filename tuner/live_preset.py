"""A preset's file as engine arguments: the file that ``vllm serve --config`` loads, read back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tuner.config import Json
from tuner.engines.vllm_args import nearest
from tuner.errors import Problem, StudyError

#: How a switch is turned off in such a file.
_NOT = "no_"


@dataclass(frozen=True, slots=True)
class LivePreset:
    """What a preset asks of an engine. ``source`` names it in messages."""

    source: str
    model: str
    #: Argument -> value as the file has it: underscored names, not told apart from server options.
    raw: Mapping[str, Json]

    def arguments(self, known: Collection[str]) -> dict[str, Json]:
        """Return engine argument -> value. ``known``: all argument names of the running vLLM.

        ``no-x: true`` becomes ``x: False``, JSON text a mapping. Raises StudyError for every name
        that is unknown.
        """
        found: dict[str, Json] = {}
        problems = []
        for name, value in self.raw.items():
            positive = name.removeprefix(_NOT)
            if name in known:
                found[name] = _unpacked(value)
            elif name.startswith(_NOT) and positive in known and value is True:
                found[positive] = False
            else:
                hint = nearest(name, known)
                fault = "the running vLLM has no such engine argument"
                problems.append(Problem(self.source, name, f"{fault}; {hint}" if hint else fault))
        if problems:
            raise StudyError(problems)
        return found


def parsed(text: str, source: str) -> LivePreset:
    """Read a preset's text. Raises StudyError where it is no mapping of arguments."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise StudyError(Problem(source, "", f"not YAML: {error}")) from error
    if not isinstance(content, Mapping) or not content:
        raise StudyError(Problem(source, "", "expected a mapping of engine arguments"))
    wrong = [key for key in content if not isinstance(key, str)]
    if wrong:
        raise StudyError(
            [Problem(source, str(key), "expected an argument's name") for key in wrong]
        )
    raw = {name.strip().replace("-", "_"): value for name, value in content.items()}
    model = raw.pop("model", "")
    return LivePreset(source, str(model), raw)


def found(path: Path, name: str = "") -> Path:
    """Return the file of a preset: ``path`` itself, or of a results folder the one with a name.

    Raises StudyError where there is none, with the names that there are.
    """
    if not path.is_dir():
        if path.is_file():
            return path
        raise StudyError(Problem(str(path), "", "no such file"))
    # Exports lie beside the presets: balanced.compose.yaml, balanced.k8s.yaml, ...
    stems = sorted(file.stem for file in (path / "presets").glob("*.yaml"))
    names = [stem for stem in stems if stem.rpartition(".")[0] not in stems]
    if name in names:
        return path / "presets" / f"{name}.yaml"
    there = f"it has {', '.join(names)}" if names else "it has none"
    fault = f"no preset {name!r}" if name else "name one of its presets with --preset"
    raise StudyError(Problem(str(path), "--preset", f"{fault}; {there}"))


def _unpacked(value: Json) -> Json:
    """Turn the JSON text of a nested argument into the mapping that it stands for."""
    if not (isinstance(value, str) and value.startswith("{")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
