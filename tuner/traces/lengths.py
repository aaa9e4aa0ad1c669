"""Transforms of token counts: scale them without changing what is shared, or bound them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tuner.trace import IntArray, Ragged, Trace
from tuner.traces.groups import chain_hashes

#: vLLM's smallest common cache block; a scaled trace block stays a multiple of it.
CACHE_BLOCK = 16
#: How far from the asked scale the prompts may come out before blocks are made one.
_OFF = 0.1


def length_scale(trace: Trace, alpha: float, output_alpha: float | None = None) -> Trace:
    """Scale prompts by ``alpha`` and outputs by ``output_alpha`` (default: the same).

    Block ids stay; the block itself is redefined: B' = B * alpha, rounded to a multiple of 16, at
    least 16. Full blocks become exactly B', a partial one its share, rounded up; so the prefix hit
    share stays (0.3736 -> 0.3729 for 512 -> 16). Where B * alpha is far below 16, several blocks
    are made one first: less is shared then. The prompt scale that results (B'/B) and the blocks
    made one are recorded. Nothing falls below one token.

    Distorts: attention's quadratic share of prefill, fixed overheads, thresholds in tokens
    (max_num_batched_tokens) and KV pressure do not scale with it; unequal alphas change the
    balance of prefill and decode. Optima found on a scaled trace do not transfer by themselves.
    """
    second = alpha if output_alpha is None else output_alpha
    if alpha <= 0 or second <= 0:
        raise ValueError("alpha and output_alpha must be > 0")
    group, ratio = _plan(block_size(trace), alpha)
    if group > 1:
        trace = grouped(trace, group)
    output = _scaled(trace.output_tokens, second)
    output = np.where(trace.output_tokens > 0, np.maximum(output, 1), 0)
    changes: dict[str, Any] = {"output_tokens": output.astype(np.int32)}
    if trace.blocks is None or trace.block_tokens is None:
        prompt = _scaled(trace.prompt_tokens, ratio)
    else:
        segments = Ragged(trace.block_tokens.offsets, _scaled(trace.block_tokens.values, ratio))
        tail = trace.prompt_tokens - row_sums(trace.block_tokens)
        prompt = row_sums(segments) + _scaled(tail, ratio)
        changes["block_tokens"] = segments
    changes["prompt_tokens"] = np.maximum(prompt, 1).astype(np.int32)
    return replace(trace, **changes).recorded(
        "length_scale",
        alpha=alpha,
        output_alpha=second,
        found_prompt_alpha=ratio,
        found_blocks_grouped=group,
    )


def _plan(size: int | None, alpha: float) -> tuple[int, float]:
    """Return (blocks to make one, scale of the prompt) that come close to ``alpha``.

    The fewest blocks whose scaled size is off by at most a tenth from a multiple of 16.
    """
    if size is None:
        return 1, alpha
    group = 1
    while True:
        wanted = size * group * alpha
        new = max(CACHE_BLOCK, round(wanted / CACHE_BLOCK) * CACHE_BLOCK)
        if abs(new / wanted - 1) <= _OFF:
            return group, new / (size * group)
        group += 1


def grouped(trace: Trace, group: int) -> Trace:
    """Make one block of every ``group``; what is left of a row becomes a shorter one.

    Ids are new: one per chain of old ids from the start. Two rows share as many whole groups as
    they shared before; of a group that they share in part, they share nothing any more.
    """
    if trace.blocks is None or trace.block_tokens is None:
        return trace
    offsets = trace.blocks.offsets
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(len(trace)), counts)
    place = np.arange(len(owner)) - offsets[:-1][owner]
    last = (place % group == group - 1) | (place == counts[owner] - 1)
    _, ids = np.unique(chain_hashes(trace.blocks, trace.block_tokens)[1], return_inverse=True)
    kept = np.bincount(owner[last], minlength=len(trace))
    new = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    ends = np.cumsum(trace.block_tokens.values, dtype=np.int64)[last]
    starts = np.concatenate([[0], ends[:-1]])
    return replace(trace, blocks=Ragged(new, ids[last]), block_tokens=Ragged(new, ends - starts))


def block_size(trace: Trace) -> int | None:
    """Return the size of the trace's blocks; None where there are none or they are segments.

    Blocks are equal where every block but the last of its request has the largest size.
    """
    if trace.block_tokens is None or not len(trace.block_tokens.values):
        return None
    tokens = trace.block_tokens
    inner = np.ones(len(tokens.values), bool)
    ends = tokens.offsets[1:][np.diff(tokens.offsets) > 0] - 1
    inner[ends] = False
    size = int(tokens.values.max())
    return size if bool((tokens.values[inner] == size).all()) else None


def _scaled(values: IntArray, ratio: float) -> IntArray:
    # The small step back keeps exact products exact: ceil(512 * 0.1 * 10) is 512.
    scaled: IntArray = np.ceil(values * ratio - 1e-9).astype(np.int64)
    return scaled


def row_sums(ragged: Ragged) -> IntArray:
    """Return the sum of each row."""
    total = np.concatenate([[0], np.cumsum(ragged.values, dtype=np.int64)])
    sums: IntArray = total[ragged.offsets[1:]] - total[ragged.offsets[:-1]]
    return sums


def max_tokens(trace: Trace, max_tokens: int, policy: Literal["drop", "cap"] = "drop") -> Trace:
    """Bound prompt + output of each request: leave longer ones out, or cut them.

    "cap" keeps the output (at most ``max_tokens - 1``) and cuts the prompt's end. The record says
    how many requests and which share of all tokens that took (``found_requests``,
    ``found_token_share``).

    Distorts: "drop" biases towards short requests, "cap" cuts the tail that makes the P99.
    """
    if max_tokens < 2:
        raise ValueError("max_tokens must be at least 2")
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    over = total > max_tokens
    if policy == "drop":
        done = trace.take(np.flatnonzero(~over))
    elif policy == "cap":
        done = _capped(trace, max_tokens)
    else:
        raise ValueError(f"policy: expected 'drop' or 'cap', found {policy!r}")
    left = int(done.prompt_tokens.sum(dtype=np.int64) + done.output_tokens.sum(dtype=np.int64))
    return done.recorded(
        "max_tokens",
        max_tokens=max_tokens,
        policy=policy,
        found_requests=int(np.count_nonzero(over)),
        found_token_share=1 - left / max(1, int(total.sum())),
    )


def _capped(trace: Trace, limit: int) -> Trace:
    output = np.minimum(trace.output_tokens, limit - 1)
    prompt = np.minimum(trace.prompt_tokens, limit - output)
    changes: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": output}
    if trace.blocks is not None and trace.block_tokens is not None:
        changes["blocks"], changes["block_tokens"] = _cut_blocks(trace, prompt)
    return replace(trace, **changes)


def _cut_blocks(trace: Trace, prompt: IntArray) -> tuple[Ragged, Ragged]:
    """Cut the segments of each request to its new prompt; the last one may be cut short."""
    assert trace.blocks is not None
    assert trace.block_tokens is not None
    tokens = trace.block_tokens
    counts = np.diff(tokens.offsets)
    total = np.concatenate([[0], np.cumsum(tokens.values, dtype=np.int64)])
    before = total[:-1] - np.repeat(total[tokens.offsets[:-1]], counts)
    room = np.minimum(tokens.values, np.repeat(prompt, counts) - before)
    kept = room > 0
    owner = np.repeat(np.arange(len(trace)), counts)
    left = np.bincount(owner[kept], minlength=len(trace))
    offsets = np.concatenate([[0], np.cumsum(left)]).astype(np.int64)
    return Ragged(offsets, trace.blocks.values[kept]), Ragged(offsets, room[kept])
