"""A server whose engine can be changed live: our own middleware in front of a made-up engine."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tuner.config import Json
from tuner.engines.live.middleware import TOKEN, LiveConfig

SECRET = "secret"
STARTED: Mapping[str, Json] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "scheduling_policy": "fcfs",
    "watermark": 0.0,
}
REASON = "the layout of recurrent layers' state depends on it"
ARGUMENTS: Mapping[str, Json] = {
    **STARTED,
    "block_size": 16,
    "enable_prefix_caching": True,
    "kv_cache_dtype": "auto",
    "compilation_config": {"mode": 3, "cudagraph_mode": "FULL"},
}


class MadeUpCore:
    """Answers the utility calls of our plugin. Tests script it through its attributes."""

    def __init__(self) -> None:
        self.values = dict(STARTED)
        #: How many of the next changes find the engine busy.
        self.busy = 0
        #: What the engine makes of a value: a change of this argument ends up at another value.
        self.bends: dict[str, Json] = {}
        self.sets: list[dict[str, Json]] = []
        self.off = ""

    async def call_utility_async(self, method: str, *args: Any) -> dict[str, Json]:
        if self.off:
            return {"hot": [], "cold": {}, "off": self.off}
        if method == "tuner_live_get":
            return self._state()
        return self._set(dict(args[0]))

    def _state(self) -> dict[str, Json]:
        return {
            "hot": list(STARTED),
            "cold": {
                "enable_prefix_caching": "the layout of recurrent layers' state depends on it"
            },
            "started": dict(STARTED),
            "values": dict(self.values),
            "effective": {},
            "model": "org/model",
            "arguments": dict(ARGUMENTS),
        }

    def _set(self, values: dict[str, Json]) -> dict[str, Json]:
        if self.busy:
            self.busy -= 1
            return {"ok": False, "busy": True, "reason": "the engine is not idle"}
        if values.get("scheduling_policy", "fcfs") not in ("fcfs", "priority"):
            return {"ok": False, "busy": False, "reason": "scheduling_policy: no such policy"}
        self.sets.append(values)
        self.values |= {**values, **{n: v for n, v in self.bends.items() if n in values}}
        return {"ok": True, **self._state()}


@dataclass
class Served:
    """A running server and its engine."""

    core: MadeUpCore
    url: str


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Run the body beside a server on the loopback that lives in a thread."""
    monkeypatch.setenv(TOKEN, SECRET)
    core = MadeUpCore()
    ready: queue.SimpleQueue[str] = queue.SimpleQueue()
    stop = threading.Event()

    async def main() -> None:
        runner = await _started(core)
        host, port = runner.addresses[0][:2]
        ready.put(f"http://{host}:{port}")
        await asyncio.to_thread(stop.wait)
        await _left()
        await runner.cleanup()
        await asyncio.sleep(0)  # the transports' own last words

    thread = threading.Thread(target=asyncio.run, args=[main()])
    thread.start()
    try:
        yield Served(core, ready.get(timeout=10))
    finally:
        stop.set()
        thread.join(10)


def free_port() -> int:
    """Return a port of the loopback that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def _started(core: MadeUpCore) -> web.AppRunner:
    asgi = LiveConfig(_nothing_else)
    llm = SimpleNamespace(engine_core=core, output_processor=SimpleNamespace(stream_interval=1))
    state = SimpleNamespace(state=SimpleNamespace(engine_client=llm))

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        answer: dict[str, Any] = {}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            answer.update(message)

        scope = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query_string.encode(),
            "client": (request.remote, 1),
            "headers": [(k.lower().encode(), v.encode()) for k, v in request.headers.items()],
            "app": state,
        }
        await asgi(scope, receive, send)
        return web.Response(
            status=answer["status"], body=answer["body"], content_type="application/json"
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def _left() -> None:
    """Wait until every client, all of which have closed, was accepted and is gone.

    A server that closes with a connection half accepted leaves that one unclosed.
    """
    for _ in range(3):
        await asyncio.sleep(0)  # whoever waits in the socket's queue is accepted
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.001)


async def _nothing_else(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})
