"""BurstGPT v1 to v3, by column name (v3 inserts its session columns in the middle)."""

from __future__ import annotations

from tuner.trace import Trace
from tuner.traces import table
from tuner.traces.draft import SECOND_US, Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the header has BurstGPT's columns."""
    return head.has_columns("Timestamp", "Request tokens", "Response tokens")


def read(source: Source, *, model: str | None = None, zero_output: ZeroOutput = "drop") -> Trace:
    """Read ``Timestamp`` (seconds, 1 s steps), ``Request tokens`` and ``Response tokens``.

    v3's ``Session ID`` makes turns wait for each other; with ``Elapsed time`` (seconds) their
    think times are known. No response tokens means a failed call. ``model`` keeps one model's rows.
    """
    found = table.columns(
        source,
        {"Timestamp": "number", "Request tokens": "number", "Response tokens": "number"},
        {"Session ID": "text", "Elapsed time": "number", "Model": "text"},
    )
    dropped: dict[str, int] = {}
    keep = slice(None)
    if model is not None:
        if "Model" not in found or model not in found["Model"].names:
            raise source.fail(f"no rows of the model {model!r}")
        keep = found["Model"].equal(model)
        dropped["other_model"] = int((~found["Model"].equal(model)).sum())
    elapsed = found.get("Elapsed time")
    session = found.get("Session ID")
    draft = Draft(
        arrival_us=found["Timestamp"][keep] * 1e6,
        prompt_tokens=found["Request tokens"][keep],
        output_tokens=found["Response tokens"][keep],
        columns={} if session is None else {"session": session.codes[keep]},
        resolution_us=SECOND_US,
        dropped=dropped,
        chain=session is not None,
        duration_us=None if elapsed is None else elapsed[keep] * 1e6,
    )
    return finish(source, "burstgpt", draft, zero_output=zero_output)
