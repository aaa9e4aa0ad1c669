"""What a change of an argument costs on the installed vLLM. Imports vLLM when called.

For a process without an engine: the one that checks configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tuner.config import EngineConfig, Json
from tuner.engines.live.arguments import reasons
from tuner.engines.live.probe import version_fault

#: ``hot``: changed on the live engine (a second). ``warm``: a start that finds its compiled code
#: (same compile hash). ``cold``: a start that compiles.
Temperature = Literal["hot", "warm", "cold"]


def of(values: Mapping[str, Sequence[Json]], base: EngineConfig) -> dict[str, Temperature]:
    """Return the temperature of each (possibly dotted) argument of ``values``.

    ``values`` holds at least two values of each argument; None stands for leaving it out. An
    argument is hot where an engine of ``base`` can change it live, warm where all configurations
    with these values that vLLM accepts, two at least, have one compile hash, and cold otherwise.
    10 to 20 ms for each value. Builds configurations only: no GPU, no engine.
    """
    hot = hot_in(base, values)
    return {name: "hot" if name in hot else _warm(base, name, values[name]) for name in values}


def hot_in(base: EngineConfig, values: Mapping[str, Sequence[Json]]) -> frozenset[str]:
    """Return the arguments that an engine of ``base`` can change live, none where that is unknown.

    Where ``base`` cannot be built as it is, the first of ``values`` complete it.
    """
    if version_fault():
        return frozenset()
    first = {name: options[0] for name, options in values.items() if options}
    built = _built(base) or _built(base.with_args(first))
    if built is None:
        return frozenset()
    return frozenset(name for name, reason in reasons(built).items() if not reason)


def _warm(base: EngineConfig, name: str, options: Sequence[Json]) -> Temperature:
    built = [_built(base.with_args({name: value})) for value in options]
    hashes = [one.compute_hash() for one in built if one is not None]
    return "warm" if len(hashes) >= 2 and len(set(hashes)) == 1 else "cold"


def _built(config: EngineConfig) -> Any:
    """Return vLLM's configuration, None where vLLM refuses it."""
    from tuner.engines import vllm_args

    try:
        return vllm_args.built(config)[1]
    except Exception:
        return None
