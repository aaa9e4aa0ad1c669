"""Sizes of a model from its config.json: weights, KV cache per token, activations; arithmetic only.

Counts agree with published ones within 0.3 % for dense, mixture-of-experts and latent-attention
models (tests). What is not covered raises NotModelled: nothing is said about it then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.config import Json
from tuner.devices import GIB

#: What a worker holds in profiling besides the tensors below (context, buffers, workspaces). The
#: only number that is fitted, to one start: Qwen3-8B on an H200 with vLLM 0.24, eager.
_RESIDENT_BYTES = 0.27 * GIB
#: How profiling samples -> bytes per row and entry of the vocabulary at its peak, counted in the
#: source of vLLM 0.24 and 0.32: logits of 2 bytes, copies of 4. The second model runner makes one
#: copy at most; the first one also holds probabilities and noise; its rejection sampler goes over
#: two rows of logits per request, and holds copies of both, probabilities, noise and its inverse.
SAMPLING = {"second runner": 2 + 4, "first runner": 2 + 3 * 4, "rejection": 3 * 2 + 6 * 4}
#: Quantization methods with 8 bits per weight of a linear layer.
_ONE_BYTE = ("fp8", "fbgemm_fp8", "int8", "experts_int8", "ptpc_fp8", "modelopt", "tpu_int8")


class NotModelled(ValueError):
    """The arithmetic does not cover this model or setting; the text says what."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek): ranks, and sizes per head."""

    kv_rank: int
    q_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder-only model, in elements. ``intermediate``: of a dense layer's MLP."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    tied: bool = False
    #: Layers with experts; each has ``experts`` of ``expert_intermediate``.
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    latent: Latent | None = None

    @property
    def widest(self) -> int:
        """The MLP's width that a token meets: of all its experts together."""
        routed = self.experts_per_token * self.expert_intermediate + self.shared_intermediate
        return max(self.intermediate if self.moe_layers < self.layers else 0, routed)


def shape_of(config: Mapping[str, Json]) -> Shape:
    """Return the sizes in a ``config.json`` (its text part).

    Raises NotModelled for what is no decoder of gated MLPs with plain, grouped or latent attention.
    """
    _modelled(config)
    try:
        return _shape(config)
    except (KeyError, TypeError) as error:
        raise NotModelled(f"its config.json does not say {error}") from error


def _modelled(config: Mapping[str, Json]) -> None:
    activation = config.get("hidden_act", config.get("hidden_activation", "silu"))
    if activation not in ("silu", "swish", "swiglu", "gelu_pytorch_tanh"):
        raise NotModelled(f"an MLP with {activation} may not be gated")
    for key in ("vision_config", "audio_config", "encoder_layers", "ssm_cfg", "mamba_d_state"):
        if config.get(key):
            raise NotModelled(f"its config.json has {key}")
    kinds = {str(kind) for kind in config.get("layer_types") or ()} - {"full_attention"}
    if kinds:
        raise NotModelled(f"layers of {', '.join(sorted(kinds))}")


def _shape(config: Mapping[str, Json]) -> Shape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    experts = _first(config, "num_experts", "num_local_experts", "n_routed_experts")
    layers = int(config["num_hidden_layers"])
    intermediate = int(config["intermediate_size"])
    width = _first(config, "moe_intermediate_size") or intermediate
    shared = _first(config, "shared_expert_intermediate_size")
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=_first(config, "num_key_value_heads") or heads,
        head_size=_first(config, "head_dim") or hidden // heads,
        vocab=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings")),
        moe_layers=_moe_layers(config, layers) if experts else 0,
        experts=experts,
        experts_per_token=_first(config, "num_experts_per_tok"),
        expert_intermediate=width if experts else 0,
        shared_intermediate=shared or _first(config, "n_shared_experts") * width,
        latent=_latent(config),
    )


def _first(config: Mapping[str, Json], *names: str) -> int:
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _moe_layers(config: Mapping[str, Json], layers: int) -> int:
    dense = set(range(_first(config, "first_k_dense_replace")))
    dense |= {int(i) for i in config.get("mlp_only_layers") or ()}
    step = _first(config, "decoder_sparse_step", "moe_layer_freq") or 1
    return sum(1 for i in range(layers) if i not in dense and (i + 1) % step == 0)


def _latent(config: Mapping[str, Json]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        int(config["kv_lora_rank"]),
        _first(config, "q_lora_rank"),
        int(config["qk_nope_head_dim"]),
        int(config["qk_rope_head_dim"]),
        int(config["v_head_dim"]),
    )


def parameters(shape: Shape, tp: int = 1) -> tuple[int, int]:
    """Return (weights of linear layers, all others) that one of ``tp`` ranks holds.

    The matrices of a decoder layer are split by heads and columns; key and value heads are copied
    where there are fewer of them than ranks. Biases are left out (below 0.1 %).
    """
    dense, moe = shape.layers - shape.moe_layers, shape.moe_layers
    expert = 3 * shape.hidden * shape.expert_intermediate
    linear = shape.layers * _attention(shape, tp)
    linear += dense * 3 * shape.hidden * shape.intermediate // tp
    linear += moe * (shape.experts * expert + 3 * shape.hidden * shape.shared_intermediate) // tp
    embedding = shape.vocab * shape.hidden * (1 if shape.tied else 2) // tp
    norms = shape.layers * 2 * shape.hidden + shape.hidden
    return linear, embedding + norms + moe * shape.hidden * shape.experts


def _attention(shape: Shape, tp: int) -> int:
    heads = max(1, shape.heads // tp)
    latent = shape.latent
    if latent is None:
        kv = max(1, shape.kv_heads // tp)
        return 2 * shape.hidden * shape.head_size * (heads + kv)
    per_head = latent.nope + latent.rope
    q_in = latent.q_rank or shape.hidden
    query = q_in * heads * per_head + (shape.hidden * latent.q_rank)
    down = shape.hidden * (latent.kv_rank + latent.rope)
    up = latent.kv_rank * heads * (latent.nope + latent.value)
    return query + down + up + heads * latent.value * shape.hidden


def linear_bytes(method: str | None, element: float, bits: int = 0, group: int = 0) -> float:
    """Return bytes per weight of a linear layer, scales and zero points of its groups included.

    ``method``: vLLM's name of the quantization, None for none; ``bits`` and ``group`` as the
    checkpoint says, 0 where it does not. Raises NotModelled for a method of unknown size.
    """
    if method is None:
        return element
    if bits and bits < 16:
        return bits / 8 + ((2 + bits / 8) / group if group > 0 else 0)
    if method in _ONE_BYTE:
        return 1.0
    raise NotModelled(f"bytes per weight of quantization {method}")


def weight_bytes(shape: Shape, linear: float, element: float, tp: int = 1, pp: int = 1) -> int:
    """Return the weights on the fullest GPU: linear layers quantized, the rest not.

    Of several stages one holds the most layers, and either the embedding or the output layer.
    """
    layer, rest = parameters(shape, tp)
    if pp > 1:
        layer = layer * math.ceil(shape.layers / pp) // shape.layers
        rest = rest if shape.tied else rest // 2
    return int(layer * linear + rest * element)


def kv_token_bytes(layers: int, kv_heads: int, head_size: int, element: float) -> int:
    """Return the KV cache of one token on one GPU: a key and a value per layer and head there."""
    return int(2 * layers * kv_heads * head_size * element)


def latent_token_bytes(layers: int, latent: Latent, element: float) -> int:
    """Return the same for latent attention, which every tensor-parallel rank holds whole."""
    return int(layers * (latent.kv_rank + latent.rope) * element)


def activation_bytes(
    shape: Shape, tokens: int, sequences: int, tp: int, *, compiled: bool, sampling: str
) -> int:
    """Return the peak of vLLM's profiling run in 16-bit activations.

    That run computes ``max_num_batched_tokens`` tokens, then samples for ``max_num_seqs`` rows as
    one of ``SAMPLING`` does, beside the last hidden states. The widest place of the model is its
    MLP: gate, up and their product, beside the hidden states, the residual and the output. While
    it compiles, Inductor times combined kernels on tensors of their arguments' sizes; a copy of
    the embedding with two hidden states fits the recorded peaks within 0.05 GiB. A start from the
    compile cache goes without, and has as much more KV cache.
    """
    hidden = tokens * shape.hidden * 2
    mlp = tokens * 3 * shape.widest / tp * 2 + 3 * hidden
    compiling = shape.vocab * shape.hidden / tp * 2 + 2 * hidden if compiled else 0
    sampler = min(sequences, tokens) * shape.vocab * SAMPLING[sampling] + hidden
    return int(_RESIDENT_BYTES + max(mlp, compiling, sampler))
