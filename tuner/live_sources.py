"""Where a watched preset comes from: a file, or a key in etcd.

``updates`` yields what is there first, and then every change, for ever. A source that cannot be
read for a while says so in what it yields, and goes on.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from watchfiles import awatch

from tuner.errors import Problem, StudyError

#: Files are looked at this often even where the file system reports no changes (some mounts).
_LOOK_MS = 2000
_STEP_MS = 50
#: Seconds until etcd is asked again after it went away, doubled up to the last.
_AGAIN_S, _AGAIN_MAX_S = 0.5, 30.0
_ANSWER_S = 10.0
#: etcd says this often that a quiet watch is alive.
_SILENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a source holds: a text, or a problem that says why there is none."""

    text: str | None
    problem: str = ""


class Source(Protocol):
    """Where presets come from."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def updates(self) -> AsyncIterator[Seen]:
        """Yield what is there, then every change."""


def source_of(text: str) -> Source:
    """Read ``file:PATH`` or ``etcd://host:port/key``. Raises StudyError for anything else."""
    scheme, _, rest = text.partition(":")
    if scheme == "file" and rest:
        path = Path(rest.removeprefix("//"))
        if not path.absolute().parent.is_dir():
            raise StudyError(Problem("", "--source", f"no such folder: {path.parent}"))
        return FileSource(path)
    if scheme == "etcd":
        try:
            parts = urlsplit(text)
            host, port, key = parts.hostname, parts.port or 2379, parts.path[1:]
        except ValueError:
            host, port, key = None, 0, ""
        if host and key:
            return EtcdSource(host, port, key)
    fault = f"expected file:PATH or etcd://host:port/key, found {text!r}"
    raise StudyError(Problem("", "--source", fault))


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file; it may be replaced as a whole, also by a changed link (Kubernetes does so)."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return f"file:{self.path}"

    async def updates(self) -> AsyncIterator[Seen]:
        """Yield the file's text, then every change of it."""
        last = self._read()
        yield last
        async for _ in awatch(
            self.path.absolute().parent,
            debounce=_STEP_MS,
            step=_STEP_MS,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            recursive=False,
        ):
            now = self._read()
            if now != last:
                last = now
                yield now

    def _read(self) -> Seen:
        try:
            return Seen(self.path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            return Seen(None, f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class EtcdSource:
    """A key in etcd (version 3), over its JSON gateway, which every etcd serves.

    A key that begins with a slash has two of them in the URL: ``etcd://host:2379//tuner/preset``.
    """

    host: str
    port: int
    key: str

    @property
    def name(self) -> str:
        """The URL."""
        return f"etcd://{self.host}:{self.port}/{self.key}"

    async def updates(self) -> AsyncIterator[Seen]:
        """Yield the key's value, then every change; after a break, what is there by then."""
        wait_s, last = _AGAIN_S, None
        limits = aiohttp.ClientTimeout(total=None, connect=_ANSWER_S, sock_read=_SILENCE_S)
        base = f"http://[{self.host}]" if ":" in self.host else f"http://{self.host}"
        async with aiohttp.ClientSession(f"{base}:{self.port}", timeout=limits) as session:
            while True:
                try:
                    async for seen in self._connected(session):
                        wait_s = _AGAIN_S
                        if seen != last:
                            last = seen
                            yield seen
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                    problem = Seen(None, f"{type(error).__name__}: {error}")
                    if problem != last:
                        last = problem
                        yield problem
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_MAX_S)

    async def _connected(self, session: aiohttp.ClientSession) -> AsyncIterator[Seen]:
        """Yield the value and its changes until the connection breaks or etcd ends the watch."""
        key = base64.b64encode(self.key.encode()).decode()
        async with session.post("/v3/kv/range", json={"key": key}) as response:
            response.raise_for_status()
            answer = json.loads(await response.read())
        found = answer.get("kvs", [])
        yield self._value(found[0]) if found else self._gone()
        after = int(answer["header"]["revision"]) + 1  # nothing between the two is missed
        create = {"create_request": {"key": key, "start_revision": str(after)}}
        async with session.post("/v3/watch", json=create) as response:
            response.raise_for_status()
            async for message in _messages(response):
                result = message["result"]
                if result.get("canceled"):
                    return
                for event in result.get("events", []):
                    deleted = event.get("type") == "DELETE"
                    yield self._gone() if deleted else self._value(event["kv"])

    def _value(self, entry: Mapping[str, Any]) -> Seen:
        # The gateway leaves empty values out. UnicodeDecodeError and binascii.Error are ValueErrors
        return Seen(base64.b64decode(entry.get("value", "")).decode())

    def _gone(self) -> Seen:
        return Seen(None, f"etcd has no key {self.key!r}")


async def _messages(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON messages of a streamed answer, one a line, of any length."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in filter(None, lines):
            yield json.loads(line)
