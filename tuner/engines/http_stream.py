"""A streamed completion as it comes in. A chunk is not a token: the server's usage counts them."""

from __future__ import annotations

import json
import math
from typing import Protocol

from tuner.config import Json
from tuner.engines import Completion

#: Bytes of an error's body that are kept.
_ERROR_BYTES = 20_000
_OK = 200

#: How an answer's token times came about, best first.
COUNTED = "counted by the server in every chunk"
SPREAD = "the server's total, spread evenly over the chunks"
CHUNKS = "one per chunk: the server does not count tokens"


class Sink(Protocol):
    """Takes a response as it comes in."""

    status: int

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, which arrived at ``now``."""


class Reply:
    """A small response, kept whole."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def feed(self, data: bytes, now: float) -> None:
        """Keep the bytes."""
        self.body += data

    def json(self) -> Json:
        """Return the body's JSON value, None where it is none or the status is not 200."""
        try:
            return json.loads(self.body) if self.status == _OK else None
        except ValueError:
            return None


class Answer:
    """Token times and counts of one streamed completion (server-sent events)."""

    def __init__(self) -> None:
        self.status = 0
        self.error = ""
        self.finished = False
        self.cached_tokens: int | None = None
        #: The server's total, None where it gave none.
        self.total: int | None = None
        self._rest = b""
        self._times: list[float] = []
        #: Time of each chunk without a count, and whether it has text.
        self._uncounted: list[tuple[float, bool]] = []

    @property
    def tokens(self) -> int:
        """Tokens so far; chunks where the server does not count."""
        return len(self._times) + len(self._uncounted)

    @property
    def timing(self) -> str:
        """How the token times came about: COUNTED, SPREAD or CHUNKS."""
        if not self._uncounted:
            return COUNTED
        return CHUNKS if self.total is None else SPREAD

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, which arrived at ``now``."""
        if self.status != _OK:
            self._rest = (self._rest + data)[:_ERROR_BYTES]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def problem(self) -> str:
        """Return why this is no full answer, '' if it is one."""
        if self.status != _OK:
            return f"status {self.status}: {_message(self._rest)}"
        if self.error:
            return self.error
        if self.finished or self.total is not None:
            return ""
        return f"the stream ended after {self.tokens} tokens without [DONE]"

    def completion(self) -> Completion:
        """Return the answer with one time per token."""
        times = self._times
        if self._uncounted:
            times = _spread(self._uncounted, self.total)
        elif self.total is not None and times and self.total != len(times):
            times = (times + times[-1:] * self.total)[: self.total]
        return Completion(tuple(times), len(times), self.cached_tokens)

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.finished = True
            return
        try:
            event = json.loads(payload)
        except ValueError:
            self.error = f"not JSON: {payload[:200]!r}"
            return
        if event.get("error"):
            self.error = _message(payload)
            return
        usage = event.get("usage") or {}
        count = usage.get("completion_tokens")
        if choices := event.get("choices"):
            self._chunk(bool(choices[0].get("text")), count, now)
        if count is not None:
            self.total = count
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            self.cached_tokens = details["cached_tokens"]

    def _chunk(self, has_text: bool, count: int | None, now: float) -> None:
        if count is None or self._uncounted:  # a count on the last chunk alone is the total
            self._uncounted.append((now, has_text))
        else:
            self._times += [now] * (count - len(self._times))


def _spread(chunks: list[tuple[float, bool]], total: int | None) -> list[float]:
    """Return one time per token, as even as the chunks' times allow, first and last kept.

    Chunks without text (a role, a finish reason, half a character) count where the total says so.
    """
    times = [at for at, _ in chunks]
    if len(times) != total:
        times = [at for at, has_text in chunks if has_text] or times
    if total is None or total == len(times):
        return times
    ends = [math.ceil(total * (i + 1) / len(times)) for i in range(len(times))]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return [at for at, count in zip(times, counts, strict=True) for _ in range(count)]


def _message(body: bytes) -> str:
    """Return what an error's body says, in its own words."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text[:500] or "no message"
    value = value.get("error", value) if isinstance(value, dict) else value
    said = value.get("message") if isinstance(value, dict) else value
    return str(said or value)
