"""A small reverse proxy that records: for servers that one cannot restart with a middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from multidict import CIMultiDict

from tuner.traces.record import PATHS, Call, Recorder

#: Headers that belong to one connection and are not passed on.
_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "content-length", "accept-encoding",
}  # fmt: skip
#: Bodies are held whole before they go on.
_MOST_BODY_BYTES = 256 * 2**20


def proxy(upstream: str, recorder: Recorder) -> web.Application:
    """Return the proxy as an application. Everything goes to ``upstream``; its paths stay."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _forward(request, upstream.rstrip("/"), request.app[_CLIENT], recorder)

    app = web.Application(client_max_size=_MOST_BODY_BYTES)
    app.cleanup_ctx.append(_client)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


_CLIENT = web.AppKey("client", ClientSession)


async def _client(app: web.Application) -> Any:
    # No limit of ours may come before the server's own.
    timeout = ClientTimeout(total=None, sock_connect=30)
    async with ClientSession(timeout=timeout, auto_decompress=False) as session:
        app[_CLIENT] = session
        yield


async def _forward(
    request: web.Request, upstream: str, client: ClientSession, recorder: Recorder
) -> web.StreamResponse:
    if request.method != "POST" or request.path not in PATHS:
        return await _exchange(request, upstream, client, None)
    call = recorder.begin({name.lower(): value for name, value in request.headers.items()})
    status, cancelled = 502, False
    try:
        response = await _exchange(request, upstream, client, call)
        status = response.status
        return response
    except (asyncio.CancelledError, ConnectionResetError):
        cancelled = True
        raise
    finally:
        call.ended(status, cancelled)


async def _exchange(
    request: web.Request, upstream: str, client: ClientSession, call: Call | None
) -> web.StreamResponse:
    """Send the request on and its answer back, piece by piece as it comes."""
    body = await request.read()
    if call:
        call.asked(body)
    response = None
    try:
        async with client.request(
            request.method,
            upstream + request.path_qs,
            data=body or None,
            headers=[*_passed(request.headers), ("Accept-Encoding", "identity")],
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(
                status=answer.status, headers=CIMultiDict(_passed(answer.headers))
            )
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if call:
                    call.answered(chunk)
                await response.write(chunk)
            await response.write_eof()
            return response
    except ClientError as error:
        # Once an answer has begun, the client must see it break off, as it did upstream.
        if response is not None and response.prepared:
            raise
        return web.json_response({"error": {"message": f"upstream: {error}"}}, status=502)


def _passed(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _HOP]
