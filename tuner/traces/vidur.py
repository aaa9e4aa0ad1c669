"""Vidur's processed traces: with arrivals, or lengths only."""

from __future__ import annotations

from typing import Any

from tuner.trace import Trace
from tuner.traces import table
from tuner.traces.arrivals import invented
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the header has Vidur's columns."""
    return head.has_columns("num_prefill_tokens", "num_decode_tokens")


def read(
    source: Source,
    *,
    rate_per_s: float = 1.0,
    seed: int = 0,
    zero_output: ZeroOutput = "drop",
) -> Trace:
    """Read ``num_prefill_tokens,num_decode_tokens`` and ``arrived_at`` (seconds) where it is there.

    A file of lengths only gets Poisson arrivals of ``rate_per_s``; a note says so.
    """
    found = table.columns(
        source,
        {"num_prefill_tokens": "number", "num_decode_tokens": "number"},
        {"arrived_at": "number"},
    )
    rows = len(found["num_prefill_tokens"])
    notes: tuple[str, ...] = ()
    arrival: Any = found.get("arrived_at")
    if arrival is None:
        arrival, note = invented(rows, rate_per_s, seed)
        notes = (note,)
    draft = Draft(
        arrival_us=arrival * 1e6,
        prompt_tokens=found["num_prefill_tokens"],
        output_tokens=found["num_decode_tokens"],
        notes=notes,
    )
    return finish(source, "vidur", draft, zero_output=zero_output)
