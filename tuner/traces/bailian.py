"""Qwen-Bailian usage traces (to-C, to-B, thinking, coder)."""

from __future__ import annotations

import numpy as np

from tuner.trace import IntArray, Ragged, Trace
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.hashed import BlockColumn, Layout, full_blocks
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the first line has chat ids and block hashes."""
    return head.has_keys("chat_id", "parent_chat_id", "timestamp", "input_length", "hash_ids")


def read(source: Source, *, block_size: int = 16, zero_output: ZeroOutput = "drop") -> Trace:
    """Read rows of ``timestamp`` in seconds, blocks of 16 tokens, and links to parent chats.

    The session is the chat at the root of the links. A parent that the file lacks, or that comes
    after its child, is none. Think times are unknown: the file has no ends.
    """
    layout = Layout(block_size, 1e6)
    times, prompts, outputs, parents = [], [], [], []
    row_of: dict[int, int] = {}
    blocks = BlockColumn()
    for line, row in source.rows():
        times.append(source.number(row, "timestamp", line) * 1e6)
        prompts.append(source.number(row, "input_length", line))
        outputs.append(source.number(row, "output_length", line))
        blocks.add(full_blocks(source, row, line, layout))
        parents.append(source.whole(row, "parent_chat_id", line, -1))
        row_of[source.whole(row, "chat_id", line, -1)] = len(times) - 1
    above = np.asarray([row_of.get(chat, -1) if chat >= 0 else -1 for chat in parents], np.int64)
    above[above == np.arange(len(above))] = -1
    columns = {
        **blocks.columns(),
        "session": roots(above),
        "parents": Ragged.of([[parent] if parent >= 0 else [] for parent in above.tolist()]),
    }
    draft = Draft(arrival_us=times, prompt_tokens=prompts, output_tokens=outputs, columns=columns)
    return finish(source, "bailian", draft, zero_output=zero_output)


def roots(above: IntArray) -> IntArray:
    """Return the row at the root of each row's chain of parents (-1 is none)."""
    at = np.where(above < 0, np.arange(len(above)), above)
    # Pointer jumping halves each chain per round; a cycle cannot last longer than the rounds.
    for _ in range(64):
        further = at[at]
        if np.array_equal(further, at):
            break
        at = further
    return at
