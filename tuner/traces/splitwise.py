"""Traces of splitwise-sim."""

from __future__ import annotations

from tuner.trace import Trace
from tuner.traces import table
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the header has splitwise-sim's columns."""
    return head.has_columns("arrival_timestamp", "prompt_size", "token_size")


def read(source: Source, *, zero_output: ZeroOutput = "drop") -> Trace:
    """Read ``arrival_timestamp`` (seconds), ``prompt_size``, ``token_size``.

    Rows whose ``request_type`` is not 2 (an LLM request) are dropped as ``other_type``.
    """
    found = table.columns(
        source,
        {"arrival_timestamp": "number", "prompt_size": "number", "token_size": "number"},
        {"request_type": "number"},
    )
    kind = found.get("request_type")
    keep = slice(None) if kind is None else kind == 2
    draft = Draft(
        arrival_us=found["arrival_timestamp"][keep] * 1e6,
        prompt_tokens=found["prompt_size"][keep],
        output_tokens=found["token_size"][keep],
        dropped={} if kind is None else {"other_type": int((kind != 2).sum())},
    )
    return finish(source, "splitwise", draft, zero_output=zero_output)
