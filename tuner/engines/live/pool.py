"""How many KV blocks an engine would have at another size. Runs inside the engine process."""

from __future__ import annotations

import copy
import importlib
import math
from typing import TYPE_CHECKING, Any

from tuner.engines.live.arguments import Refused

if TYPE_CHECKING:
    from tuner.engines.live.rebuild import Started

#: Where vLLM turns memory into blocks: 0.33, and before.
_PLANNERS = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")


def blocks(core: Any, started: Started, cache: Any) -> int:
    """Return the number of KV blocks of a cold start with ``cache``, a changed cache configuration.

    An override decides alone, as in vLLM. Raises Refused where the number is not in the reach of
    this engine: its pool can shrink, down to what one request of full length needs.
    """
    if cache.num_gpu_blocks_override is not None:
        count = int(cache.num_gpu_blocks_override)
    elif started.cache.num_gpu_blocks_override is not None:
        raise Refused("num_gpu_blocks_override: without it the pool may be larger: needs a restart")
    elif (
        cache.gpu_memory_utilization == started.cache.gpu_memory_utilization
        or cache.kv_cache_memory_bytes is not None  # which alone decides, as in vLLM
    ):
        return int(started.blocks)
    else:
        count = _at_share(core, started, cache.gpu_memory_utilization)
    least = least_blocks(core, started)
    if not least <= count <= started.blocks:
        raise Refused(
            f"{count} KV blocks: this engine can have {least} (one request of max_model_len) "
            f"to {started.blocks}"
        )
    return count


def least_blocks(core: Any, started: Started) -> int:
    """Return the blocks that one request of full length needs, with the one that is never used."""
    longest = int(core.vllm_config.model_config.max_model_len)
    groups = started.kv.kv_cache_groups
    sizes = (int(group.kv_cache_spec.block_size) for group in groups)
    return 1 + sum(math.ceil(longest / size) for size in sizes)


def _at_share(core: Any, started: Started, share: float) -> int:
    """Return the blocks at a lower ``gpu_memory_utilization``, by vLLM's own division.

    Raises Refused where that division does not give the number that the engine was started with.
    """
    available = int(core.available_gpu_memory_for_kv_cache)
    if _planned(core, started, available) != started.blocks:
        raise Refused("gpu_memory_utilization: vLLM's planning of the KV pool is not understood")
    (total, *_) = core.model_executor.collective_rpc(total_memory)
    if not total:
        raise Refused("gpu_memory_utilization: the worker does not tell its device's memory")
    before = math.ceil(total * started.cache.gpu_memory_utilization)
    return _planned(core, started, available - (before - math.ceil(total * share)))


def total_memory(worker: Any) -> int:
    """Return the bytes of the worker's device as it saw them at its start, 0 if not known."""
    return int(getattr(getattr(worker, "init_snapshot", None), "total_memory", 0))


def _planned(core: Any, started: Started, available_bytes: int) -> int:
    config = copy.copy(core.vllm_config)
    object.__setattr__(config, "cache_config", copy.copy(started.cache))
    for module in _PLANNERS:
        try:
            planner = importlib.import_module(module).get_kv_cache_config_from_groups
        except (ImportError, AttributeError):
            continue
        groups = started.kv.kv_cache_groups
        return int(planner(config, groups, max(available_bytes, 0)).num_blocks)
    raise Refused("gpu_memory_utilization: vLLM's planning of the KV pool was not found")
