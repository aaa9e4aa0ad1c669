"""Does it fit, how many tokens of KV cache, how many requests at once: by the memory model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tuner.calibration import Memory
from tuner.config import EngineConfig, Json
from tuner.job import Workload
from tuner.memory import Demand, Forecast, at_once
from tuner.strategies.plain import KnownGood
from tuner.study import StudySpec

if TYPE_CHECKING:
    from tuner.engines.vllm_check import Verdict

#: Which request of the workload the numbers of requests at once are for.
SIZES = ("mean", "p99")


def request_tokens(workload: Workload) -> dict[str, float]:
    """Return tokens (prompt and output) per request: mean, P99 and most; {} without requests."""
    trace = workload.trace
    if not len(trace):
        return {}
    totals = trace.prompt_tokens.astype("int64") + trace.output_tokens
    return {
        "mean": float(np.mean(totals)),
        "p99": float(np.percentile(totals, 99)),
        "longest": float(totals.max()),
    }


def answers(
    spec: StudySpec,
    workload: Workload,
    memory: Memory,
    known: Sequence[KnownGood],
    startable: Iterable[EngineConfig],
) -> dict[str, Json]:
    """Return the answers for each known configuration, and their range over the space.

    ``startable``: configurations of the space that nothing speaks against.
    """
    sizes = request_tokens(workload)
    configs = [(one.label, spec.base.with_args(one.arguments)) for one in known]
    told = [_of(label, memory.ask(config), memory, sizes) for label, config in configs]
    over = [_of("", memory.ask(config), memory, sizes) for config in startable]
    return {
        "request_tokens": sizes,
        "configurations": told,
        "space": _ranges([one for one in over if "kv_cache_tokens" in one]),
    }


def _of(label: str, verdict: Verdict, memory: Memory, sizes: dict[str, float]) -> dict[str, Json]:
    demand, found = verdict.demand, memory.forecast(verdict.demand)
    if demand is None or found is None:
        return {"label": label, "not_modelled": verdict.not_modelled or verdict.detail}
    return {
        "label": label,
        "attention": verdict.attention,
        "fit": _fit(found),
        "detail": found.detail,
        "calibrated": found.calibrated,
        "gpu_bytes": demand.total_bytes,
        "weight_bytes": demand.weight_bytes,
        "activation_bytes": found.activation_bytes,
        "kv_cache_bytes": max(found.kv_bytes, 0),
        "kv_cache_tokens": found.kv_tokens,
        "requests_at_once": _at_once(found, demand, sizes),
    }


def _fit(found: Forecast) -> str:
    if found.fits:
        return "fits"
    return "near the limit" if found.possible else "does not fit"


def _at_once(found: Forecast, demand: Demand, sizes: dict[str, float]) -> dict[str, int]:
    return {size: at_once(found.kv_tokens, sizes[size], demand) for size in SIZES if size in sizes}


def _ranges(told: Sequence[dict[str, Json]]) -> dict[str, Json]:
    if not told:
        return {}
    tokens = [one["kv_cache_tokens"] for one in told]
    out: dict[str, Json] = {"kv_cache_tokens": [min(tokens), max(tokens)]}
    for size in SIZES:
        counts = [one["requests_at_once"].get(size) for one in told]
        if None not in counts:
            out[f"requests_at_once.{size}"] = [min(counts), max(counts)]
    return out
