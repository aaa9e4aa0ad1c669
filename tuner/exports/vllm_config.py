"""The file that ``vllm serve --config FILE`` loads, and the check that it says what was tried."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from tuner.config import EngineConfig, Json, nested
from tuner.engines.flags import flags
from tuner.errors import TunerError
from tuner.presets import Preset
from tuner.validity import sentence

#: vLLM's own parser: a config file -> every argument with its parsed value.
Parse = Callable[[Path], Mapping[str, Json]]
File = tuple[str, str]


def vllm_config(preset: Preset) -> list[File]:
    """Return ``<name>.yaml``: flat, dashed keys, nothing inside that vLLM would not know."""
    name = f"{preset.name}.yaml"
    keys = {"model": preset.config.model, **{f.name: f.value for f in flags(preset.config)}}
    body = yaml.safe_dump(keys, sort_keys=False, allow_unicode=True, width=10_000)
    return [(name, _header(preset, name) + body)]


def _header(preset: Preset, name: str) -> str:
    # `--config=FILE` in one word is ignored by vLLM: the line has to show two.
    source = preset.provenance.get("study", "")
    origin = f"trial {preset.trial}" + (f" of study {source}" if source else "")
    start = " ".join([*environment(preset.config), f"vllm serve --config {name}"])
    return (
        f"# {preset.name} ({origin}; numbers in {preset.name}.json).\n"
        f"{holds(preset)}# Start it with:\n#   {start}\n"
    )


def holds(preset: Preset) -> str:
    """Return the comment that says under what a preset holds, '' where that is not known."""
    if not preset.conditions:
        return ""
    check = f"tuner export --check {preset.name}.json"
    return f"# Holds for {sentence(preset.conditions)}.\n# Whether it still does here: {check}\n"


def environment(config: EngineConfig) -> list[str]:
    """Return the configuration's environment as shell words ``NAME=value``, sorted."""
    return [f"{name}={shlex.quote(str(value))}" for name, value in sorted(config.env.items())]


def verify(path: Path, preset: Preset, parse: Parse) -> list[str]:
    """Parse an exported file with vLLM's own parser; return how it differs from the preset."""
    try:
        parsed = parse(path)
    except TunerError as error:
        return [f"vLLM does not load {path.name}: {error}"]
    expected = {"model": preset.config.model, **nested(preset.config.args)}
    return [
        f"{name}: measured with {value!r}, the file gives {parsed.get(name)!r}"
        for name, value in expected.items()
        if value is not None and not _same(value, parsed.get(name))
    ]


def _same(expected: Json, got: Json) -> bool:
    """Compare a value with its parsed form, in which nested configurations carry their defaults."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, Mapping):
        return isinstance(got, Mapping) and all(_same(v, got.get(k)) for k, v in expected.items())
    if isinstance(expected, list | tuple):
        return (
            isinstance(got, list | tuple)
            and len(expected) == len(got)
            and all(map(_same, expected, got))
        )
    if isinstance(expected, float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-12)
    # Some options stay text until the engine is built: 2 and "2" ask for the same.
    return bool(expected == got) or (isinstance(got, str) and str(expected) == got)
