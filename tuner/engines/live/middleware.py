"""Changing a running ``vllm serve`` over HTTP, off unless asked for.

    TUNER_LIVE_TOKEN=secret vllm serve MODEL --middleware tuner.engines.live.middleware.LiveConfig

    GET  /tuner/live     what can be changed, the values in effect, all other engine arguments
    POST /tuner/live     {"max_num_seqs": 64, ...}: change them; wants an idle engine
    POST /tuner/live?drain_s=30    holds back new requests until the engine is idle and changed

Held requests wait here and are answered afterwards: none is lost. (Of several API server processes
only one holds its requests back; the change is then refused while the others get some.) While
one change holds requests back, another one that wants to is refused.

Without the variable the paths do not exist. Each request needs ``Authorization: Bearer secret`` and
must come from the machine itself. Answers are JSON: 200 with the values as read back, or an
``error`` with 400 (no JSON object), 401 (token), 403 (not from here), 405, 409 (refused, the engine
is as it was) or 413.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import math
import os
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from tuner.config import Json
from tuner.engines import vllm_args
from tuner.engines.live import client
from tuner.errors import ConfigRejected, EngineFault

TOKEN = "TUNER_LIVE_TOKEN"
PATH = "/tuner/live"
#: The longest that new requests can be held back, in seconds.
DRAIN_MAX_S = 600.0
_BODY_BYTES = 65536

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Answer(Exception):
    """The answer to give: a status and what to say."""

    def __init__(self, status: int, content: Json) -> None:
        super().__init__(status)
        self.status = status
        self.content = content if isinstance(content, dict) else {"error": content}


class LiveConfig:
    """ASGI middleware that answers under ``/tuner/live`` and passes on everything else."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._token = os.environ.get(TOKEN, "")
        self._open = asyncio.Event()
        self._open.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        ours = scope["type"] == "http" and scope["path"] == PATH
        if not (ours and self._token):
            if scope["type"] == "http" and scope["method"] == "POST":
                await self._open.wait()
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
            answer = _Answer(200, await self._answered(scope, receive))
        except _Answer as other:
            answer = other
        await _say(send, answer)

    def _admit(self, scope: Scope) -> None:
        if not _is_here(scope.get("client")):
            raise _Answer(403, "only from the machine itself")
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise _Answer(401, "this needs the token")

    async def _answered(self, scope: Scope, receive: Receive) -> dict[str, Json]:
        llm = scope["app"].state.engine_client
        try:
            match scope["method"]:
                case "GET":
                    return {**await client.state(llm), **_arguments(llm)}
                case "POST":
                    drain_s = _drain_s(scope)
                    values = _values(await _body(receive))
                    return {"values": dict(await self._changed(llm, values, drain_s))}
                case _:
                    raise _Answer(405, "GET or POST")
        except ConfigRejected as rejected:
            raise _Answer(409, rejected.detail) from rejected
        except EngineFault as fault:
            raise _Answer(500, str(fault)) from fault

    async def _changed(
        self, llm: Any, values: Mapping[str, Json], drain_s: float
    ) -> Mapping[str, Json]:
        if not drain_s:
            return await client.apply(llm, values)
        if not self._open.is_set():  # waiting for it could outlast the caller's own patience
            raise ConfigRejected("not_hot", "another change holds requests back just now")
        self._open.clear()
        try:
            return await client.apply(llm, values, idle_s=drain_s)
        finally:
            self._open.set()


def _is_here(address: Any) -> bool:
    try:
        host = ipaddress.ip_address(address[0])
    except (TypeError, IndexError, ValueError):
        return False
    mapped = getattr(host, "ipv4_mapped", None)
    return bool((mapped or host).is_loopback)


def _arguments(llm: Any) -> dict[str, Json]:
    """Return the model and every engine argument as the front end has it, nested ones whole."""
    config = getattr(llm, "vllm_config", None)
    if config is None:
        return {}
    asked = dict.fromkeys(vllm_args.argument_names())
    return {
        "model": config.model_config.model,
        "arguments": vllm_args.effective(asked, None, config),
    }


def _drain_s(scope: Scope) -> float:
    query = urllib.parse.parse_qs(scope.get("query_string", b"").decode())
    text = query.get("drain_s", ["0"])[-1]
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= DRAIN_MAX_S:
        raise _Answer(400, f"drain_s: {text!r} is no number of seconds up to {DRAIN_MAX_S:g}")
    return seconds


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > _BODY_BYTES:
            raise _Answer(413, f"more than {_BODY_BYTES} bytes")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return body


def _values(body: bytes) -> dict[str, Json]:
    try:
        values = json.loads(body)
    except ValueError as error:
        raise _Answer(400, f"not JSON: {error}") from error
    if not isinstance(values, dict) or not values:
        raise _Answer(400, "a JSON object of engine arguments is wanted")
    return {name.replace("-", "_"): value for name, value in values.items()}


async def _say(send: Send, answer: _Answer) -> None:
    body = json.dumps(answer.content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
