"""A client of one server: streamed answers at full speed, and small questions besides."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from tuner.config import Json
from tuner.engines.http_connection import Broken, Pool, Unreachable
from tuner.engines.http_stream import Answer, Reply
from tuner.engines.http_wire import RequestBytes, Target

#: Seconds for a small question (version, metrics, reset).
ASK_S = 10.0


class HttpClient:
    """Talks to one server over pooled connections. Nothing is ever sent twice."""

    def __init__(self, pool: Pool, target: Target) -> None:
        self._pool = pool
        self.target = target

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, target: Target) -> AsyncIterator[HttpClient]:
        """Run the body with a client; every connection is closed on leaving."""
        async with Pool(target) as pool:
            yield cls(pool, target)

    async def stream(self, message: RequestBytes, answer: Answer) -> None:
        """Send a request; return when ``answer`` is complete. Raises Unreachable or Broken."""
        connection = await self._pool.take()
        await connection.exchange(message, answer)

    async def ask(self, method: str, path: str, body: Json = None, limit_s: float = ASK_S) -> Reply:
        """Return a small response; status 0 where none came within the time."""
        data = b"" if body is None else json.dumps(body).encode()
        reply = Reply()
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._pool.take()
                await connection.exchange(self.target.message(method, path, data), reply)
        except (TimeoutError, Unreachable, Broken):
            return Reply()
        return reply

    async def warm(self) -> None:
        """Open the spare connections now."""
        await self._pool.fill()
