"""Engines that differ only in their HTTP layer: ours, aiohttp, httpx."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from tuner.config import EngineConfig, Json
from tuner.engines import Completion, Engine
from tuner.engines.http_stream import Answer
from tuner.engines.http_wire import Dialect
from tuner.engines.server import ServerLauncher
from tuner.errors import RequestRejected
from tuner.trace import Request


class LibraryEngine:
    """Answers through a library: ``post`` yields the pieces of a response's body."""

    facts: Mapping[str, Json] = {}

    def __init__(self, post: Callable[[bytes], AsyncIterator[bytes]]) -> None:
        self._post = post

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        answer = Answer()
        answer.status = 200
        now = asyncio.get_running_loop().time
        fields = {"model": "fake", **Dialect().fields(request.output_tokens)}
        async for piece in self._post(json.dumps({**fields, "prompt": prompt}).encode()):
            answer.feed(piece, now())
        if problem := answer.problem():
            raise RequestRejected(problem)
        return answer.completion()

    async def reset(self) -> None: ...

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        return hot

    async def counters(self) -> Mapping[str, float]:
        return {}


@contextlib.asynccontextmanager
async def over_aiohttp(url: str) -> AsyncIterator[Engine]:
    """Each request through one aiohttp session without a limit of connections."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def post(body: bytes) -> AsyncIterator[bytes]:
            headers = {"content-type": "application/json"}
            async with session.post(f"{url}/v1/completions", data=body, headers=headers) as got:
                async for piece in got.content.iter_any():
                    yield piece

        yield LibraryEngine(post)


@contextlib.asynccontextmanager
async def over_httpx(url: str) -> AsyncIterator[Engine]:
    """Each request through one httpx client without a limit of connections."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60.0) as client:

        async def post(body: bytes) -> AsyncIterator[bytes]:
            headers = {"content-type": "application/json"}
            async with client.stream(
                "POST", f"{url}/v1/completions", content=body, headers=headers
            ) as got:
                async for piece in got.aiter_raw():
                    yield piece

        yield LibraryEngine(post)


@contextlib.asynccontextmanager
async def over_our_own(url: str) -> AsyncIterator[Engine]:
    """What the product does."""
    async with ServerLauncher(url=url).launch(EngineConfig(""), "") as engine:
        yield engine


ENGINES: dict[str, Callable[[str], AbstractAsyncContextManager[Any]]] = {
    "ours": over_our_own,
    "aiohttp": over_aiohttp,
    "httpx": over_httpx,
}
