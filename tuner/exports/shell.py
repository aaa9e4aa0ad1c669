"""One command line that starts a preset."""

from __future__ import annotations

import shlex

from tuner.engines.flags import flags
from tuner.exports.vllm_config import File, environment, holds
from tuner.presets import Preset


def command(preset: Preset) -> list[str]:
    """Return ``vllm serve MODEL --option value ...`` as words, without the environment."""
    words = ["vllm", "serve", preset.config.model]
    return words + [word for flag in flags(preset.config) for word in flag.tokens()]


def shell(preset: Preset) -> list[File]:
    """Return ``<name>.sh``: the environment and the command, one option a line."""
    words = ["vllm", "serve", shlex.quote(preset.config.model)]
    options = [shlex.join(flag.tokens()) for flag in flags(preset.config)]
    start = " ".join(
        ["exec", *(["env", *env] if (env := environment(preset.config)) else []), *words]
    )
    text = " \\\n  ".join([start, *options])
    head = f"#!/bin/sh\n# {preset.name}: trial {preset.trial}\n{holds(preset)}"
    return [(f"{preset.name}.sh", f"{head}{text}\n")]
