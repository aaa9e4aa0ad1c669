"""How much of a trace's prompts an infinite prefix cache would have seen before."""

from __future__ import annotations

import numpy as np

from tuner.trace import IntArray, Trace
from tuner.traces.groups import Hashes, chain_hashes, mixed


def predicted_hit_share(trace: Trace, block_size: int | None = None) -> float:
    """Return the share of prompt tokens that an infinite cache answers, in order of arrival.

    A request hits as far as its leading segments, and the head of the next one, are those of any
    earlier request. None: to the token. A ``block_size``: as vLLM counts, in full blocks of it and
    never the whole prompt (the last token is always computed). 0 for a trace without blocks.

    Assumes that each request has ended before the next one that shares with it arrives; overlap
    and evictions only lower the share.
    """
    hits = hit_tokens(trace)
    prompt = trace.prompt_tokens.astype(np.int64)
    if block_size is not None:
        hits = np.minimum(hits, prompt - 1) // block_size * block_size
    return float(hits.sum() / max(1, int(prompt.sum())))


def hit_tokens(trace: Trace) -> IntArray:
    """Return how many leading tokens of each request an earlier request had, to the token."""
    rows = len(trace)
    if trace.blocks is None or trace.block_tokens is None or not len(trace.blocks.values):
        return np.zeros(rows, np.int64)
    offsets, tokens = trace.blocks.offsets, trace.block_tokens.values.astype(np.int64)
    owner = np.repeat(np.arange(rows), np.diff(offsets))
    before, upto = chain_hashes(trace.blocks, trace.block_tokens)
    _, first, inverse = np.unique(upto, return_index=True, return_inverse=True)
    seen = owner[first][inverse] < owner
    # Whoever had segment k of a prefix had all before it, so the seen ones lead each row.
    total = np.concatenate([[0], np.cumsum(np.where(seen, tokens, 0))])
    hits: IntArray = total[offsets[1:]] - total[offsets[:-1]]
    # The first unseen segment may still share its head with a longer or shorter one.
    count = np.concatenate([[0], np.cumsum(seen)])
    at = offsets[:-1] + count[offsets[1:]] - count[offsets[:-1]]
    open_end = at < offsets[1:]
    shared = _shared_heads(before, trace.blocks.values, tokens)
    hits[open_end] += np.minimum(shared, tokens)[at[open_end]]
    return hits


def _shared_heads(before: Hashes, ids: IntArray, tokens: IntArray) -> IntArray:
    """Return the tokens of the longest earlier segment of the same id after the same prefix."""
    key = mixed(before ^ mixed(ids))
    order = np.argsort(key, kind="stable")
    fresh = np.concatenate([[True], key[order][1:] != key[order][:-1]])
    group = np.cumsum(fresh)
    # Groups are in the high bits, so the running maximum starts anew with each group.
    running = np.maximum.accumulate((group << 32) + tokens[order])
    earlier = np.concatenate([[0], running[:-1] & 0xFFFFFFFF])
    earlier[fresh] = 0
    out = np.zeros(len(tokens), np.int64)
    out[order] = earlier
    return out
