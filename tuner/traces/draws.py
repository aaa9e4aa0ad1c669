"""Token counts from a seeded generator."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.config import Json

Rng = np.random.Generator
#: The 99 % point of the standard normal distribution.
_Z99 = 2.3263478740408408


def one_of(
    what: str, spec: Json, table: Mapping[str, Callable[..., Any]]
) -> tuple[str, dict[str, Any]]:
    """Return (name, parameters) of ``"name"`` or ``{"name": {...}}``; ValueError for another."""
    if isinstance(spec, str):
        spec = {spec: {}}
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise ValueError(f"{what}: expected one of {', '.join(table)}, found {spec!r}")
    name, parameters = next(iter(spec.items()))
    parameters = dict(parameters or {})
    if name not in table:
        near = difflib.get_close_matches(str(name), table, 1)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(table)}"
        raise ValueError(f"{what}: no {name!r}; {guess}")
    known = set(inspect.signature(table[name]).parameters)
    unknown = sorted(set(parameters) - known)
    if unknown:
        raise ValueError(f"{what}.{name}: no parameter {', '.join(unknown)}")
    return str(name), parameters


def lengths(rng: Rng, prompt: Json, output: Json, count: int) -> tuple[Any, Any]:
    """Return prompt and output tokens of ``count`` requests (int64, at least 1).

    Two specifications that take the lengths of the same trace draw its rows, so the correlation of
    prompt and output stays.
    """
    if isinstance(prompt, Mapping) and "empirical" in prompt and prompt == output:
        trace = _trace(**prompt["empirical"])
        rows = rng.integers(0, len(trace), count)
        return _whole(trace.prompt_tokens[rows]), _whole(trace.output_tokens[rows])
    return _drawn(rng, "prompt_tokens", prompt, count), _drawn(rng, "output_tokens", output, count)


def _drawn(rng: Rng, what: str, spec: Json, count: int) -> Any:
    if isinstance(spec, int):
        if spec < 1:
            raise ValueError(f"{what}: must be at least 1")
        return np.full(count, spec, np.int64)
    name, parameters = one_of(what, spec, _TABLE)
    if name == "empirical":
        trace = _trace(**parameters)
        return _whole(rng.choice(getattr(trace, what), count))
    return _whole(_TABLE[name](rng, count, **parameters))


def _whole(values: Any) -> Any:
    return np.maximum(np.rint(values), 1).astype(np.int64)


def lognormal(
    rng: Rng, count: int, median: float, p99: float, min: float = 1, max: float = 131_072
) -> Any:
    """The usual shape of prompt and output lengths: clipped to [min, max]."""
    if not 0 < median <= p99:
        raise ValueError("lognormal needs 0 < median <= p99")
    sigma = np.log(p99 / median) / _Z99
    return np.clip(rng.lognormal(np.log(median), sigma, count), min, max)


def uniform(rng: Rng, count: int, min: int, max: int) -> Any:
    """Every whole number of [min, max] alike."""
    return rng.integers(min, max, count, endpoint=True)


def _trace(path: str, format: str | None = None) -> Any:
    from tuner import traces

    return traces.read(path, format)


_TABLE: Mapping[str, Callable[..., Any]] = {
    "lognormal": lognormal,
    "uniform": uniform,
    "empirical": _trace,
}
