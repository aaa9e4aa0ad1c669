"""What an engine's GPU memory goes to, and how many tokens of KV cache are left: arithmetic only.

vLLM measures instead (a profiling run), minutes into a start. On each GPU

    KV cache = gpu_memory_utilization x total - weights - activations at the peak of profiling

and it refuses to start where this is less than one request of ``max_model_len`` needs. CUDA graphs
are captured later, out of the share that is not asked for (vLLM 0.24's second model runner), or an
estimate of them is subtracted as well (its first one, and later versions): they come with the
calibration. The first real start of each ``Demand.key`` gives its true activations
(``solved_activation``), which hold for the others of that key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.devices import GIB

#: Share of the GPU by which a configuration may miss and still be tried.
MARGIN = 0.02


@dataclass(frozen=True, slots=True)
class Demand:
    """What one configuration asks of each of its GPUs' memory, in bytes; as vLLM resolved it."""

    #: Memory of the GPU; 0 on the CPU engine, whose KV cache is given by ``kv_bytes``.
    total_bytes: int
    utilization: float
    weight_bytes: int
    #: By the formula, without calibration.
    activation_bytes: int
    kv_token_bytes: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    #: KV cache where the configuration sets it outright.
    kv_bytes: int | None = None
    #: num_gpu_blocks_override.
    blocks: int | None = None
    #: What a calibration holds for: model, quantization, parallelism, device, compiled or not, and
    #: how profiling samples.
    key: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What becomes of a ``Demand``."""

    #: Bytes that are left for KV cache; negative where weights and activations do not fit.
    kv_bytes: int
    kv_tokens: int
    #: KV cache of one request of ``max_model_len``, and the one block that vLLM never gives out.
    needed_bytes: int
    activation_bytes: int
    calibrated: bool
    #: True unless it misses by more than the margin.
    possible: bool
    #: Why it is not possible, with the numbers and the way out.
    detail: str = ""

    @property
    def fits(self) -> bool:
        """Whether the prediction itself fits, the margin unused."""
        return self.kv_bytes >= self.needed_bytes


def forecast(demand: Demand, offset_bytes: int | None = None) -> Forecast:
    """Predict a start. ``offset_bytes``: true less predicted activations, where measured."""
    activation = demand.activation_bytes + (offset_bytes or 0)
    page = demand.block_size * demand.kv_token_bytes
    left = int(demand.utilization * demand.total_bytes) - demand.weight_bytes - activation
    kv = left if demand.kv_bytes is None else demand.kv_bytes
    exact = demand.kv_bytes is not None or demand.blocks is not None
    if demand.blocks is not None:
        kv = demand.blocks * page
    needed = (math.ceil(demand.max_model_len / demand.block_size) + 1) * page
    spare = 0 if exact else MARGIN * demand.total_bytes
    misses = kv + spare < needed or _overfull(demand, activation, kv)
    detail = _explained(demand, activation, kv, needed) if misses else ""
    tokens = max(kv, 0) // page * demand.block_size
    return Forecast(kv, tokens, needed, activation, offset_bytes is not None, not misses, detail)


def _overfull(demand: Demand, activation: int, kv: int) -> bool:
    """Whether a KV cache that was asked for outright is more than the GPU has room for."""
    return bool(demand.total_bytes) and (
        demand.weight_bytes + activation + kv > (1 + MARGIN) * demand.total_bytes
    )


def solved_activation(demand: Demand, kv_tokens: int) -> int:
    """Return the activations of a real start that had ``kv_tokens`` of KV cache, in bytes.

    Too large by less than one block, which vLLM rounds off.
    """
    kv = kv_tokens * demand.kv_token_bytes
    return int(demand.utilization * demand.total_bytes) - demand.weight_bytes - kv


def at_once(kv_tokens: int, request_tokens: float, demand: Demand) -> int:
    """Return how many requests of this length the KV cache holds, ``max_num_seqs`` at most.

    Each takes whole blocks; prefixes that requests share make it more.
    """
    blocks = max(1, math.ceil(request_tokens / demand.block_size))
    return min(kv_tokens // demand.block_size // blocks, demand.max_num_seqs)


def _explained(demand: Demand, activation: int, kv: int, needed: int) -> str:
    length = demand.max_model_len
    if not demand.total_bytes or demand.blocks is not None:
        said = "num_gpu_blocks_override" if demand.blocks is not None else "VLLM_CPU_KVCACHE_SPACE"
        longest = _longest(demand, kv)
        return (
            f"{said} gives KV cache for a request of {longest} tokens, one may have {length}: "
            f"lower max_model_len to {longest}, or raise {said}"
        )
    have = _gib(demand.utilization * demand.total_bytes)
    sum_bytes = demand.weight_bytes + activation + needed
    return (
        f"weights {_gib(demand.weight_bytes)} + activations {_gib(activation)} + KV cache of one "
        f"request of {length} tokens {_gib(needed)} = {_gib(sum_bytes)}; gpu_memory_utilization "
        f"{demand.utilization:g} of {_gib(demand.total_bytes)} is {have}: "
        + "; ".join(_ways_out(demand, activation, kv, sum_bytes))
    )


def _ways_out(demand: Demand, activation: int, kv: int, sum_bytes: int) -> list[str]:
    share = math.ceil(100 * sum_bytes / demand.total_bytes) / 100
    longest = _longest(demand, kv)
    ways = []
    if share <= 0.95 and share > demand.utilization:
        ways.append(f"raise gpu_memory_utilization to {share:.2f}")
    if longest > demand.block_size:
        ways.append(f"lower max_model_len to {longest}")
    if demand.kv_bytes is not None and sum_bytes <= demand.total_bytes:
        ways.append("lower kv_cache_memory_bytes")
    return ways or ["quantize the weights, or raise tensor_parallel_size"]


def _longest(demand: Demand, kv: int) -> int:
    """Return the longest ``max_model_len`` that this much KV cache can serve."""
    return max(0, kv // demand.kv_token_bytes // demand.block_size - 1) * demand.block_size


def _gib(amount: float) -> str:
    return f"{amount / GIB:.2f} GiB"
