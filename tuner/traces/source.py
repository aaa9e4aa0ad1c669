"""The file a trace is read from: its bytes, its numbered lines, and errors that name them."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from tuner.config import Json
from tuner.errors import Problem, TraceError

Row = Mapping[str, Json]
#: Ids and microseconds stay below this, so that sums of two fit 64 bits.
MOST = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEAD_CHARS = 1 << 20
#: First bytes of a compressed file -> the codec's name in pyarrow. The extension is not asked.
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Source:
    """A file (plain, gzip or zstd) or a folder of files."""

    path: Path

    def fail(self, message: str, *, line: int | None = None, hint: str = "") -> TraceError:
        """Return the error that blames ``line`` of this file (from 1, blank ones count)."""
        field = f"line {line}" if line else ""
        return TraceError(Problem(str(self.path), field, message), hint)

    @property
    def magic(self) -> bytes:
        """The first four bytes, b"" for a folder."""
        if self.path.is_dir():
            return b""
        with self.path.open("rb") as stream:
            return stream.read(4)

    def sha256(self) -> str:
        """Return the hash of the file's bytes as stored; of names and bytes for a folder."""
        hasher = hashlib.sha256()
        for file in self.files():
            if file != self.path:
                hasher.update(file.name.encode())
            with file.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    hasher.update(chunk)
        return hasher.hexdigest()

    def files(self) -> list[Path]:
        """Return the file itself, or the folder's ``*.json`` files by name."""
        return sorted(self.path.rglob("*.json")) if self.path.is_dir() else [self.path]

    def open(self) -> IO[bytes]:
        """Open the content as bytes, decompressed where the first bytes say so."""
        import pyarrow as pa

        codec = next((name for sign, name in _CODECS.items() if self.magic.startswith(sign)), None)
        stream = pa.OSFile(str(self.path))
        return cast(IO[bytes], stream if codec is None else pa.CompressedInputStream(stream, codec))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (line number, text) of every line that is not blank; BOM and line ends removed."""
        number = 0
        with self.open() as raw, io.TextIOWrapper(raw, "utf-8-sig") as text:
            try:
                for line in text:
                    number += 1
                    if line.strip():
                        yield number, line.rstrip("\r\n")
            except (UnicodeDecodeError, OSError) as error:
                raise self.fail(f"cannot be read as text: {error}", line=number + 1) from error

    def text(self, limit: int = -1) -> str:
        """Return the content, or its first ``limit`` characters; U+FFFD for what is no text."""
        with self.open() as raw, io.TextIOWrapper(raw, "utf-8-sig", errors="replace") as text:
            return text.read(limit)

    def json(self) -> Json:
        """Return the whole content as one JSON value. TraceError names the line of a fault."""
        try:
            return json.loads(self.text())
        except ValueError as error:
            raise self.fail(f"not JSON: {error}", line=getattr(error, "lineno", None)) from error

    def rows(self) -> Iterator[tuple[int, dict[str, Json]]]:
        """Yield (line number, object) per line of a JSONL file."""
        for line, text in self.lines():
            try:
                row = json.loads(text)
            except ValueError as error:
                raise self.fail(f"not JSON: {error}", line=line) from error
            if not isinstance(row, dict):
                raise self.fail("each line must be one JSON object", line=line)
            yield line, row

    def object(self, value: Json, what: str, line: int = 0) -> dict[str, Any]:
        """Return ``value``, which must be a JSON object."""
        if not isinstance(value, dict):
            raise self.fail(f"{what}: expected an object", line=line)
        return value

    def objects(self, value: Json, what: str, line: int = 0) -> list[dict[str, Any]]:
        """Return ``value``, which must be a list of JSON objects."""
        if not isinstance(value, list):
            raise self.fail(f"{what}: expected a list", line=line)
        return [self.object(item, what, line) for item in value]

    def number(self, row: Row, key: str, line: int) -> float:
        """Return ``row[key]`` as a float; NaN where it is missing, null or empty.

        TraceError for text that is no number.
        """
        value = row.get(key)
        if value is None or value == "":
            return math.nan
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            shown = json.dumps(value)[:40]
            raise self.fail(f"{key}: expected a number, found {shown}", line=line) from None

    def whole(self, row: Row, key: str, line: int, default: int) -> int:
        """Return ``row[key]`` as an integer; ``default`` where it is missing or beyond 2**62."""
        value = self.number(row, key, line)
        return round(value) if -MOST < value < MOST else default

    def moment(self, row: Row, key: str, line: int) -> float:
        """Return a wall-clock time as microseconds since 1970 UTC; NaN where it is missing.

        Numbers are told apart by size: seconds below 1e11, then milliseconds, microseconds from
        1e14, nanoseconds from 1e17. Text is such a number, or ISO 8601 (without zone: UTC).
        """
        value = row.get(key)
        if isinstance(value, str) and any(sign in value[1:] for sign in "-:T"):
            return self._iso(value, key, line)
        number = self.number(row, key, line)
        for limit, factor in ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0)):
            if not number >= limit:
                return number * factor
        return number / 1e3

    def _iso(self, text: str, key: str, line: int) -> float:
        try:
            at = datetime.fromisoformat(text.strip())
        except ValueError:
            raise self.fail(f"{key}: {text[:40]!r} is not a time", line=line) from None
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        since = at - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1e6 + since.microseconds

    def ids(self, row: Row, key: str, line: int) -> list[int]:
        """Return ``row[key]`` as a list of integers >= 0; [] where it is missing or null."""
        value = row.get(key) or []
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v < MOST for v in value):
            raise self.fail(f"{key}: expected a list of integers >= 0 and < 2**62", line=line)
        return value


@dataclass(frozen=True, slots=True)
class Head:
    """What format detection may look at: the first megabyte, parsed as far as it goes."""

    path: Path
    #: Decompressed start of the file; "" for folders and Parquet.
    text: str
    #: Names of a comma-separated header line, () where the first line is JSON.
    columns: tuple[str, ...]
    #: The first line (or whole file) as a JSON object, {} where it is none.
    first: dict[str, Json]
    is_parquet: bool = False

    def has_columns(self, *names: str) -> bool:
        """Whether the header has all these names."""
        return set(names) <= set(self.columns)

    def has_keys(self, *names: str) -> bool:
        """Whether the first JSON object has all these keys."""
        return set(names) <= set(self.first)


def head_of(source: Source) -> Head:
    """Read just enough of a file to tell its format."""
    if source.path.is_dir():
        inner = source.files()
        return head_of(Source(inner[0])) if inner else Head(source.path, "", (), {})
    if source.magic == PARQUET_MAGIC:
        return Head(source.path, "", (), {}, is_parquet=True)
    try:
        text = source.text(_HEAD_CHARS)
    except OSError as error:
        raise source.fail(f"cannot be read: {error}") from error
    line = next((line for line in text.splitlines() if line.strip()), "")
    first = _object(line) or _object(text)
    is_json = line.lstrip()[:1] in ("{", "[")
    columns = () if is_json else tuple(name.strip().strip('"') for name in line.split(","))
    return Head(source.path, text, columns, first)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
