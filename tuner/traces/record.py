"""Record what a server is asked, as our trace format: times, lengths, hashes; never any text.

A server adapter (``record_asgi``, ``record_proxy``) calls ``Recorder.begin`` and feeds the call it
gets. All parsing, hashing and writing happens in one background thread; a call costs the request a
clock reading and an append. Finished requests reach the file within FLUSH_S, so a crash loses what
ended in the last second (and what had not ended).

Blocks are chained keyed BLAKE2b hashes. Token-id prompts are cut into blocks of 16 tokens, exactly;
of text, every 256 bytes are a block whose tokens are estimated when it is first seen. The key is
random, lives in memory alone, and dies with the recording: nobody can test a guess at a prompt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tuner.config import Json
from tuner.traces.own import SCHEMA, meta_path

#: Requests of these paths are recorded.
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
SESSION_HEADERS = ("x-session-id", "session-id", "x-conversation-id")
CLASS_HEADER = "x-slo-class"
FLUSH_S = 0.5
TOKEN_BLOCK = 16
TEXT_BLOCK_BYTES = 256
#: The usage lies at the end of an answer.
_TAIL_BYTES = 16_384
#: Finished requests that may wait for the thread; more are counted and lost.
_BACKLOG = 10_000
#: Text blocks whose estimate is kept.
_KNOWN_BLOCKS = 200_000
#: Answers with another status than these are failures.
_GOOD = range(200, 300)


@dataclass(slots=True)
class Call:
    """One request under way. Methods are cheap and never raise."""

    recorder: Recorder
    arrival_ns: int
    headers: Mapping[str, str]
    first_ns: int = 0
    end_ns: int = 0
    status: str = "ok"
    body: bytes = b""
    tail: bytes = b""

    def asked(self, body: bytes) -> None:
        """Note the whole body of the request."""
        self.body = body

    def answered(self, chunk: bytes) -> None:
        """Note a part of the answer."""
        if chunk and not self.first_ns:
            self.first_ns = time.monotonic_ns()
        self.tail = (self.tail + chunk)[-_TAIL_BYTES:] if len(self.tail) else chunk[-_TAIL_BYTES:]

    def ended(self, http_status: int, cancelled: bool = False) -> None:
        """Note the end; the row is written soon."""
        self.end_ns = time.monotonic_ns()
        if cancelled:
            self.status = "cancelled"
        elif http_status not in _GOOD:
            self.status = "error"
        self.recorder.hand_over(self)


class Recorder:
    """Writes one recording. Use it as a context, or call ``start`` and ``close``.

    A file that is there already is left alone: the name gets a number. OSError where the folder
    cannot be written.
    """

    def __init__(
        self, path: str | Path, *, session_headers: tuple[str, ...] = SESSION_HEADERS
    ) -> None:
        self.path = Path(path)
        self.session_headers = session_headers
        #: Requests written, lost to a full backlog, and lost to a fault of ours.
        self.counts = {"written": 0, "lost": 0, "faults": 0}
        self._queue: deque[Call] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trace-recorder", daemon=True)
        self._began_ns = 0
        self._rows = _Rows(os.urandom(32), session_headers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Create the files and start the thread."""
        self.path = _unused(self.path)
        self._began_ns = time.monotonic_ns()
        self._stream = self.path.open("x", encoding="utf-8", newline="\n")
        self._write_meta(datetime.now(UTC).isoformat(timespec="microseconds"))
        self._thread.start()

    def close(self) -> None:
        """Write what is left and stop. Safe to call twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self, headers: Mapping[str, str]) -> Call:
        """Start the clock of a request. Header names are lower case."""
        return Call(self, time.monotonic_ns(), headers)

    def hand_over(self, call: Call) -> None:
        """Give an ended call to the thread."""
        if len(self._queue) < _BACKLOG:
            self._queue.append(call)
        else:
            self.counts["lost"] += 1

    def _work(self) -> None:
        with self._stream:
            while not self._stopping.wait(FLUSH_S):
                self._drain()
            self._drain()

    def _drain(self) -> None:
        while self._queue:
            try:
                row = self._rows.row(self._queue.popleft(), self._began_ns)
                self._stream.write(json.dumps(row, separators=(",", ":")) + "\n")
                self.counts["written"] += 1
            except Exception:  # whatever a client sent, recording goes on and the server with it
                self.counts["faults"] += 1
        with contextlib.suppress(OSError):  # a full disk must not end the thread
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def _write_meta(self, started: str) -> None:
        meta = {
            "schema": SCHEMA,
            "name": self.path.stem,
            "resolution_us": 1,
            "t0_utc": started,
            "notes": [
                f"recorded from {started}; hashes keyed with a secret that was not kept",
                f"text prompts: blocks of {TEXT_BLOCK_BYTES} bytes, their tokens estimated",
            ],
        }
        meta_path(self.path).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


@dataclass(slots=True)
class _Rows:
    """Turns ended calls into rows. Only the thread uses it."""

    key: bytes
    session_headers: tuple[str, ...]
    #: Block id -> its estimated tokens, the oldest first.
    known: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def row(self, call: Call, began_ns: int) -> dict[str, Json]:
        usage = _usage(call.tail)
        asked = _object(call.body)
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        status = call.status
        row: dict[str, Json] = {
            "t_us": (call.arrival_ns - began_ns) // 1000,
            "in_tok": prompt,
            "out_tok": usage.get("completion_tokens", usage.get("output_tokens")),
            "dur_us": (call.end_ns - call.arrival_ns) // 1000,
            "status": status,
        }
        if call.first_ns:
            row["ttft_us"] = (call.first_ns - call.arrival_ns) // 1000
        row["blocks"], row["block_lens"] = self._blocks(asked, prompt)
        session = next((call.headers[h] for h in self.session_headers if h in call.headers), None)
        if session:
            row["session"] = f"{self._hash(b'', session.encode()):x}"
        if name := call.headers.get(CLASS_HEADER):
            row["cls"] = name[:40]
        if isinstance(asked.get("priority"), int):
            row["prio"] = asked["priority"]
        return row

    def _blocks(self, asked: Mapping[str, Json], prompt: Json) -> tuple[list[int], list[int]]:
        if not isinstance(prompt, int) or prompt < 1:
            return [], []
        tokens = asked.get("prompt")
        if isinstance(tokens, list) and tokens and all(type(token) is int for token in tokens):
            raw = b"".join(token.to_bytes(4, "little") for token in tokens)
            ids = list(self._chain(raw, 4 * TOKEN_BLOCK))
            sizes = [TOKEN_BLOCK] * len(ids)
        else:
            text = _text(asked)
            each = max(1, round(TEXT_BLOCK_BYTES * prompt / max(1, len(text))))
            ids = list(self._chain(text, TEXT_BLOCK_BYTES))
            sizes = [self._tokens(block, each) for block in ids]
        return _fitting(ids, sizes, prompt)

    def _chain(self, raw: bytes, size: int) -> Iterator[int]:
        """Yield an id per full block; it stands for the block and all before it."""
        before = b""
        for start in range(0, len(raw) - size + 1, size):
            number = self._hash(before, raw[start : start + size])
            before = number.to_bytes(8, "little")
            yield number

    def _hash(self, before: bytes, content: bytes) -> int:
        digest = hashlib.blake2b(before + content, key=self.key, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 2  # ids of a trace are below 2**62

    def _tokens(self, block: int, estimate: int) -> int:
        """Return the block's tokens: what was estimated when it was first seen."""
        known = self.known.setdefault(block, estimate)
        self.known.move_to_end(block)
        if len(self.known) > _KNOWN_BLOCKS:
            self.known.popitem(last=False)
        return known


def _fitting(ids: list[int], sizes: list[int], prompt: int) -> tuple[list[int], list[int]]:
    """Cut estimated blocks that would not fit the prompt."""
    total = 0
    for n, size in enumerate(sizes):
        total += size
        if total > prompt:
            return ids[:n], sizes[:n]
    return ids, sizes


def _text(asked: Mapping[str, Json]) -> bytes:
    """Return the parts of a request that make its prompt, in the order templates use them."""
    parts = [asked.get(name) for name in ("tools", "instructions", "messages", "prompt", "input")]
    return json.dumps([part for part in parts if part is not None], ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(tail: bytes) -> dict[str, Any]:
    """Return the last usage object of an answer, {} where it has none.

    Generated text cannot fake one: inside a JSON string its quotes are escaped.
    """
    text = tail.decode("utf-8", "replace")
    at = text.rfind('"usage":')
    while at >= 0:
        rest = text[at + len('"usage":') :].lstrip()
        with contextlib.suppress(ValueError):
            value = json.JSONDecoder().raw_decode(rest)[0]
            if isinstance(value, dict):
                return value
        at = text.rfind('"usage":', 0, at)
    return {}


def _unused(path: Path) -> Path:
    """Return the path, or with the first number that makes it new."""
    new, n = path, 0
    while new.exists():
        n += 1
        new = path.with_name(f"{path.stem}-{n}{path.suffix}")
    return new
