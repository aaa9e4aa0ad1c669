"""Connections to one server: kept alive, opened ahead, one exchange at a time each."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from tuner.engines.http_stream import Sink
from tuner.engines.http_wire import RequestBytes, Target

#: Connections kept open beyond those in use, so that a burst finds them open.
SPARE = 32
#: Connections opened at one time: a listening socket's queue is finite, and a dropped
#: connection request is repeated only after a second.
_OPENING = 64
#: An idle connection is not used after this: uvicorn closes it after 5 s.
_IDLE_S = 4.5
_TIDY_S = 1.0


class Unreachable(ConnectionError):
    """No connection could be made."""


class Broken(ConnectionError):
    """The connection ended, or spoke no HTTP, before the response was complete."""


class Connection(asyncio.Protocol):
    """One connection. ``exchange`` sends a request and feeds its response to a sink."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_free: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._clock = clock
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self.free_since = 0.0

    async def exchange(self, message: RequestBytes, sink: Sink) -> None:
        """Send a request at once; return when its response is complete. Raises Broken.

        A cancelled exchange closes the connection, which tells the server to stop.
        """
        if self._transport is None:
            raise Broken("the connection is closed")
        self._sink = sink
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        try:
            await self._done
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Close without waiting."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    @property
    def open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass
        self.free_since = self._clock()

    def data_received(self, data: bytes) -> None:
        """Parse what came. One time stands for all of it."""
        self._now = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(Broken(f"not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Break the exchange under way."""
        self._transport = None
        self._on_lost(self)
        self._end(Broken(f"the server closed the connection{f': {exc}' if exc else ''}"))

    # The parser calls these.

    def on_headers_complete(self) -> None:
        """Hand the status to the sink."""
        if self._sink is not None:
            self._sink.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Hand a piece of the body to the sink."""
        if self._sink is not None:
            self._sink.feed(body, self._now)

    def on_message_complete(self) -> None:
        """End the exchange; the connection is free for the next."""
        keep = self._parser.should_keep_alive()
        self._end(None)
        if not keep:
            self.close()
        elif self.open:
            self.free_since = self._now
            self._on_free(self)

    def _end(self, error: Exception | None) -> None:
        done, self._done, self._sink = self._done, None, None
        if done is None or done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


class Pool:
    """The connections to one server. A context: all are closed on leaving."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._free: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._opening = asyncio.Semaphore(_OPENING)
        self._low = asyncio.Event()
        self._tidying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Pool:
        _allow_many_files()
        self._clock = asyncio.get_running_loop().time
        self._tidying = asyncio.create_task(self._tidy())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        for connection in list(self._all):
            connection.close()
        self._free.clear()

    async def take(self) -> Connection:
        """Return an open connection, at once where one is free. Raises Unreachable."""
        connection = self._newest()
        if len(self._free) < SPARE // 2:
            self._low.set()
        return connection or await self._connect()

    async def fill(self) -> None:
        """Open connections until the spare ones are complete; what fails is left out."""
        missing = SPARE - len(self._free)
        opened = await asyncio.gather(
            *(self._connect() for _ in range(missing)), return_exceptions=True
        )
        self._free.extend(item for item in opened if isinstance(item, Connection))

    def _newest(self) -> Connection | None:
        oldest = self._clock() - _IDLE_S
        while self._free:
            connection = self._free.pop()
            if connection.open and connection.free_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        target = self._target
        async with self._opening:
            try:
                _, connection = await loop.create_connection(
                    self._new, target.host, target.port, ssl=True if target.tls else None
                )
            except OSError as error:
                raise Unreachable(f"{target}: {error}") from error
        self._all.add(connection)
        return connection

    def _new(self) -> Connection:
        return Connection(self._clock, self._free.append, self._all.discard)

    async def _tidy(self) -> None:
        """Replace idle connections before the server closes them, for as long as it is there."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TIDY_S):
                    await self._low.wait()
            self._low.clear()
            self._drop_old()
            try:
                while len(self._free) < SPARE:  # one by one: requests leave in between
                    self._free.appendleft(await self._connect())
            except Unreachable:
                await asyncio.sleep(_TIDY_S)

    def _drop_old(self) -> None:
        """Close those that would be too old before the next look."""
        oldest = self._clock() - _IDLE_S + 2 * _TIDY_S
        for _ in range(len(self._free)):
            connection = self._free.popleft()
            if connection.open and connection.free_since > oldest:
                self._free.append(connection)
            else:
                connection.close()


def _allow_many_files() -> None:
    """Raise this process's soft limit of open files: each open request is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        if hard == resource.RLIM_INFINITY or soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
