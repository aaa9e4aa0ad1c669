"""The plugin that vLLM loads in its processes (entry point ``vllm.general_plugins``).

It gives EngineCore the methods ``tuner_live_get`` and ``tuner_live_set``, which a front end calls
through ``engine_core.call_utility_async``, and watches over the engine's parent. It costs nothing
while it is not called, and changes neither vLLM's compile hash nor its environment. The variable
VLLM_PLUGINS must not be used to choose it: vLLM hashes that one into its compile cache's key.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping
from typing import Any

from tuner.engines.live import recorder, watchdog
from tuner.engines.live.arguments import ARGUMENTS, Busy, Refused, reasons, value_in
from tuner.engines.live.probe import version_fault

_MARK = "_tuner_live_installed"
_log = logging.getLogger("vllm.tuner")


def register() -> None:
    """Install the plugin in this process; again is harmless. Never raises: vLLM must start."""
    try:
        _install()
    except Exception as error:
        _log.warning("tuner: live changes are off: %s: %s", type(error).__name__, error)


def _install() -> None:
    from vllm.v1.engine.core import EngineCore

    if not getattr(EngineCore, _MARK, False):
        setattr(EngineCore, _MARK, True)
        _watch_from_the_start(EngineCore)
        EngineCore.tuner_live_get = tuner_live_get
        EngineCore.tuner_live_set = tuner_live_set
        recorder.install(EngineCore)
        fault = _version_fault()
        if fault:
            _log.warning("tuner: live changes do not work with this vLLM: %s", fault)
    # A spawned engine process loads its plugins from within EngineCore's constructor.
    watchdog.start()


def _watch_from_the_start(kind: Any) -> None:
    """Start the watchdog in EngineCore's constructor: a forked engine loads no plugins again."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        watchdog.start()
        original(self, *args, **named)

    kind.__init__ = __init__


@functools.cache
def _version_fault() -> str:
    return version_fault()


def tuner_live_get(self: Any) -> dict[str, Any]:
    """Return what can be changed live, the values in effect, and those at the start.

    ``hot``: argument names; ``cold``: name -> why not; ``values`` and ``started``: name -> value;
    ``limits``: what ``values`` can be set to; ``effective``: what the scheduler works with.
    A method of EngineCore.
    """
    try:
        return _state(self)
    except Refused as refused:
        return {"hot": [], "cold": dict.fromkeys(ARGUMENTS, str(refused)), "off": str(refused)}


def _state(core: Any) -> dict[str, Any]:
    from tuner.engines.live import pool, rebuild

    if _version_fault():
        raise Refused(f"live changes do not work with this vLLM: {_version_fault()}")
    live = rebuild.live_of(core)
    scheduler = core.scheduler
    why = reasons(core.vllm_config)
    hot = [name for name, reason in why.items() if not reason]
    return {
        "hot": hot,
        "cold": {name: reason for name, reason in why.items() if reason},
        "started": {name: value_in(core.vllm_config, name) for name in hot},
        "values": {name: _value(scheduler, live, name) for name in hot},
        "limits": {"kv_blocks": [pool.least_blocks(core, live.started), live.started.blocks]},
        "effective": _effective(core),
        "idle": not (scheduler.requests or core.batch_queue),
    }


def _value(scheduler: Any, live: Any, name: str) -> Any:
    """Return a value as the scheduler has it."""
    if ARGUMENTS[name].section != "speculative":
        return value_in(scheduler.vllm_config, name)
    spec = scheduler.vllm_config.speculative_config
    if spec is live.started.speculative:
        return spec.num_speculative_tokens
    return spec.num_speculative_tokens_per_batch_size[0][2]


def _effective(core: Any) -> dict[str, Any]:
    scheduler = core.scheduler
    manager = scheduler.kv_cache_manager
    kind = type(scheduler)
    return {
        "scheduler": f"{kind.__module__}.{kind.__qualname__}",
        "running_max": scheduler.max_num_running_reqs,
        "step_tokens_max": scheduler.max_num_scheduled_tokens,
        "kv_blocks": manager.block_pool.num_gpu_blocks,
        "kv_cache_tokens": manager.block_pool.num_gpu_blocks * scheduler.cache_config.block_size,
        "prefix_caching": bool(manager.enable_caching),
        "hashes_prompts": core.request_block_hasher is not None,
        "policy": scheduler.policy.value,
        "batch_queue_size": core.batch_queue_size,
    }


def tuner_live_set(self: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Change arguments of the idle engine; those not named stay. A method of EngineCore.

    Returns ``tuner_live_get`` with ``ok`` true and the ``seconds`` it took. Where ``ok`` is false,
    there is a ``reason``, ``busy`` is true if waiting may help, and the engine is as it was.
    """
    from tuner.engines.live import rebuild
    from tuner.engines.vllm_errors import message_of

    began = time.perf_counter()
    try:
        if _version_fault():
            raise Refused(f"live changes do not work with this vLLM: {_version_fault()}")
        change = rebuild.prepared(self, values)
    except Busy as busy:
        return {"ok": False, "busy": True, "reason": str(busy)}
    except Refused as refused:
        return {"ok": False, "busy": False, "reason": str(refused)}
    except Exception as error:  # vLLM's own words; the engine has not been touched
        return {"ok": False, "busy": False, "reason": message_of(error)}
    rebuild.commit(self, change)
    return {"ok": True, **_state(self), "seconds": time.perf_counter() - began}
