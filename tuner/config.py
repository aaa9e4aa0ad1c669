"""A vLLM configuration: the thing that is tried, measured, and exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Anything JSON can say. Engine arguments are of this type.
Json = Any

_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def canonical(value: Json) -> str:
    """Return the one JSON text of ``value``: sorted keys, no spaces, no NaN (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Json) -> str:
    """Return 16 hex digits that identify a JSON value on every machine."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def nested(flat: Mapping[str, Json]) -> dict[str, Json]:
    """Turn dotted names into nested mappings: ``{"a.b": 1}`` -> ``{"a": {"b": 1}}``.

    A dotted name is laid into a mapping given for its head, which keeps what else it holds.
    """
    out: dict[str, Json] = {}
    for name in sorted(flat, key=lambda n: n.count(".")):
        *heads, last = name.split(".")
        at = out
        for head in heads:
            inner = at.get(head)
            at[head] = dict(inner) if isinstance(inner, Mapping) else {}
            at = at[head]
        at[last] = flat[name]
    return out


def without(args: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
    """Return the arguments without those of (possibly dotted) names."""
    out: dict[str, Json] = {}
    for name, value in args.items():
        inner = {each.removeprefix(f"{name}.") for each in names if each.startswith(f"{name}.")}
        if name not in names:
            out[name] = without(value, inner) if inner and isinstance(value, Mapping) else value
    return out


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Model, vLLM engine arguments and environment of one engine.

    ``args`` uses vLLM's own Python names (underscores; nested arguments as nested mappings) and is
    to be read only. ``label`` names a configuration of special standing ("baseline: ...") and, like
    everything that does not change the engine, is no part of the key.
    """

    model: str
    args: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    label: str = ""

    @property
    def gpus(self) -> int:
        """GPUs that one engine needs: tensor x pipeline x data parallel size."""
        product = 1
        for name in _PARALLEL:
            product *= int(self.args.get(name, 1))
        return product

    @property
    def key(self) -> str:
        """A stable hash: equal keys mean that vLLM is asked for the same thing."""
        return digest([self.model, dict(self.args), dict(self.env)])

    def cold_key(self, hot: Collection[str]) -> str:
        """Return the hash without the (possibly dotted) arguments that a live engine can change."""
        return digest([self.model, without(self.args, hot), dict(self.env)])

    def with_args(self, flat: Mapping[str, Json]) -> EngineConfig:
        """Return a copy with these (possibly dotted) arguments set; None removes one."""
        merged = nested({**self.args, **flat})
        return replace(self, args={k: v for k, v in merged.items() if v is not None})

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping from which ``EngineConfig(**mapping)`` rebuilds this value."""
        return {
            "model": self.model,
            "args": dict(self.args),
            "env": dict(self.env),
            "label": self.label,
        }
