"""Azure LLM inference traces (2023, 2024, multimodal 2025) and CSV files of the same columns."""

from __future__ import annotations

from typing import Any

from tuner.trace import Trace
from tuner.traces import table
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the header is Azure's."""
    return head.has_columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(source: Source, *, zero_output: ZeroOutput = "drop") -> Trace:
    """Read ``TIMESTAMP,ContextTokens,GeneratedTokens``; times are wall clock, to the microsecond.

    Fractions may have 0 to 9 digits (below a microsecond they are cut); a zone is respected.
    ``NumImages`` (2025) is not replayed: a note says how many requests had images.
    """
    found = table.columns(
        source,
        {"TIMESTAMP": "time", "ContextTokens": "number", "GeneratedTokens": "number"},
        {"NumImages": "number"},
    )
    draft = Draft(
        arrival_us=found["TIMESTAMP"],
        prompt_tokens=found["ContextTokens"],
        output_tokens=found["GeneratedTokens"],
        notes=_image_note(found.get("NumImages")),
    )
    return finish(source, "azure", draft, zero_output=zero_output)


def _image_note(images: Any) -> tuple[str, ...]:
    count = 0 if images is None else int((images > 0).sum())
    return (f"{count} requests had images; only their tokens are replayed",) if count else ()
