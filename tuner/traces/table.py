"""Columns of a CSV file by name, at the speed of pyarrow; a slow second look names a bad line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tuner.errors import TraceError
from tuner.traces.source import Source

#: number -> float64; time -> float64 microseconds since 1970 UTC (times without zone count as UTC);
#: text -> Labels.
Kind = Literal["number", "time", "text"]
#: What stands for "no value".
NULLS = ("", "NaN", "nan", "NAN", "null", "NULL", "None", "NA", "N/A")


@dataclass(frozen=True, slots=True)
class Labels:
    """A text column: ``names[codes[i]]``, -1 where there is none; names in order of appearance."""

    codes: Any
    names: tuple[str, ...]

    def equal(self, name: str) -> Any:
        """Return the rows that have this text."""
        return self.codes == (self.names.index(name) if name in self.names else -2)


def columns(
    source: Source, wanted: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None
) -> dict[str, Any]:
    """Return the wanted columns of a CSV file with a header.

    Missing values are NaN (-1 in Labels); blank lines are skipped. TraceError names the missing
    columns, or the first line with too few fields, an unreadable number or an unreadable time.
    """
    start, header, has_rows = _header(source)
    missing = [name for name in wanted if name not in header]
    if missing:
        raise source.fail(
            f"no column {', '.join(missing)}; there are {', '.join(header)}", line=start
        )
    kinds = {**wanted, **{k: v for k, v in (optional or {}).items() if k in header}}
    if not has_rows:
        return {name: _joined([], kind) for name, kind in kinds.items()}
    import pyarrow as pa

    try:
        return _fast(source, start, header, kinds)
    except (pa.ArrowException, OSError) as error:
        raise _located(source, header, kinds, str(error)) from error


def _header(source: Source) -> tuple[int, list[str], bool]:
    """Return the header's line number and names, and whether any row follows."""
    lines = source.lines()
    for number, line in lines:
        names = [name.strip() for name in next(csv.reader([line]))]
        return number, names, next(lines, None) is not None
    raise source.fail("the file is empty")


def _fast(
    source: Source, start: int, header: list[str], kinds: Mapping[str, Kind]
) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    labels = pa.dictionary(pa.int32(), pa.string())
    types = {"number": pa.float64(), "time": pa.string(), "text": labels}
    convert = arrow_csv.ConvertOptions(
        include_columns=list(kinds),
        column_types={name: types[kind] for name, kind in kinds.items()},
        null_values=list(NULLS),
        strings_can_be_null=True,
    )
    parse = arrow_csv.ParseOptions(invalid_row_handler=_blank_is_no_row)
    parts: dict[str, list[Any]] = {name: [] for name in kinds}
    read = arrow_csv.ReadOptions(column_names=header, skip_rows=start, block_size=1 << 22)
    with source.open() as stream:
        reader = arrow_csv.open_csv(stream, read, parse, convert)
        for batch in reader:
            for name, kind in kinds.items():
                parts[name].append(_converted(batch.column(name), kind))
    return {name: _joined(parts[name], kind) for name, kind in kinds.items()}


def _blank_is_no_row(row: Any) -> str:
    return "error" if row.text.strip() else "skip"


def _converted(array: Any, kind: Kind) -> Any:
    if kind == "text":
        return array
    if kind == "time":
        array = _microseconds(array)
    return array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def _microseconds(texts: Any) -> Any:
    """Parse ISO 8601 times with 0 to 9 fraction digits, with or without a zone."""
    import pyarrow as pa
    from pyarrow import compute as pc

    texts = pc.utf8_trim_whitespace(texts)
    try:
        times = texts.cast(pa.timestamp("ns"))
    except pa.ArrowInvalid:
        times = texts.cast(pa.timestamp("ns", "UTC"))
    return pc.divide(times.cast(pa.int64()), 1000)


def _joined(parts: list[Any], kind: Kind) -> Any:
    if kind != "text":
        return np.concatenate(parts) if parts else np.zeros(0)
    if not parts:
        return Labels(np.zeros(0, np.int64), ())
    import pyarrow as pa

    whole = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Labels(codes, tuple(whole.dictionary.to_pylist()))


def _located(
    source: Source, header: list[str], kinds: Mapping[str, Kind], error: str
) -> TraceError:
    """Return the error that names the first bad line."""
    zoned: set[bool] = set()
    with source.open() as raw, io.TextIOWrapper(raw, "utf-8-sig", errors="replace") as text:
        reader = csv.reader(text)
        full = (fields for fields in reader if any(part.strip() for part in fields))
        next(full, None)
        for fields in full:
            fault = _fault(fields, header, kinds, zoned)
            if fault:
                return source.fail(fault, line=reader.line_num)
    return source.fail(f"cannot be read as CSV: {error}")


def _fault(
    fields: list[str], header: list[str], kinds: Mapping[str, Kind], zoned: set[bool]
) -> str:
    """Say what is wrong with one line, '' for nothing. ``zoned`` remembers the times' zones."""
    if len(fields) != len(header):
        return f"expected {len(header)} fields, found {len(fields)}"
    for name, kind in kinds.items():
        value = fields[header.index(name)].strip()
        if value in NULLS:
            continue
        if not _parses(value, kind):
            return f"{name}: {value[:40]!r} is not a {kind}"
        if kind == "time":
            zoned.add(_has_zone(value))
            if len(zoned) == 2:
                return f"{name}: {value!r} differs from the times before: one has a zone, one not"
    return ""


def _parses(value: str, kind: Kind) -> bool:
    import pyarrow as pa

    try:
        match kind:
            case "number":
                return "_" not in value and not math.isnan(float(value))
            case "time":
                _microseconds(pa.array([value]))
    except (ValueError, pa.ArrowException):
        return False
    return True


def _has_zone(value: str) -> bool:
    tail = value[11:]
    return value.endswith("Z") or "+" in tail or "-" in tail
