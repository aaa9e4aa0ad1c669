"""Our configuration in vLLM's terms, and back: what was asked, and what vLLM made of it.

Importing this module is cheap; its functions import vLLM, except for those that say otherwise.
"""

from __future__ import annotations

import copy
import difflib
import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from tuner.config import EngineConfig, Json

#: Arguments that are read back from every engine, asked for or not.
ALWAYS_READ = (
    "async_scheduling",
    "block_size",
    "compilation_config.cudagraph_mode",
    "compilation_config.mode",
    "dtype",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enforce_eager",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "scheduling_policy",
)

# Arguments whose field in vLLM's built configuration has another name, or a name used twice.
_PLACES = {
    "attention_backend": "attention_config.backend",
    "data_parallel_address": "parallel_config.data_parallel_master_ip",
    "device_ids": "parallel_config.assigned_physical_gpu_ids",
    "enable_mamba_cache_stochastic_rounding": "mamba_config.enable_stochastic_rounding",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "limit_mm_per_prompt": "model_config.multimodal_config.limit_per_prompt",
    "lora_target_modules": "lora_config.target_modules",
    "mamba_backend": "mamba_config.backend",
    "mamba_cache_philox_rounds": "mamba_config.stochastic_rounding_philox_rounds",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "scheduling_policy": "scheduler_config.policy",
    "spec_method": "speculative_config.method",
    "spec_model": "speculative_config.model",
    "spec_tokens": "speculative_config.num_speculative_tokens",
}
# Holds whole other configurations, in which a name means something else.
_NOT_SEARCHED = ("speculative_config",)
# Requests that leave the choice to vLLM: another value than this one is no change.
_LEFT_OPEN = (None, "auto", -1)
_ABSENT = object()


def argument_names() -> list[str]:
    """Return the names of all engine arguments of the installed vLLM."""
    from vllm import AsyncEngineArgs

    return [item.name for item in fields(AsyncEngineArgs) if not item.name.startswith("_")]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return 'did you mean ...?' for the nearest known name, '' if none is near. No vLLM."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def unknown_arguments(args: Mapping[str, Json]) -> str:
    """Name every argument that vLLM does not have, with its nearest right name; '' if none.

    Names must be exact: vLLM's command line also takes unambiguous beginnings, its Python
    interface does not, and a preset has to mean the same to both.
    """
    from vllm import AsyncEngineArgs

    hints = {item.name: item.type for item in fields(AsyncEngineArgs)}
    problems = [_unknown("vLLM", "engine argument", name, hints) for name in args.keys() - hints]
    for name, value in args.items():
        inside = nested_class(name, hints.get(name)) if isinstance(value, Mapping) else None
        if inside is not None:
            known = [item.name for item in fields(inside)]
            wrong = [key for key in value if key.replace("-", "_") not in known]
            problems += [_unknown(name, "field", key, known) for key in wrong]
    return ". ".join(sorted(problems))


def _unknown(owner: str, what: str, name: str, known: Iterable[str]) -> str:
    hint = nearest(name.replace("-", "_"), known)
    return f"{owner} has no {what} {name!r}" + (f"; {hint}" if hint else "")


def engine_args(config: EngineConfig) -> Any:
    """Return vLLM's ``AsyncEngineArgs`` for a configuration.

    Sets nothing that was not asked for, but for two things that do not change what is measured:
    no tokenizer (we send token ids), and worker processes instead of Ray workers where there are
    several (inside a placement group vLLM would ask Ray for GPUs that this very trial holds).
    """
    from vllm import AsyncEngineArgs

    args: dict[str, Any] = copy.deepcopy(dict(config.args))
    hints = {item.name: item.type for item in fields(AsyncEngineArgs)}
    for name, value in args.items():
        kind = _config_class(hints.get(name))
        if kind is not None and isinstance(value, Mapping):
            args[name] = kind(**value)
    args["skip_tokenizer_init"] = True
    if config.gpus > 1:
        args.setdefault("distributed_executor_backend", "mp")
    return AsyncEngineArgs(model=config.model, **args)


def built(config: EngineConfig) -> tuple[Any, Any]:
    """Return (AsyncEngineArgs, VllmConfig) as ``vllm serve`` would build them; starts nothing.

    Raises whatever vLLM raises: see ``vllm_errors.refusal``.
    """
    from vllm.usage.usage_lib import UsageContext

    unknown = unknown_arguments(config.args)
    if unknown:
        raise ValueError(unknown)
    args = engine_args(config)
    return args, args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def flat(args: Mapping[str, Json]) -> dict[str, Json]:
    """Turn nested mappings into dotted names: ``{"a": {"b": 1}}`` -> ``{"a.b": 1}``. No vLLM."""
    out: dict[str, Json] = {}
    for name, value in args.items():
        if isinstance(value, Mapping) and value:
            out.update({f"{name}.{inner}": v for inner, v in flat(value).items()})
        else:
            out[name] = value
    return out


def effective(asked: Mapping[str, Json], args: Any, vllm_config: Any) -> dict[str, Json]:
    """Return dotted argument name -> value as in vLLM's built configuration.

    Covers every asked argument and ``ALWAYS_READ``. An argument that vLLM keeps nowhere in its
    configuration (``disable_log_stats``) is read from the built ``AsyncEngineArgs``.
    """
    out: dict[str, Json] = {}
    for name in sorted({*flat(asked), *ALWAYS_READ}):
        value = _look_up(name, args, vllm_config)
        if value is not _ABSENT:
            out[name] = jsonable(value)
    return out


def changed(asked: Mapping[str, Json], got: Mapping[str, Json]) -> dict[str, list[Json]]:
    """Return name -> [asked, got] of the arguments that vLLM silently replaced. No vLLM."""
    return {
        name: [jsonable(want), got[name]]
        for name, want in flat(asked).items()
        if name in got and not _is_left_open(want) and not _same(jsonable(want), got[name])
    }


def jsonable(value: Any) -> Json:
    """Return a JSON value that says the same: enums by number or name, the unknown as text."""
    match value:
        case enum.IntEnum():
            return int(value)
        case enum.Enum():
            # vLLM writes text enums by value ("eager"), others (graph modes, backends) by name.
            return value.value if isinstance(value, str) else value.name
        case None | bool() | int() | float() | str():
            return value
        case _:
            return _jsonable_whole(value)


def _jsonable_whole(value: Any) -> Json:
    match value:
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case set() | frozenset():
            return sorted((jsonable(item) for item in value), key=str)
        case list() | tuple():
            return [jsonable(item) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            shown = (item.name for item in fields(value) if not item.name.startswith("_"))
            return {name: jsonable(getattr(value, name, None)) for name in shown}
        case _:
            return str(value).removeprefix("torch.")


def nested_class(name: str, hint: Any) -> type[Any] | None:
    """Return vLLM's configuration class of a nested argument, None where it has none.

    ``speculative_config`` is annotated as a plain mapping; its class goes by the same name.
    """
    import vllm.config

    by_name = getattr(vllm.config, "".join(map(str.title, name.split("_"))), None)
    if isinstance(by_name, type) and is_dataclass(by_name):
        return by_name
    return _config_class(hint)


def _config_class(hint: Any) -> type[Any] | None:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next((kind for kind in map(_config_class, get_args(hint)) if kind is not None), None)


def _look_up(name: str, args: Any, vllm_config: Any) -> Any:
    head, _, rest = name.partition(".")
    if rest:
        value = _walk(vllm_config, name)
        return value if value is not _ABSENT else _walk(_look_up(head, args, vllm_config), rest)
    if head in _PLACES:
        value = _walk(vllm_config, _PLACES[head])
        if value is not _ABSENT:
            return value
    return next(_search(vllm_config, head), getattr(args, head, _ABSENT))


def _walk(at: Any, path: str) -> Any:
    for part in path.split("."):
        at = at.get(part, _ABSENT) if isinstance(at, Mapping) else getattr(at, part, _ABSENT)
        if at is None or at is _ABSENT:
            return at if part == path.rpartition(".")[2] else _ABSENT
    return at


def _search(config: Any, name: str, depth: int = 2) -> Iterator[Any]:
    """Yield the values of fields with this name, the shallowest first, in vLLM's own order."""
    inner = []
    for item in fields(config):
        value = getattr(config, item.name, _ABSENT)
        if item.name == name and value is not _ABSENT:
            yield value
        elif item.name not in _NOT_SEARCHED and is_dataclass(value):
            inner.append(value)
    if depth:
        for value in inner:
            yield from _search(value, name, depth - 1)


def _is_left_open(want: Json) -> bool:
    return want in _LEFT_OPEN if not isinstance(want, list | dict) else not want


def _same(want: Json, got: Json) -> bool:
    if isinstance(want, str) and isinstance(got, str):
        return want.lower() == got.lower()
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and sorted(map(str, want)) == sorted(map(str, got))
    return bool(want == got)
