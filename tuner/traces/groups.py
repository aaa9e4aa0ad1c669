"""Which requests belong together: sessions, families of parents and children, prefix groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace import IntArray, Ragged, Trace

Hashes = NDArray[np.uint64]

#: A leading block that this share of requests has (a common system prompt) tells nobody apart.
UNIVERSAL_SHARE = 0.9


def session_groups(trace: Trace) -> IntArray:
    """Return a group number per request: its session, joined with the sessions of its parents.

    A request without session and relatives is a group of its own.
    """
    groups: IntArray = np.arange(len(trace), dtype=np.int64)
    if trace.session is not None:
        known = trace.session >= 0
        _, first, inverse = np.unique(trace.session[known], return_index=True, return_inverse=True)
        groups[known] = np.flatnonzero(known)[first][inverse]
    if trace.parents is not None:
        child = np.repeat(np.arange(len(trace)), np.diff(trace.parents.offsets))
        groups = _joined(groups, groups[child], groups[trace.parents.values])
    return groups


def _joined(groups: IntArray, left: Any, right: Any) -> IntArray:
    """Merge the groups that an edge (left, right) connects; the smallest member names each."""
    root = np.arange(len(groups), dtype=np.int64)
    while True:
        low = np.minimum(root[left], root[right])
        before = root.copy()
        np.minimum.at(root, root[left], low)
        np.minimum.at(root, root[right], low)
        root = root[root]
        if np.array_equal(root, before):
            return root[groups]


def prefix_groups(trace: Trace) -> IntArray:
    """Return a group number per request: its first block that not nearly everybody shares.

    Requests without such a block are groups of their own.
    """
    own = -1 - np.arange(len(trace), dtype=np.int64)
    if trace.blocks is None:
        return own
    starts, ends = trace.blocks.offsets[:-1], trace.blocks.offsets[1:]
    depth = 0
    while True:
        has = starts + depth < ends
        if not has.any():
            return own
        ids = trace.blocks.values[starts[has] + depth]
        _, counts = np.unique(ids, return_counts=True)
        if counts.max() < UNIVERSAL_SHARE * len(trace):
            break
        depth += 1
    own[has] = ids
    return own


def hashed_share(groups: IntArray, seed: int) -> Any:
    """Return a number in [0, 1) per group number: the same on every machine."""
    salted = groups.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    return (mixed(salted) >> np.uint64(11)).astype(np.float64) / 2.0**53


def mixed(values: Any) -> Hashes:
    """Return a 64-bit hash of each integer (the finisher of SplitMix64)."""
    out = np.asarray(values).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        out = (out ^ (out >> np.uint64(shift))) * np.uint64(factor)
    done: Hashes = out ^ (out >> np.uint64(31))
    return done


def chain_hashes(blocks: Ragged, tokens: Ragged) -> tuple[Hashes, Hashes]:
    """Return a hash of what leads to each segment, without and with it.

    A prefix is the sum of its segments' hashes, each mixed with its place: order counts, and one
    cumulative sum does all rows at once.
    """
    starts = blocks.offsets[:-1]
    owner = np.repeat(np.arange(len(blocks)), np.diff(blocks.offsets))
    place = np.arange(len(owner)) - starts[owner]
    named = mixed(blocks.values) + tokens.values.astype(np.uint64)
    own = mixed(mixed(named) + place.astype(np.uint64))
    total = np.cumsum(own, dtype=np.uint64)
    upto = total - (total - own)[starts[owner]]
    return upto - own, upto


def share_too_early(trace: Trace, slowdown: float = 1.0) -> float | None:
    """Return the share of turns that recorded times would send before their parent has ended.

    ``slowdown``: how many times as long as at the source a request takes here. A parent's duration
    at the source is what lies between its arrival and its child's, less the think time; turns
    whose think time is unknown do not count. None where none is known.
    """
    if trace.parents is None or trace.gap_us is None:
        return None
    child = np.repeat(np.arange(len(trace)), np.diff(trace.parents.offsets))
    last = trace.parents.offsets[1:][child] - 1
    single = np.arange(len(child)) == last
    known = single & (trace.gap_us[child] >= 0)
    if not known.any():
        return None
    child, parent = child[known], trace.parents.values[known]
    apart = trace.arrival_us[child] - trace.arrival_us[parent]
    duration = np.maximum(apart - trace.gap_us[child], 0)
    return float(np.mean(duration * slowdown > apart))
