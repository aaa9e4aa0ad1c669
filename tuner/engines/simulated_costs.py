"""What the simulated engine costs: seconds of a start and of a step, bytes of memory.

A plain roofline of one GPU. A step reads the weights once and computes every token of the batch,
whichever takes longer; then it reads the KV cache of the running sequences, and the host adds its
share:

    step = max(weights / bandwidth, tokens * token_s, launch_s) + kv tokens * kv_bytes / bandwidth
           + step_s + sequences * sequence_s (+ the host's share once more without overlap)

Numbers are those of an 8B model (36 layers, hidden 4096, 32/8 heads) on one H200 with vLLM 0.24;
tests hold the result against what was measured there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.config import Json, digest
from tuner.errors import ConfigRejected

GIB = 2**30
#: What a live simulated engine can change.
HOT = frozenset(
    {
        "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold",
        "scheduling_policy", "enable_prefix_caching", "stream_interval",
    }
)  # fmt: skip
#: What leaves the compiled code as it is: a start that differs only here is a warm one.
WARM = frozenset({*HOT, "gpu_memory_utilization", "max_num_active_seqs", "watermark"})
#: vLLM's defaults for ``vllm serve`` on a large GPU, as far as the model knows the argument.
DEFAULTS: Mapping[str, Json] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "long_prefill_token_threshold": 0,
    "scheduling_policy": "fcfs",
    "enable_prefix_caching": True,
    "stream_interval": 1,
    "async_scheduling": True,
    "enforce_eager": False,
    "gpu_memory_utilization": 0.92,
    "block_size": 16,
    "quantization": None,
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
}
_GRAPHS = "FULL_AND_PIECEWISE"


@dataclass(frozen=True, slots=True)
class SimulatedCosts:
    """The simulated model and device. Seconds and bytes; fp8 fields hold for quantized weights."""

    #: First start of a compile key, and every later one (also without compilation).
    start_s: float = 60.0
    warm_start_s: float = 20.0
    reconfigure_s: float = 0.65
    #: Compute per token (prompt or output).
    prompt_token_s: float = 2.3e-5
    fp8_token_s: float = 1.4e-5
    #: The host's share of a step, and of each running sequence.
    step_s: float = 1.4e-3
    sequence_s: float = 1.8e-5
    #: Quantizing activations, per step.
    fp8_step_s: float = 1.3e-3
    #: The same once more without asynchronous scheduling, which hides it behind the GPU.
    sync_step_s: float = 1.3e-3
    sync_sequence_s: float = 2e-5
    #: Least seconds that launching a step's kernels takes: without graphs, with piecewise graphs.
    eager_launch_s: float = 9e-3
    piecewise_launch_s: float = 5e-3
    #: Communication of a step, per doubling of the tensor parallel size.
    all_reduce_s: float = 7e-4
    bandwidth_bytes_per_s: float = 4.3e12
    memory_bytes: float = 139.8 * GIB
    weight_bytes: float = 15.27 * GIB
    fp8_weight_bytes: float = 8.83 * GIB
    kv_token_bytes: float = 147_456
    #: Activations per token of a step, logits per sequence, and what is always there.
    activation_token_bytes: float = 106_496
    sequence_bytes: float = 1.82e6
    fixed_bytes: float = 1.16 * GIB
    #: Outside of what gpu_memory_utilization counts: the context, and CUDA graphs.
    context_bytes: float = 3.0 * GIB
    graph_bytes: float = 1.4 * GIB
    #: Relative spread of a step's duration (lognormal sigma).
    noise: float = 0.02

    def kv_tokens(self, args: Mapping[str, Json]) -> int:
        """Return the tokens of KV cache. Raises ConfigRejected where there is no room for any."""
        a = {**DEFAULTS, **args}
        split, share = int(a["tensor_parallel_size"]), float(a["gpu_memory_utilization"])
        graphs = 0.0 if a["enforce_eager"] else self.graph_bytes
        if share * self.memory_bytes + self.context_bytes + graphs > self.memory_bytes:
            detail = f"CUDA out of memory beside gpu_memory_utilization={share:g}"
            raise ConfigRejected("out_of_memory", detail)
        room = share * self.memory_bytes - self._weights(a) / split - self.fixed_bytes
        tokens, sequences = int(a["max_num_batched_tokens"]), int(a["max_num_seqs"])
        room -= max(tokens * self.activation_token_bytes, sequences * self.sequence_bytes)
        capacity = int(room / (self._kv_bytes(a) / split))
        if capacity < int(a.get("max_model_len", 1)):
            raise ConfigRejected("out_of_memory", "no available memory for the cache blocks")
        return capacity

    def pace(self, args: Mapping[str, Json]) -> Pace:
        """Return what steps cost with these arguments."""
        a = {**DEFAULTS, **args}
        split = int(a["tensor_parallel_size"])
        fp8 = a["quantization"] is not None
        mixed, decode = self._launch(a)
        wait, each = self.step_s, self.sequence_s
        if fp8:
            wait += self.fp8_step_s
        if not a["async_scheduling"]:
            wait, each = wait + self.sync_step_s, each + self.sync_sequence_s
        return Pace(
            token_s=(self.fp8_token_s if fp8 else self.prompt_token_s) / split,
            weights_s=self._weights(a) / split / self.bandwidth_bytes_per_s,
            # Small blocks are read a little slower.
            kv_s=self._kv_bytes(a) / split / self.bandwidth_bytes_per_s
            * (1 + 0.3 / int(a["block_size"])),
            mixed_launch_s=mixed,
            decode_launch_s=decode,
            step_s=wait + self.all_reduce_s * (split - 1).bit_length(),
            sequence_s=each,
        )  # fmt: skip

    def _launch(self, a: Mapping[str, Json]) -> tuple[float, float]:
        """Return the least seconds of a step with prompt tokens, and of one without."""
        given = a.get("compilation_config")
        mode = given.get("cudagraph_mode", _GRAPHS) if isinstance(given, Mapping) else _GRAPHS
        if a["enforce_eager"] or mode == "NONE":
            return self.eager_launch_s, self.eager_launch_s
        mixed = self.eager_launch_s if mode == "FULL_DECODE_ONLY" else self.piecewise_launch_s
        decode = self.piecewise_launch_s if mode == "PIECEWISE" else 0.0
        return (0.0 if mode == "FULL" else mixed), decode

    def _weights(self, a: Mapping[str, Json]) -> float:
        return self.weight_bytes if a["quantization"] is None else self.fp8_weight_bytes

    def _kv_bytes(self, a: Mapping[str, Json]) -> float:
        return self.kv_token_bytes / (2 if str(a["kv_cache_dtype"]).startswith("fp8") else 1)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step's parts, for one set of arguments."""

    token_s: float
    weights_s: float
    kv_s: float
    mixed_launch_s: float
    decode_launch_s: float
    step_s: float
    sequence_s: float

    def mixed(self, prompt_tokens: int, sequences: int, context: int) -> float:
        """Return the seconds of a step with prompt tokens, beside ``sequences`` that decode."""
        compute = (prompt_tokens + sequences) * self.token_s
        busy = max(self.weights_s, compute, self.mixed_launch_s)
        return busy + context * self.kv_s + self.step_s + sequences * self.sequence_s

    def decode(self, sequences: int) -> float:
        """Return the seconds of a step without prompt tokens, the KV cache's reading aside."""
        busy = max(self.weights_s, sequences * self.token_s, self.decode_launch_s)
        return busy + self.step_s + sequences * self.sequence_s


def check(args: Mapping[str, Json]) -> None:
    """Raise ConfigRejected for what vLLM refuses too: a token budget below max_num_seqs."""
    a = {**DEFAULTS, **args}
    seqs, budget = int(a["max_num_seqs"]), int(a["max_num_batched_tokens"])
    if budget < seqs:
        detail = f"max_num_batched_tokens ({budget}) is less than max_num_seqs ({seqs})"
        raise ConfigRejected("invalid_arguments", detail)


def compile_key(model: str, args: Mapping[str, Json]) -> str:
    """Return a hash of what the compiled code depends on."""
    return digest([model, {name: value for name, value in args.items() if name not in WARM}])
