"""A configuration in the form that ``vllm serve`` takes: flags, and the file for ``--config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.config import EngineConfig, Json, canonical, nested

#: Flags without a ``--no-`` form: leaving them out means false.
ONLY_TRUE = frozenset(
    {"aggregate_engine_logging", "data_parallel_multi_port_external_lb", "disable_log_stats"}
)


@dataclass(frozen=True, slots=True)
class Flag:
    """One option: its dashed name and its value: True for a bare flag, text, number or list."""

    name: str
    value: bool | int | float | str | list[int | float | str]

    def tokens(self) -> list[str]:
        """Return the option as command-line words."""
        if self.value is True:
            return [f"--{self.name}"]
        if isinstance(self.value, list):
            return [f"--{self.name}", *map(str, self.value)]
        text = str(self.value)
        # A value that looks like an option has to be tied to its name.
        return [f"--{self.name}={text}"] if text.startswith("-") else [f"--{self.name}", text]


def flags(config: EngineConfig) -> list[Flag]:
    """Return the arguments of a configuration in order of their names, without the model.

    ``vllm serve`` drops ``name: false`` of a config file in silence, so false becomes the flag
    ``no-name``. A mapping becomes JSON text; None and what is false anyway are left out.
    """
    args = nested(config.args)
    return [flag for name in sorted(args) if (flag := _flag(name, args[name])) is not None]


def config_text(config: EngineConfig) -> str:
    """Return the text of the file for ``--config``: flat, dashed keys, the model first."""
    import yaml

    keys = {"model": config.model, **{flag.name: flag.value for flag in flags(config)}}
    return yaml.safe_dump(keys, sort_keys=False, allow_unicode=True, width=10_000)


def _flag(name: str, value: Json) -> Flag | None:
    dashed = name.replace("_", "-")
    if value is None:
        return None
    if isinstance(value, bool):
        if value:
            return Flag(dashed, True)
        return None if name in ONLY_TRUE else Flag(f"no-{dashed}", True)
    if isinstance(value, Mapping):
        return Flag(dashed, canonical(value))
    if isinstance(value, list | tuple):
        return Flag(dashed, [_item(item) for item in value])
    return Flag(dashed, value)


def _item(value: Json) -> int | float | str:
    scalar = isinstance(value, int | float | str) and not isinstance(value, bool)
    return value if scalar else canonical(value)
