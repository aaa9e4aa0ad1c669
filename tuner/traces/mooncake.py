"""Mooncake traces: FAST25 conversation, toolagent and synthetic, and the older arXiv file."""

from __future__ import annotations

from tuner.trace import Trace
from tuner.traces import hashed
from tuner.traces.draft import ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the first line has Mooncake's keys and nothing of a chat.

    vLLM's timed_trace has the same keys but means seconds and other blocks: name that format.
    """
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return head.has_keys(*keys) and hashed.first_ids(head.first) and "chat_id" not in head.first


def read(source: Source, *, block_size: int = 512, zero_output: ZeroOutput = "drop") -> Trace:
    """Read rows of ``timestamp`` in milliseconds and blocks of 512 tokens, the last one partial.

    The conversation file records times in steps of 3 s: see ``spread_ties``.
    """
    draft = hashed.draft(source, hashed.Layout(block_size, 1e3))
    return finish(source, "mooncake", draft, zero_output=zero_output)
