"""OpenTelemetry GenAI spans: session documents with ``spans``, or OTLP JSON (one or one a line)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.config import Json
from tuner.errors import TraceError
from tuner.trace import UNKNOWN_GAP, Ragged, Trace
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.own import numbered
from tuner.traces.source import MOST, Head, Row, Source

_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_SESSION = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
_ERROR = 2


def recognises(head: Head) -> bool:
    """Whether it holds spans."""
    start = head.text[:65_536]
    if '"resourceSpans"' in start or '"resource_spans"' in start:
        return True
    return '"spans"' in start and '"span_id"' in start


def read(
    source: Source, *, chars_per_token: float | None = None, zero_output: ZeroOutput = "drop"
) -> Trace:
    """Read the spans with a GenAI operation (or token usage) as requests; others are dropped.

    Token counts are the ``gen_ai.usage`` attributes, new names before old. Spans without them
    need ``chars_per_token``: counts are then estimated from the captured messages, each of which
    becomes a block, so that conversations share their heads.

    The session is the conversation id or else the trace id. A span waits for its parent span, or
    else for the span of its session that ended last before it began. TraceError where no span has
    token counts.
    """
    spans = [_span(source, raw) for raw in _raw_spans(source)]
    requests = [span for span in spans if span.is_request]
    if chars_per_token is None and not any(span.has_usage for span in requests):
        raise source.fail(
            f"none of {len(requests)} GenAI spans has token counts (gen_ai.usage.*)",
            hint="Estimate them from the captured messages: chars_per_token=4.",
        )
    columns, prompts, outputs, notes = _tokens(requests, chars_per_token)
    parents, gaps = _parents(requests)
    draft = Draft(
        arrival_us=[span.start_us for span in requests],
        prompt_tokens=prompts,
        output_tokens=outputs,
        failed=[span.failed for span in requests],
        columns={
            **columns,
            "session": numbered([span.session for span in requests]),
            "parents": Ragged.of(parents),
            "gap_us": np.asarray(gaps, np.int64),
        },
        dropped={"other_span": len(spans) - len(requests)},
        notes=(*notes, "a span without parent waits for the last one that ended before it began"),
    )
    return finish(source, "otel", draft, zero_output=zero_output)


@dataclass(frozen=True, slots=True)
class _Span:
    id: str
    parent: str
    session: str
    start_us: float
    end_us: float
    prompt: float
    output: float
    #: Texts of the messages in, and of the answer.
    messages: tuple[str, ...]
    answer: str
    failed: bool
    is_request: bool

    @property
    def has_usage(self) -> bool:
        return not (math.isnan(self.prompt) or math.isnan(self.output))


def _raw_spans(source: Source) -> Iterator[Row]:
    try:
        documents = [source.json()]
    except TraceError:
        documents = [row for _, row in source.rows()]
    for document in documents:
        for part in document if isinstance(document, list) else [document]:
            yield from _inside(source, source.object(part, "document"))


def _inside(source: Source, document: Row) -> Iterator[Row]:
    """Yield the spans of a session document or of an OTLP export."""
    for name in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans"):
        for part in source.objects(document.get(name) or [], name):
            yield from _inside(source, part)
    yield from source.objects(document.get("spans") or [], "spans")


def _span(source: Source, raw: Row) -> _Span:
    found = _attributes(source, raw.get("attributes") or {})
    times = {
        "start": raw.get("start_time") or raw.get("startTimeUnixNano"),
        "end": raw.get("end_time") or raw.get("endTimeUnixNano"),
    }
    trace_id = str(raw.get("trace_id") or raw.get("traceId") or "")
    usage = {key: found[key] for key in (*_PROMPT, *_OUTPUT) if key in found}
    status = source.object(raw.get("status") or {}, "status")
    return _Span(
        id=str(raw.get("span_id") or raw.get("spanId") or ""),
        parent=str(raw.get("parent_span_id") or raw.get("parentSpanId") or ""),
        session=str(_first(found, _SESSION) or trace_id),
        start_us=source.moment(times, "start", 0),
        end_us=source.moment(times, "end", 0),
        prompt=source.number({"tokens": _first(found, _PROMPT)}, "tokens", 0),
        output=source.number({"tokens": _first(found, _OUTPUT)}, "tokens", 0),
        messages=_messages(found.get("gen_ai.input.messages")),
        answer=_answer(found),
        failed=status.get("code") in (_ERROR, "STATUS_CODE_ERROR", "ERROR"),
        is_request=bool(usage) or "gen_ai.operation.name" in found,
    )


def _attributes(source: Source, given: Json) -> dict[str, Json]:
    """Return attributes as a mapping, from OTLP's list of typed values too."""
    if isinstance(given, Mapping):
        return dict(given)
    found = {}
    for item in source.objects(given, "attributes"):
        value = source.object(item.get("value") or {}, "attributes")
        found[str(item.get("key"))] = next(iter(value.values()), None)
    return found


def _first(found: Mapping[str, Json], names: Sequence[str]) -> Json:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _messages(given: Json) -> tuple[str, ...]:
    """Return each message as one text (its role is part of it); () where none was captured."""
    try:
        parsed = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return ()
    messages = parsed if isinstance(parsed, list) else []
    return tuple(json.dumps(message, sort_keys=True) for message in messages)


def _answer(found: Mapping[str, Json]) -> str:
    text = found.get("gen_ai.output.text")
    return (
        text if isinstance(text, str) else "".join(_messages(found.get("gen_ai.output.messages")))
    )


def _tokens(
    spans: Sequence[_Span], chars_per_token: float | None
) -> tuple[dict[str, Any], list[float], list[float], tuple[str, ...]]:
    """Return (block columns, prompt tokens, output tokens, notes)."""
    if chars_per_token is None:
        return {}, [span.prompt for span in spans], [span.output for span in spans], ()
    number: dict[tuple[str, ...], int] = {}
    ids, sizes, outputs = [], [], []
    for span in spans:
        heads = [span.messages[: n + 1] for n in range(len(span.messages))]
        ids.append([number.setdefault(head, len(number)) for head in heads])
        sizes.append([max(1, round(len(text) / chars_per_token)) for text in span.messages])
        outputs.append(float(max(1, round(len(span.answer) / chars_per_token))))
    columns = {"blocks": Ragged.of(ids), "block_tokens": Ragged.of(sizes)}
    note = f"token counts are estimates: {chars_per_token:g} characters per token"
    return columns, [float(sum(row)) for row in sizes], outputs, (note,)


def _parents(spans: Sequence[_Span]) -> tuple[list[list[int]], list[int]]:
    """Return the parent rows and the think time (microseconds) of each span."""
    row_of = {span.id: row for row, span in enumerate(spans) if span.id}
    by_session: dict[str, list[int]] = {}
    for row, span in enumerate(spans):
        by_session.setdefault(span.session, []).append(row)
    parents: list[list[int]] = []
    gaps: list[int] = []
    for span in spans:
        parent = row_of.get(span.parent)
        if parent is None or not spans[parent].end_us <= span.start_us:
            before = [r for r in by_session[span.session] if spans[r].end_us <= span.start_us]
            parent = max(before, key=lambda r: spans[r].end_us, default=None)
        parents.append([] if parent is None else [parent])
        gap = math.nan if parent is None else span.start_us - spans[parent].end_us
        gaps.append(round(gap) if 0 <= gap < MOST else UNKNOWN_GAP)
    return parents, gaps
