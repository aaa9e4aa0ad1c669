"""Our own format: one request a line (JSONL) or a row (Parquet), with an optional ``.meta.json``.

Columns: ``t_us`` (microseconds from trace start), ``in_tok`` (>= 1), ``out_tok``, and where known
``blocks`` (ids of the leading prompt segments), ``block_lens`` (their tokens), ``session`` (text or
number), ``parents`` (rows of this file, from 0), ``gap_us`` (end of the last parent to this
arrival), ``cls`` (SLO class), ``prio`` (lower goes first), ``status`` ("ok" or why it failed).
A recording has ``dur_us`` (arrival to end) instead of parents: turns of a session are chained.
null is "unknown", 0 is a real zero. Unknown columns are ignored and named in the notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from tuner.config import Json
from tuner.trace import UNKNOWN_GAP, Ragged, Trace
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import MOST, PARQUET_MAGIC, Head, Row, Source

SCHEMA = "wtrace/1"
_LISTS = ("blocks", "block_lens", "parents")
_KNOWN = ("t_us", "in_tok", "out_tok", *_LISTS, "session", "gap_us", "cls", "prio", "status")

#: Of recordings: from arrival to end and to the first token, at the source.
_RECORDED = ("dur_us", "ttft_us")


def recognises(head: Head) -> bool:
    """Whether the first line has our keys, or the file is Parquet (then ``read`` checks)."""
    return head.is_parquet or head.has_keys("t_us", "in_tok", "out_tok")


def read(
    source: Source, *, zero_output: ZeroOutput = "drop", block_tokens: int | None = None
) -> Trace:
    """Read our format. ``block_tokens`` is the block size where neither rows nor meta file say it.

    TraceError where blocks are longer than the prompt, or a meta file belongs to other content.
    """
    meta = _meta(source)
    rows = list(_parquet(source) if source.magic == PARQUET_MAGIC else source.rows())
    size = block_tokens or meta.get("block_tokens")
    columns, notes = _columns(source, rows, size, tuple(meta.get("classes", ())))
    chain = "session" in columns and "parents" not in columns and _timed(rows)
    status = [row.get("status") not in (None, "ok") for _, row in rows]
    draft = Draft(
        arrival_us=[source.number(row, "t_us", line) for line, row in rows],
        prompt_tokens=[source.number(row, "in_tok", line) for line, row in rows],
        output_tokens=[source.number(row, "out_tok", line) for line, row in rows],
        failed=status,
        columns=columns,
        resolution_us=int(meta.get("resolution_us", 0)),
        notes=(*notes, *_origin(meta), *meta.get("notes", ())),
        # A recording starts its clock before its first request; what we wrote starts where it must.
        rebase="digest" not in meta,
        chain=chain,
        duration_us=[source.number(row, "dur_us", line) for line, row in rows] if chain else None,
    )
    return _with_meta(source, finish(source, "own", draft, zero_output=zero_output), meta)


def _timed(rows: Sequence[tuple[int, Row]]) -> bool:
    """Whether it is a recording, whose turns waited for each other (``dur_us``)."""
    return any(row.get("dur_us") is not None for _, row in rows)


def _meta(source: Source) -> dict[str, Json]:
    path = meta_path(source.path)
    if not path.exists():
        return {}
    meta = Source(path).json()
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        raise Source(path).fail(f"schema: expected {SCHEMA!r}")
    return meta


def _origin(meta: dict[str, Json]) -> tuple[str, ...]:
    source = meta.get("source") or {}
    name = " ".join(str(source[key]) for key in ("format", "file") if source.get(key))
    return (f"made from: {name}",) if name and source.get("format") != "own" else ()


def meta_path(path: Path) -> Path:
    """Return where the meta file of a trace file lies: ``chat.jsonl`` -> ``chat.meta.json``."""
    stem = path.name.split(".")[0] if path.suffix in (".gz", ".zst") else path.stem
    return path.with_name(f"{stem}.meta.json")


def _with_meta(source: Source, trace: Trace, meta: dict[str, Json]) -> Trace:
    if not meta:
        return trace
    done = replace(trace.provenance, transforms=tuple(meta.get("transforms", ())))
    lead_in = int(meta.get("lead_in_us", 0))
    trace = replace(trace, name=meta.get("name", trace.name), provenance=done, lead_in_us=lead_in)
    if meta.get("digest", trace.digest) != trace.digest:
        raise source.fail(
            f"content differs from what {meta_path(source.path).name} describes",
            hint="Delete the meta file, or write it anew with `tuner trace convert`.",
        )
    return trace


def _parquet(source: Source) -> Iterator[tuple[int, dict[str, Json]]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        found = parquet.read_table(source.path)
    except (pa.ArrowException, OSError) as error:
        raise source.fail(f"not a readable Parquet file: {error}") from error
    missing = {"t_us", "in_tok", "out_tok"} - set(found.column_names)
    if missing:
        raise source.fail(f"Parquet file without the columns {', '.join(sorted(missing))}")
    line = 0
    for batch in found.to_batches(max_chunksize=4096):
        for row in batch.to_pylist():
            line += 1
            yield line, row


def _columns(
    source: Source, rows: Sequence[tuple[int, Row]], size: Any, class_names: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the optional columns (those that say something) and what to note."""
    present = {key for _, row in rows for key, value in row.items() if value is not None}
    columns: dict[str, Any] = {}
    if "blocks" in present:
        pairs = [_segments(source, row, line, size) for line, row in rows]
        columns["blocks"] = Ragged.of([ids for ids, _ in pairs])
        columns["block_tokens"] = Ragged.of([lengths for _, lengths in pairs])
    if "session" in present:
        columns["session"] = numbered([row.get("session") for _, row in rows])
    if "parents" in present:
        columns["parents"] = Ragged.of(
            [_parents(source, row, line, len(rows)) for line, row in rows]
        )
    if "gap_us" in present:
        gaps = [source.whole(row, "gap_us", line, UNKNOWN_GAP) for line, row in rows]
        columns["gap_us"] = np.maximum(gaps, UNKNOWN_GAP)
    if "cls" in present:
        names = [str(row.get("cls") or "default") for _, row in rows]
        order = tuple(dict.fromkeys([*class_names, *names]))
        columns["slo_class"] = np.asarray([order.index(name) for name in names], np.int64)
        columns["class_names"] = order
    if "prio" in present:
        priorities = [source.whole(row, "prio", line, 0) for line, row in rows]
        columns["priority"] = np.asarray(priorities, np.int64)
    unknown = sorted(present - {*_KNOWN, *_RECORDED})
    return columns, (f"ignored columns: {', '.join(unknown)}",) if unknown else ()


def _segments(source: Source, row: Row, line: int, size: Any) -> tuple[list[int], list[int]]:
    ids = source.ids(row, "blocks", line)
    lengths = source.ids(row, "block_lens", line)
    given = source.number(row, "in_tok", line)
    prompt = int(given) if 0 <= given < MOST else 0
    if ids and not lengths:
        if not size:
            raise source.fail(
                "blocks without block_lens", line=line, hint="Give the block size: block_tokens."
            )
        lengths = split(prompt, int(size), len(ids))
    if len(ids) != len(lengths):
        raise source.fail(f"{len(ids)} blocks but {len(lengths)} block_lens", line=line)
    if sum(lengths) > prompt or (ids and min(lengths) < 1):
        raise source.fail(
            f"blocks of {sum(lengths)} tokens do not fit a prompt of {prompt} tokens",
            line=line,
            hint="Check the block size: block_tokens.",
        )
    return ids, lengths


def split(prompt: int, size: int, count: int) -> list[int]:
    """Return the tokens of ``count`` blocks of ``size``; the last one may be cut by the prompt."""
    return [max(0, min(size, prompt - size * n)) for n in range(count)]


def _parents(source: Source, row: Row, line: int, rows: int) -> list[int]:
    parents = source.ids(row, "parents", line)
    if any(parent >= rows for parent in parents):
        raise source.fail(f"parents: there are only {rows} requests", line=line)
    return parents


def numbered(labels: Sequence[Any]) -> Any:
    """Return a number per label, -1 for None or "". Whole numbers stay; text counts up from 0."""
    if all(label is None or type(label) is int for label in labels):
        return np.asarray([-1 if label is None else label for label in labels], np.int64)
    known: dict[str, int] = {}
    return np.asarray(
        [
            -1 if label in (None, "") else known.setdefault(str(label), len(known))
            for label in labels
        ],
        np.int64,
    )


def to_rows(trace: Trace) -> Iterator[dict[str, Json]]:
    """Yield the requests in our format; columns that say nothing are left out."""
    for row in range(len(trace)):
        request = trace[row]
        out: dict[str, Json] = {
            "t_us": int(trace.arrival_us[row]),
            "in_tok": request.prompt_tokens,
            "out_tok": request.output_tokens,
        }
        if trace.blocks is not None:
            out["blocks"] = list(request.blocks)
            out["block_lens"] = list(request.block_tokens)
        if trace.session is not None and request.session >= 0:
            out["session"] = request.session
        if trace.parents is not None:
            out["parents"] = list(request.parents)
        if trace.gap_us is not None and request.gap_s is not None:
            out["gap_us"] = int(trace.gap_us[row])
        if trace.slo_class is not None:
            out["cls"] = request.slo_class
        if trace.priority is not None:
            out["prio"] = request.priority
        yield out


def to_meta(trace: Trace) -> dict[str, Json]:
    """Return the meta file's content: what rows cannot say."""
    origin = trace.provenance
    return {
        "schema": SCHEMA,
        "name": trace.name,
        "digest": trace.digest,
        "resolution_us": trace.resolution_us,
        "lead_in_us": trace.lead_in_us,
        "classes": list(trace.class_names),
        "source": {
            "file": origin.source,
            "format": origin.format,
            "sha256": origin.source_sha256,
            "rows_read": origin.rows_read,
            "dropped": dict(origin.dropped),
        },
        "notes": list(origin.notes),
        "transforms": list(origin.transforms),
    }


def write_lines(trace: Trace, stream: IO[str]) -> None:
    """Write JSONL, one request a line."""
    for row in to_rows(trace):
        stream.write(json.dumps(row, separators=(",", ":")) + "\n")


def write(trace: Trace, path: str | Path) -> None:
    """Write JSONL (or Parquet where the name ends in ``.parquet``) and the meta file beside it."""
    path = Path(path)
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        rows = list(to_rows(trace))
        names = [name for name in _KNOWN if any(name in row for row in rows)]
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        parquet.write_table(table, path)
    else:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            write_lines(trace, stream)
    meta = json.dumps(to_meta(trace), indent=2) + "\n"
    meta_path(path).write_text(meta, encoding="utf-8")
