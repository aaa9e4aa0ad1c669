"""Which engine arguments a live engine can change, where vLLM keeps them, and what they may be.

Runs inside vLLM's processes: needs the standard library only, and vLLM where a function says so.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Section = Literal["scheduler", "cache", "speculative", "frontend"]


class Refused(Exception):
    """The engine does not take this change; it is as it was."""


class Busy(Refused):
    """The engine still has requests: the same change may be taken later."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Where vLLM keeps an engine argument."""

    section: Section
    field: str
    #: Started with, it is the most that the engine can do: buffers, graphs or pools have its size.
    capped: bool = False


#: Engine argument (vLLM's Python name) -> where it lives. Nothing else is changed live: each of
#: these acts through the scheduler (or the front end) alone, in all versions from 0.24 to 0.33.
ARGUMENTS: dict[str, Argument] = {
    "async_scheduling": Argument("scheduler", "async_scheduling", capped=True),
    "enable_chunked_prefill": Argument("scheduler", "enable_chunked_prefill", capped=True),
    "enable_prefix_caching": Argument("cache", "enable_prefix_caching", capped=True),
    "gpu_memory_utilization": Argument("cache", "gpu_memory_utilization", capped=True),
    "long_prefill_token_threshold": Argument("scheduler", "long_prefill_token_threshold"),
    "long_prefill_token_threshold_adaptive": Argument(
        "scheduler", "long_prefill_token_threshold_adaptive"
    ),
    "max_num_active_seqs": Argument("scheduler", "max_num_active_seqs"),
    "max_num_batched_tokens": Argument("scheduler", "max_num_batched_tokens", capped=True),
    "max_num_seqs": Argument("scheduler", "max_num_seqs", capped=True),
    "num_gpu_blocks_override": Argument("cache", "num_gpu_blocks_override"),
    "prefill_schedule_interval": Argument("scheduler", "prefill_schedule_interval"),
    "scheduler_reserve_full_isl": Argument("scheduler", "scheduler_reserve_full_isl"),
    "scheduling_policy": Argument("scheduler", "policy"),
    "spec_tokens": Argument("speculative", "num_speculative_tokens", capped=True),
    "speculative_config.num_speculative_tokens": Argument(
        "speculative", "num_speculative_tokens", capped=True
    ),
    "stream_interval": Argument("frontend", "stream_interval"),
    "watermark": Argument("scheduler", "watermark"),
}


def section_of(vllm_config: Any, section: Section) -> Any:
    """Return vLLM's configuration object that holds a section's fields, None where it has none."""
    name = {"cache": "cache_config", "speculative": "speculative_config"}.get(section)
    return getattr(vllm_config, name or "scheduler_config")


def value_in(vllm_config: Any, name: str) -> Any:
    """Return an argument's value in a built configuration (as JSON), None where it has none."""
    argument = ARGUMENTS[name]
    value = getattr(section_of(vllm_config, argument.section), argument.field, None)
    return getattr(value, "value", value)  # vLLM writes enums of text by their value


def reasons(vllm_config: Any) -> dict[str, str]:
    """Return argument -> why it cannot be changed live, '' for one that can. Imports vLLM.

    Looks at what the installed version knows and at this configuration; a started engine may have
    more to object.
    """
    whole = _whole_engine(vllm_config)
    return {
        name: _unknown(vllm_config, argument) or whole or _one(name, vllm_config)
        for name, argument in ARGUMENTS.items()
    }


def _unknown(vllm_config: Any, argument: Argument) -> str:
    holder = section_of(vllm_config, argument.section)
    if holder is None:
        return "the engine has no drafter"
    known = {item.name for item in dataclasses.fields(holder)}
    return "" if argument.field in known else "the installed vLLM has no such argument"


def _whole_engine(vllm_config: Any) -> str:
    """Say why no scheduler of this engine can be made anew, '' where it can."""
    events = vllm_config.kv_events_config
    attention = getattr(vllm_config, "attention_config", None)
    obstacles = {
        "several data-parallel engines would have to change as one": (
            vllm_config.parallel_config.data_parallel_size > 1
        ),
        "the KV connector keeps state in the scheduler": vllm_config.kv_transfer_config,
        "the encoder cache connector keeps state in the scheduler": (
            getattr(vllm_config, "ec_transfer_config", None)
        ),
        "the publisher of KV events belongs to the scheduler": (
            events is not None and events.enable_kv_cache_events
        ),
        "the record of routed experts belongs to the scheduler": (
            getattr(vllm_config.model_config, "enable_return_routed_experts", False)
        ),
        "the host pool of sparse attention belongs to the scheduler": (
            getattr(attention, "hisparse_config", None)
        ),
    }
    return next((why for why, present in obstacles.items() if present), "")


def _one(name: str, vllm_config: Any) -> str:
    match name:
        case "async_scheduling":
            return _async_scheduling(vllm_config)
        case "enable_prefix_caching" | "enable_chunked_prefill":
            hybrid = getattr(vllm_config.model_config, "is_hybrid", False)
            return "the layout of recurrent layers' state depends on it" if hybrid else ""
        case "gpu_memory_utilization":
            from vllm.platforms import current_platform

            return "" if current_platform.is_cuda() else "only a CUDA device has its own memory"
        case "spec_tokens" | "speculative_config.num_speculative_tokens":
            table = vllm_config.speculative_config.num_speculative_tokens_per_batch_size
            return "" if table else "start with num_speculative_tokens_per_batch_size to allow it"
        case "stream_interval":
            count = getattr(vllm_config.parallel_config, "_api_process_count", 1)
            return "" if count == 1 else "several API server processes would have to change as one"
        case _:
            return ""


def _async_scheduling(vllm_config: Any) -> str:
    if not getattr(vllm_config, "use_v2_model_runner", False):
        return "the V1 model runner has it built into its buffers"
    if vllm_config.parallel_config.world_size > 1:
        return "worker processes have it built into their output thread"
    if vllm_config.scheduler_config.scheduler_cls is not None:
        return "the scheduler class is a custom one"
    if vllm_config.speculative_config is not None:
        return "not proven together with speculative decoding"
    return ""


def checked(vllm_config: Any, values: Mapping[str, Any]) -> None:
    """Raise Refused for the first value that is unknown, cold, of a wrong type, or too large.

    ``vllm_config`` is the one that the engine was started with.
    """
    known = reasons(vllm_config)
    for name, value in values.items():
        if name not in ARGUMENTS:
            raise Refused(f"{name}: needs a restart")
        if known[name]:
            raise Refused(f"{name}: needs a restart: {known[name]}")
        argument = ARGUMENTS[name]
        hint = _hints(section_of(vllm_config, argument.section)).get(argument.field, Any)
        if not fits(value, hint) or (argument.capped and value is None):
            raise Refused(f"{name}: {value!r} is no {_spelled(hint)}")
        started = value_in(vllm_config, name)
        if argument.capped and value > started:
            raise Refused(
                f"{name}: {value!r} is more than the engine was started with ({started!r})"
            )


def _hints(holder: Any) -> dict[str, Any]:
    types_of = {item.name: item.type for item in dataclasses.fields(holder)}
    if any(isinstance(hint, str) for hint in types_of.values()):
        return typing.get_type_hints(type(holder))
    return types_of


def fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of an annotated type, without any conversion: "8" is no int."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return fits(value, inner[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if hint in (int, float):
        kinds = int if hint is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    return value is None if hint in (None, types.NoneType) else _is_plain(value, hint)


def _is_plain(value: Any, hint: Any) -> bool:
    return hint in (bool, str) and isinstance(value, hint)


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
