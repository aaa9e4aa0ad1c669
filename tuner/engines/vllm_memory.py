"""What a built configuration asks of GPU memory, read from vLLM's own objects.

Sizes per rank (heads, layers, block size, KV type) are vLLM's; weights and activations are ours
(``tuner.memory_weights``), from the model's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.config import Json, digest
from tuner.devices import known
from tuner.memory import Demand
from tuner.memory_weights import (
    NotModelled,
    Shape,
    activation_bytes,
    kv_token_bytes,
    latent_token_bytes,
    linear_bytes,
    shape_of,
    weight_bytes,
)

#: Ways to speculate that load no second model.
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")


def demand(vllm_config: Any) -> dict[str, Json]:
    """Return a ``Demand`` as a mapping. Raises NotModelled where the arithmetic does not hold."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    _modelled(vllm_config)
    text = model.hf_text_config.to_dict()
    shape = shape_of(text)
    element = _size_of(model.dtype)
    tp, compiled = parallel.tensor_parallel_size, not model.enforce_eager
    linear = linear_bytes(model.quantization, element, *_bits(model))
    total, device = _device()
    if not total and cache.kv_cache_memory_bytes is None and not cache.num_gpu_blocks_override:
        raise NotModelled("the CPU engine without VLLM_CPU_KVCACHE_SPACE")
    sampling = _sampling(vllm_config)
    sizes = [asdict(shape), str(model.dtype), linear]
    ran = [device, total, compiled, sampling]
    found = Demand(
        total_bytes=total,
        utilization=float(cache.gpu_memory_utilization),
        weight_bytes=weight_bytes(shape, linear, element, tp, parallel.pipeline_parallel_size),
        activation_bytes=activation_bytes(
            shape,
            scheduler.max_num_batched_tokens,
            scheduler.max_num_seqs,
            tp,
            compiled=compiled,
            sampling=sampling,
        ),
        kv_token_bytes=_token_bytes(shape, vllm_config),
        block_size=int(cache.block_size),
        max_model_len=int(model.max_model_len),
        max_num_seqs=int(scheduler.max_num_seqs),
        kv_bytes=cache.kv_cache_memory_bytes,
        blocks=cache.num_gpu_blocks_override,
        key=digest([sizes, tp, parallel.pipeline_parallel_size, *ran]),
    )
    return asdict(found)


def _modelled(vllm_config: Any) -> None:
    """Raise NotModelled for what takes memory that the arithmetic does not know."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
    method = getattr(speculative, "method", None)
    outside: Mapping[str, Any] = {
        "a model without attention or with state layers": getattr(model, "is_hybrid", False)
        or getattr(model, "is_attention_free", False),
        "a multimodal model": getattr(model, "is_multimodal_model", False),
        "an encoder": getattr(model, "is_encoder_decoder", False),
        "a sliding window": model.get_sliding_window(),
        "LoRA": vllm_config.lora_config,
        f"speculation by {method}": speculative and method not in _WITHOUT_WEIGHTS,
        "weights offloaded to the host": getattr(cache, "cpu_offload_gb", 0)
        or getattr(_offload(vllm_config), "cpu_offload_gb", 0),
        "experts spread over engines": parallel.enable_expert_parallel
        and parallel.data_parallel_size > 1,
        "context parallelism": getattr(parallel, "decode_context_parallel_size", 1) > 1,
    }
    for what, there in outside.items():
        if there:
            raise NotModelled(what)


def _sampling(vllm_config: Any) -> str:
    """Return which of ``SAMPLING`` the profiling run does; vLLM says which runner it takes."""
    if getattr(vllm_config, "use_v2_model_runner", False):
        return "second runner"
    return "rejection" if vllm_config.speculative_config else "first runner"


def _offload(vllm_config: Any) -> Any:
    return getattr(getattr(vllm_config, "offload_config", None), "uva", None)


def _device() -> tuple[int, str]:
    """Return (memory of one GPU as torch reports it, its name); 0 on the CPU engine.

    The driver's own number is some 0.4 % larger, so a device of our table has the table's.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return 0, str(current_platform.device_type)
    name = str(current_platform.get_device_name())
    listed = known(name)
    total = listed.memory_bytes if listed else int(current_platform.get_device_total_memory())
    return total, name


def _bits(model: Any) -> tuple[int, int]:
    """Return (bits per weight, weights per group) as the checkpoint says, 0 where it does not."""
    said = getattr(model.hf_config, "quantization_config", None) or {}
    said = said if isinstance(said, Mapping) else said.to_dict()
    groups = said.get("config_groups") or {}
    widths = {int((g.get("weights") or {}).get("num_bits") or 0) for g in groups.values()}
    if len(widths) > 1:
        raise NotModelled(f"layers of {' and '.join(map(str, sorted(widths)))} bits")
    weights = next((g.get("weights") or {} for g in groups.values()), {})
    bits = said.get("bits") or said.get("w_bit") or weights.get("num_bits") or 0
    group = said.get("group_size") or said.get("q_group_size") or weights.get("group_size") or 0
    return int(bits), int(group)


def _token_bytes(shape: Shape, vllm_config: Any) -> int:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    layers, element = model.get_num_layers(parallel), _kv_element(vllm_config)
    if shape.latent is not None:
        return latent_token_bytes(layers, shape.latent, element)
    heads = model.get_num_kv_heads(parallel)
    return kv_token_bytes(layers, heads, model.get_head_size(), element)


def _kv_element(vllm_config: Any) -> float:
    name = str(vllm_config.cache_config.cache_dtype)
    if name == "auto":
        return _size_of(vllm_config.model_config.dtype)
    if name.startswith("fp8") and name.count("_") <= 1:
        return 1.0
    if name in ("bfloat16", "float16", "half"):
        return 2.0
    raise NotModelled(f"a KV cache of {name}")


def _size_of(dtype: Any) -> float:
    return float(dtype.itemsize)
