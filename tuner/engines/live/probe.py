"""Whether the installed vLLM is built the way that ``rebuild`` relies on. Imports vLLM when called.

What is private in vLLM may change with any version. A difference switches live changes off, with a
sentence that names it, instead of doing something wrong.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

#: Parameters that every scheduler is made with, as in ``EngineCore.__init__``.
SCHEDULER_PARAMETERS = (
    "vllm_config",
    "kv_cache_config",
    "structured_output_manager",
    "include_finished_set",
    "log_stats",
    "block_size",
    "hash_block_size",
)
_FUNCTIONS = (
    ("vllm.v1.engine.core", "resolve_kv_cache_block_sizes", 2),
    ("vllm.v1.core.kv_cache_utils", "get_request_block_hasher", 2),
    ("vllm.v1.core.kv_cache_utils", "init_none_hash", 1),
    ("vllm.utils.hashing", "get_hash_fn_by_name", 1),
    ("vllm.utils.gc_utils", "freeze_gc_heap", 0),
)
_CORE = (
    "async_scheduling",
    "batch_queue",
    "batch_queue_size",
    "log_stats",
    "model_executor",
    "request_block_hasher",
    "step",
    "step_fn",
    "step_with_batch_queue",
    "structured_output_manager",
    "vllm_config",
)
_SCHEDULER = (
    "cache_config",
    "current_step",
    "finished_req_ids",
    "finished_req_ids_dict",
    "kv_cache_config.kv_cache_groups",
    "kv_cache_config.num_blocks",
    "kv_cache_manager.block_pool.num_gpu_blocks",
    "kv_cache_manager.enable_caching",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "pause_state",
    "policy",
    "requests",
    "scheduler_config",
    "set_pause_state",
    "vllm_config",
)


def version_fault() -> str:
    """Say how the installed vLLM differs from what is relied upon, '' where it does not."""
    for module, name, least in _FUNCTIONS:
        function = getattr(importlib.import_module(module), name, None)
        if function is None:
            return f"{module}.{name} does not exist"
        needed = [item for item in _parameters(function) if item.default is item.empty]
        if len(needed) > least:
            return f"{module}.{name} takes {len(needed)} arguments instead of {least}"
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    if not inspect.isfunction(EngineCore.__init__):
        return "EngineCore has no constructor of its own"
    return scheduler_fault(Scheduler)


def scheduler_fault(kind: type) -> str:
    """Say why a scheduler of this class cannot be made as ``EngineCore`` makes it, '' if it can."""
    parameters = {item.name: item for item in _parameters(kind)}
    if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
        return ""
    for name in SCHEDULER_PARAMETERS:
        if name not in parameters:
            return f"{kind.__name__} takes no {name}"
    for name, item in parameters.items():
        if name not in SCHEDULER_PARAMETERS and item.default is item.empty:
            return f"{kind.__name__} needs {name}, which is unknown here"
    return ""


def engine_fault(core: Any) -> str:
    """Say what a started engine lacks that is relied upon, '' where it has all of it."""
    for name in _CORE:
        if not hasattr(core, name):
            return f"EngineCore has no {name}"
    scheduler = getattr(core, "scheduler", None)
    for path in _SCHEDULER:
        at = scheduler
        for part in path.split("."):
            if not hasattr(at, part):
                return f"the scheduler has no {path}"
            at = getattr(at, part)
    if getattr(scheduler, "aux_output_connector", None) is not None:
        return "the scheduler has an output connector, which keeps state in it"
    return scheduler_fault(type(scheduler))


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
