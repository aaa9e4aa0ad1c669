"""What really runs: an engine's facts, from the configuration that vLLM built."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

from tuner.config import EngineConfig, Json
from tuner.engines import vllm_args


def facts_of(config: EngineConfig, args: Any, vllm_config: Any) -> dict[str, Json]:
    """Return the facts of a running engine, without those about its start."""
    import vllm

    model, cache = vllm_config.model_config, vllm_config.cache_config
    got = vllm_args.effective(config.args, args, vllm_config)
    facts: dict[str, Json] = {
        "version": vllm.__version__,
        "device": _device(),
        "vocab_size": model.get_vocab_size(),
        "model": {"dtype": got.get("dtype"), "max_model_len": model.max_model_len},
        "effective": got,
        "changed": vllm_args.changed(config.args, got),
    }
    if cache.num_gpu_blocks and cache.block_size:
        facts["kv_cache_tokens"] = cache.num_gpu_blocks * cache.block_size
    return facts


def _device() -> str:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.get_device_name())
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
