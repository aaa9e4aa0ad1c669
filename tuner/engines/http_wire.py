"""Requests as bytes, built before they are due: sending one is a single write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

from tuner.config import Json
from tuner.errors import Problem, StudyError
from tuner.trace import Request

PORTS = {"http": 80, "https": 443}


class RequestBytes(bytes):
    """A whole HTTP request, ready to send."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server: where it listens, what its paths begin with, and what every request carries."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None) -> Target:
        """Read ``http://host:port[/prefix]``; a final ``/v1`` is not part of the prefix.

        Raises StudyError where it is no such URL.
        """
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port or PORTS[parts.scheme]
        except (ValueError, KeyError):
            parts, port = urlsplit(""), 0
        if not parts.hostname:
            fault = f"expected http://host:port or https://host, found {url!r}"
            raise StudyError(Problem("", "url", fault))
        prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.hostname, port, parts.scheme == "https", prefix, headers or {})

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    def message(self, method: str, path: str, body: bytes = b"") -> RequestBytes:
        """Return one HTTP request with a JSON body."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            f"Content-Length: {len(body)}",
            *(["Content-Type: application/json"] if body else []),
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return RequestBytes("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


class TokenText:
    """Token ids as JSON text by one table look-up: a hundred thousand in a few milliseconds.

    Every id takes the same width, padded with the spaces that JSON allows before a number.
    """

    def __init__(self, vocab_size: int) -> None:
        self._table = _table(vocab_size)

    def of(self, tokens: Sequence[int]) -> bytes:
        """Return ``tokens`` as a JSON array."""
        ids = np.asarray(tokens, np.int64)
        if not len(ids):
            return b"[]"
        if ids.max() >= len(self._table):
            self._table = _table(int(ids.max()) + 1)
        return b"[" + self._table.take(ids).tobytes()[:-1] + b"]"


def _table(size: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    width = len(str(size - 1)) + 1
    return np.frombuffer(b"".join(b"%*d," % (width - 1, i) for i in range(size)), f"V{width}")


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which fields beyond OpenAI's own a server takes."""

    #: vLLM's fields: exact output lengths, and token counts with every chunk.
    vllm: bool = True
    #: Requests carry their priority (vLLM refuses it without its priority policy).
    priority: bool = False

    def fields(self, output_tokens: int) -> dict[str, Json]:
        """Return the body of a request for exactly so many tokens, without model and prompt."""
        options: dict[str, Json] = {"include_usage": True}
        body: dict[str, Json] = {
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        if self.vllm:
            options["continuous_usage_stats"] = True
            body |= {"min_tokens": output_tokens, "ignore_eos": True}
        return body


class Writer:
    """Writes completion requests for one model of one server."""

    def __init__(self, target: Target, model: str, vocab_size: int, dialect: Dialect) -> None:
        self.target = target
        self.dialect = dialect
        #: Set so that requests share no cached prefix with those before; '' sends none.
        self.cache_salt = ""
        self._model = model
        self._text = TokenText(vocab_size)

    def request(self, request: Request, prompt: Sequence[int]) -> RequestBytes:
        """Return the HTTP request that asks for exactly ``request.output_tokens`` tokens."""
        fields = {"model": self._model, **self.dialect.fields(request.output_tokens)}
        if self.cache_salt:
            fields["cache_salt"] = self.cache_salt
        if self.dialect.priority:
            fields["priority"] = request.priority
        head = json.dumps(fields, separators=(",", ":")).encode()
        body = b'%s,"prompt":%s}' % (head[:-1], self._text.of(prompt))
        return self.target.message("POST", "/v1/completions", body)
