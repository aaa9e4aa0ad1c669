"""What to start an engine with that is to serve many hot configurations, and what to change then.

Arithmetic on arguments only: no vLLM, no engine.

An engine can do less than it was started for, not more: its buffers, CUDA graphs and KV pool have
the size of its start. So it is started at the largest values that will be asked for. A *cold* start
at the same large ``max_num_seqs`` with a smaller ``max_num_active_seqs`` (vLLM 0.32 on) is what a
live ``max_num_seqs`` amounts to: the same buffers and graphs, fewer requests running. A cold start
at the small ``max_num_seqs`` also has fewer graphs, unless
``compilation_config.cudagraph_capture_sizes`` is pinned, which it should be.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.config import Json
from tuner.engines.live.arguments import ARGUMENTS

_SEQS, _TOKENS = "max_num_seqs", "max_num_batched_tokens"
#: Restrict a running engine, and so are not part of its start.
_LEFT_OUT = ("max_num_active_seqs",)
_POOL = "num_gpu_blocks_override"


def is_sized(name: str) -> bool:
    """Whether an engine's start sets a bound for this argument: buffers, graphs or its KV pool."""
    return name == _POOL or (name in ARGUMENTS and ARGUMENTS[name].capped)


def hot_values(args: Mapping[str, Json], started: Mapping[str, Json]) -> dict[str, Json]:
    """Return argument -> value that makes a live engine run the configuration ``args``.

    ``started`` holds the values of all hot arguments in an engine that was started without them,
    as read back (vLLM's defaults): an argument that ``args`` leaves out goes back to those.
    """
    return {name: value_of(args, name, started[name]) for name in started}


def ceiling(args: Mapping[str, Json], maxima: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments to start with, so that all hot values up to ``maxima`` can follow.

    ``maxima``: hot argument (flat name) -> the largest value that will be asked for; True counts
    as more than False, and None, for the KV pool, as all that memory allows. Where ``args`` asks
    for more, that is kept; arguments without an order (a policy, a threshold) come from ``args``,
    or from ``maxima`` where it has none.
    """
    out = dict(args)
    for name, most in maxima.items():
        if name in _LEFT_OUT:
            out.pop(name, None)
        elif is_sized(name):
            _raise(out, name, most)
        elif name not in out and most is not None:
            out[name] = most
    if _SEQS in maxima and _TOKENS in out and out.get(_SEQS) is not None:
        out[_TOKENS] = max(out[_TOKENS], out[_SEQS])  # vLLM demands it
    return out


def _raise(out: dict[str, Json], name: str, most: Json) -> None:
    head, _, field = name.partition(".")
    if field:
        inner = dict(out.get(head) or {})
        _raise(inner, field, most)
        out[head] = inner
    elif most is None:
        out.pop(name, None)
    else:
        given = out.get(name)
        out[name] = most if given is None else max(given, most)


def value_of(args: Mapping[str, Json], name: str, default: Json = None) -> Json:
    """Return the value of a (possibly dotted) argument, the default where it is left out."""
    at: Json = args
    for part in name.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return default
        at = at[part]
    return at
