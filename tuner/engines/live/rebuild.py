"""Giving an idle engine a new scheduler, made by vLLM's own constructors. Runs inside EngineCore.

Everything that can fail is made before the engine is touched. The model runner (weights, compiled
code, graphs, KV memory) is not: it keeps the configuration that it was started with.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.engines.live import pool
from tuner.engines.live.arguments import ARGUMENTS, Busy, Refused, checked
from tuner.engines.live.probe import engine_fault

_KEPT_AS = "_tuner_live"


@dataclass(frozen=True, slots=True)
class Started:
    """What an engine was started with; copies, because vLLM shares its objects with the worker."""

    scheduler: Any
    cache: Any
    speculative: Any
    #: The scheduler's own KV cache configuration, and its number of blocks.
    kv: Any
    blocks: int
    hasher: Callable[..., Any] | None
    kind: type
    #: Whether vLLM itself derived max_num_scheduled_tokens (from a drafter's needs).
    tokens_derived: bool


@dataclass(slots=True)
class Live:
    """The live side of one engine."""

    started: Started
    #: Argument -> value, of all that was changed since the start.
    changed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A new scheduler with all that belongs to it, not in use yet."""

    values: dict[str, Any]
    scheduler: Any
    hasher: Callable[..., Any] | None
    concurrent_batches: int


def live_of(core: Any) -> Live:
    """Return the live side of an engine; the first call notes what it was started with.

    Raises Refused where the engine is not built the way that is relied upon.
    """
    live: Live | None = getattr(core, _KEPT_AS, None)
    if live is None:
        fault = engine_fault(core)
        if fault:
            raise Refused(f"live changes do not work with this vLLM: {fault}")
        live = Live(_started(core))
        setattr(core, _KEPT_AS, live)
    return live


def _started(core: Any) -> Started:
    config, scheduler = core.vllm_config, core.scheduler
    return Started(
        scheduler=copy.copy(config.scheduler_config),
        cache=copy.copy(config.cache_config),
        speculative=config.speculative_config,
        kv=scheduler.kv_cache_config,
        blocks=scheduler.kv_cache_config.num_blocks,
        hasher=core.request_block_hasher,
        kind=type(scheduler),
        tokens_derived=_tokens_derived(config),
    )


def _tokens_derived(config: Any) -> bool:
    if config.speculative_config is None:
        return False
    again = _with(config, scheduler_config=copy.copy(config.scheduler_config))
    again.scheduler_config.max_num_scheduled_tokens = None
    again._set_max_num_scheduled_tokens()
    derived = again.scheduler_config.max_num_scheduled_tokens
    return bool(derived == config.scheduler_config.max_num_scheduled_tokens)


def prepared(core: Any, values: Mapping[str, Any]) -> Change:
    """Make the scheduler that ``core`` would have, had it been started with these values, too.

    Arguments that are not named stay as they are. Raises Refused (Busy while requests are there),
    or what vLLM raises where it refuses the configuration; the engine is untouched.
    """
    live = live_of(core)
    checked(core.vllm_config, values)
    if core.scheduler.requests or core.batch_queue:
        raise Busy("the engine is not idle")
    wanted = {**live.changed, **values}
    config = _configuration(core, live.started, wanted)
    return _made(core, live.started, config, wanted)


def _configuration(core: Any, started: Started, wanted: Mapping[str, Any]) -> Any:
    """Return the changed copy of the engine's configuration, validated by vLLM."""
    config = _with(
        core.vllm_config,
        scheduler_config=_scheduler_config(core, started, _of("scheduler", wanted)),
        cache_config=copy.copy(started.cache),
        speculative_config=_speculative_config(core, started, _of("speculative", wanted)),
    )
    for name, value in _of("cache", wanted).items():
        if name == "gpu_memory_utilization" and value <= 0:
            raise Refused(f"gpu_memory_utilization: {value!r} is not above 0")
        setattr(config.cache_config, name, value)
    config.cache_config.num_gpu_blocks = pool.blocks(core, started, config.cache_config)
    if started.tokens_derived:
        config.scheduler_config.max_num_scheduled_tokens = None
        config._set_max_num_scheduled_tokens()
    return config


def _of(section: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return field -> value of the wanted arguments of one section."""
    places = ((ARGUMENTS[name], value) for name, value in wanted.items())
    return {place.field: value for place, value in places if place.section == section}


def _scheduler_config(core: Any, started: Started, changes: Mapping[str, Any]) -> Any:
    """Make a scheduler configuration through vLLM's own validation."""
    model = core.vllm_config.model_config
    old = started.scheduler
    given = {item.name: getattr(old, item.name) for item in dataclasses.fields(old) if item.init}
    return type(old)(
        **{**given, **changes},
        max_model_len=model.max_model_len,
        is_encoder_decoder=model.is_encoder_decoder,
    )


def _speculative_config(core: Any, started: Started, changes: Mapping[str, Any]) -> Any:
    """Change the number of drafted tokens through vLLM's table of tokens by batch size."""
    spec = started.speculative
    count = changes.get("num_speculative_tokens")
    if count is None or count == spec.num_speculative_tokens:
        return spec
    if count < 0:
        raise Refused(f"num_speculative_tokens: {count!r} is below 0")
    table = spec.num_speculative_tokens_per_batch_size
    if not core.vllm_config.model_config.enforce_eager and count not in {row[2] for row in table}:
        raise Refused(
            f"num_speculative_tokens: {count} is not in num_speculative_tokens_per_batch_size, "
            "so the engine has no graphs for it"
        )
    changed = copy.copy(spec)
    changed.num_speculative_tokens_per_batch_size = [(1, started.scheduler.max_num_seqs, count)]
    return changed


def _made(core: Any, started: Started, config: Any, wanted: dict[str, Any]) -> Change:
    """Call the scheduler's constructor as ``EngineCore.__init__`` does."""
    from vllm.v1.engine import core as engine_core

    kv = copy.copy(started.kv)
    kv.num_blocks = config.cache_config.num_gpu_blocks
    block_size, hash_block_size = engine_core.resolve_kv_cache_block_sizes(kv, config)
    if hasattr(kv, "hash_block_size"):  # from 0.32 on the two are also kept there
        kv.hash_block_size = hash_block_size
        kv.cache_hit_alignment_tokens = engine_core.resolve_cache_hit_alignment_tokens(
            kv, config, block_size, hash_block_size
        )
    scheduler = _kind(started, config)(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=core.structured_output_manager,
        include_finished_set=core.scheduler.finished_req_ids_dict is not None,
        log_stats=core.log_stats,
        block_size=block_size,
        hash_block_size=hash_block_size,
    )
    hasher = _hasher(started, config, hash_block_size)
    return Change(wanted, scheduler, hasher, config.max_concurrent_batches)


def _kind(started: Started, config: Any) -> type:
    """Return the class that vLLM chooses; it is another one where async scheduling changes."""
    if config.scheduler_config.async_scheduling == started.scheduler.async_scheduling:
        return started.kind
    kind: type = config.scheduler_config.get_scheduler_cls()
    return kind


def _hasher(started: Started, config: Any, hash_block_size: int) -> Callable[..., Any] | None:
    """Return the hasher of prompt blocks: none without prefix caching, so that it costs nothing."""
    if not config.cache_config.enable_prefix_caching:
        return None
    if started.hasher is not None:
        return started.hasher
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    more = getattr(config, "num_hash_lookahead_tokens", None)  # from 0.33 on
    extra = () if more is None else (more,)
    hasher: Callable[..., Any] = get_request_block_hasher(hash_block_size, function, *extra)
    return hasher


def commit(core: Any, change: Change) -> None:
    """Put the new scheduler in place. The engine is idle, and this is the thread that steps it."""
    old, new = core.scheduler, change.scheduler
    if core.vllm_config.model_config.is_multimodal_model:
        core.reset_encoder_cache()  # the new scheduler does not know what the worker still holds
    # The worker frees the slots of these with the next step.
    new.finished_req_ids |= old.finished_req_ids
    for client, ids in (old.finished_req_ids_dict or {}).items():
        new.finished_req_ids_dict[client] |= ids
    new.current_step = old.current_step
    new.set_pause_state(old.pause_state)
    core.scheduler = new
    core.request_block_hasher = change.hasher
    _queue(core, change)
    live_of(core).changed = change.values
    del old
    _freeze()


def _queue(core: Any, change: Change) -> None:
    """Set what ``EngineCore.__init__`` derives from async scheduling."""
    wanted = change.scheduler.scheduler_config.async_scheduling
    if wanted == core.async_scheduling:
        return
    size = change.concurrent_batches
    core.batch_queue_size = size
    core.batch_queue = deque(maxlen=size) if size > 1 else None
    core.step_fn = core.step if core.batch_queue is None else core.step_with_batch_queue
    core.async_scheduling = wanted


def _freeze() -> None:
    """Free the old block pool and exempt the new one from garbage collection, as a start does."""
    from vllm.utils.gc_utils import freeze_gc_heap

    gc.unfreeze()
    freeze_gc_heap()


def _with(config: Any, **parts: Any) -> Any:
    """Return a shallow copy of a configuration with other parts, not validated again."""
    changed = copy.copy(config)
    for name, part in parts.items():
        object.__setattr__(changed, name, part)
    return changed
