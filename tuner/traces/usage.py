"""Usage logs of gateways, JSONL: LiteLLM's payload or spend logs, OpenAI-style responses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.trace import Trace
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.own import numbered
from tuner.traces.source import Head, Row, Source

_START = ("startTime", "start_time", "created", "created_at", "timestamp")
_END = ("endTime", "end_time")
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_SESSION = ("litellm_session_id", "session_id", "conversation_id", "trace_id")
_GOOD = (None, "", "success", "ok", "completed", 200)


def recognises(head: Head) -> bool:
    """Whether the first line has token counts of a usage record and a time."""
    row = _flat(head.first)
    return all(any(key in row for key in keys) for keys in (_START, _PROMPT, _OUTPUT))


def read(source: Source, *, zero_output: ZeroOutput = "drop") -> Trace:
    """Read start (and end) times, prompt and completion tokens, session, status.

    Times are ISO 8601 or numbers told apart by size (seconds, milliseconds, ...). A session makes
    turns wait for each other. Rows whose status is a failure are dropped as ``failed``.
    """
    times, ends, prompts, outputs, sessions, failed = [], [], [], [], [], []
    for line, raw in source.rows():
        row = _flat(raw)
        times.append(source.moment(row, _key(row, _START), line))
        ends.append(source.moment(row, _key(row, _END), line))
        prompts.append(source.number(row, _key(row, _PROMPT), line))
        outputs.append(source.number(row, _key(row, _OUTPUT), line))
        sessions.append(row.get(_key(row, _SESSION)))
        failed.append(row.get("status") not in _GOOD)
    known = any(sessions)
    draft = Draft(
        arrival_us=times,
        prompt_tokens=prompts,
        output_tokens=outputs,
        failed=failed,
        columns={"session": numbered([_text(name) for name in sessions])} if known else {},
        chain=known,
        duration_us=[end - start for start, end in zip(times, ends, strict=True)]
        if not all(map(math.isnan, ends))
        else None,
    )
    return finish(source, "usage", draft, zero_output=zero_output)


def _flat(row: Mapping[str, Any]) -> Row:
    """Lift what lies inside ``response.body`` (batch results) and ``usage`` to the top."""
    out = dict(row)
    for name in ("response", "body", "usage"):
        inner = out.get(name)
        if isinstance(inner, Mapping):
            out = {**out, **inner}
    return out


def _key(row: Row, names: tuple[str, ...]) -> str:
    """Return the first name that the row has a value for (else the first name)."""
    return next((name for name in names if row.get(name) is not None), names[0])


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)
