"""Exports: a preset as files of some tool. To add one: a function here and a line in the table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.errors import TunerError
from tuner.exports.compose import compose
from tuner.exports.kserve import kserve
from tuner.exports.kubernetes import kubernetes
from tuner.exports.production_stack import production_stack
from tuner.exports.profiles import PROFILES, Profile
from tuner.exports.ray_serve import ray_serve
from tuner.exports.shell import shell
from tuner.exports.vllm_config import File, Parse, verify, vllm_config
from tuner.presets import Preset

__all__ = ["EXPORTERS", "PROFILES", "File", "Parse", "Profile", "verify", "write"]

#: Format -> files (name, text) of a preset, deployed as a profile says.
EXPORTERS: dict[str, Callable[[Preset, Profile], list[File]]] = {
    "vllm": lambda preset, _: vllm_config(preset),
    "shell": lambda preset, _: shell(preset),
    "compose": compose,
    "kubernetes": kubernetes,
    "kserve": kserve,
    "production-stack": production_stack,
    "ray-serve": ray_serve,
}


def write(
    presets: Sequence[Preset],
    directory: Path,
    parse: Parse | None = None,
    kind: str = "vllm",
    profile: Profile = PROFILES["local"],
) -> list[Path]:
    """Write presets in one format, with a provenance file beside each; return the exported files.

    With ``parse`` (vLLM's own parser) every ``vllm`` file is parsed back and compared value by
    value before it takes its place; one that does not come back equal raises TunerError, and a file
    that stood there stays as it was.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for preset in presets:
        for name, text in EXPORTERS[kind](preset, profile):
            check = parse if kind == "vllm" else None
            written.append(_write_checked(directory / name, text, preset, check))
        record = json.dumps(preset.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
        _place(directory / f"{preset.name}.json", record + "\n")
    return written


def _write_checked(path: Path, text: str, preset: Preset, parse: Parse | None) -> Path:
    draft = path.with_name(f".draft-{path.name}")
    draft.write_text(text, encoding="utf-8")
    try:
        wrong = verify(draft, preset, parse) if parse else []
        if wrong:
            raise TunerError(
                f"preset {preset.name} does not survive its export:\n" + "\n".join(wrong),
                "the installed vLLM reads the file otherwise; the shell export may still do",
            )
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _place(path: Path, text: str) -> None:
    draft = path.with_name(f".draft-{path.name}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
