"""``vllm serve --middleware tuner.traces.record_asgi.RecordingMiddleware``

The environment says where: TUNER_RECORD, a folder or file (default ``recorded.jsonl``); each server
process writes a file of its own. TUNER_RECORD_SESSION names the header that tells sessions apart.
Start the server with ``--enable-force-include-usage``: streamed answers tell their token counts
only then, and requests without counts cannot be replayed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from tuner.traces.record import PATHS, SESSION_HEADERS, Call, Recorder

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)


class RecordingMiddleware:
    """Records the requests that pass through; a fault in recording never reaches them."""

    def __init__(self, app: App, recorder: Recorder | None = None) -> None:
        self.app = app
        self.recorder = recorder or _from_environment()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        wanted = scope["type"] == "http" and scope["path"] in PATHS and scope["method"] == "POST"
        call = None
        if wanted and self.recorder is not None:
            with contextlib.suppress(Exception):
                call = self.recorder.begin(_headers(scope))
        if call is None:
            await self.app(scope, receive, send)
        else:
            await _Tap(call, receive, send).run(self.app, scope)


class _Tap:
    """Passes messages on and notes them."""

    def __init__(self, call: Call, receive: Receive, send: Send) -> None:
        self._call = call
        self._receive = receive
        self._send = send
        self._parts: list[bytes] = []
        self._status = 500  # until the answer says otherwise: the app failed
        self._done = self._gone = False

    async def run(self, app: App, scope: Message) -> None:
        try:
            await app(scope, self.receive, self.send)
        finally:
            with contextlib.suppress(Exception):
                self._call.ended(self._status, cancelled=self._gone and not self._done)

    async def receive(self) -> Message:
        message = await self._receive()
        with contextlib.suppress(Exception):
            if message["type"] == "http.request":
                self._parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    self._call.asked(b"".join(self._parts))
                    self._parts.clear()
            elif message["type"] == "http.disconnect":
                self._gone = True
        return message

    async def send(self, message: Message) -> None:
        with contextlib.suppress(Exception):
            if message["type"] == "http.response.start":
                self._status = message["status"]
            elif message["type"] == "http.response.body":
                self._call.answered(bytes(message.get("body", b"")))
                self._done = not message.get("more_body")
        await self._send(message)


def _headers(scope: Message) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def _from_environment() -> Recorder | None:
    """Start the recorder of this process; None (and a warning) where it cannot write."""
    path = Path(os.environ.get("TUNER_RECORD", "recorded.jsonl"))
    path = path / "recorded.jsonl" if path.is_dir() else path
    header = os.environ.get("TUNER_RECORD_SESSION")
    headers = (header.lower(),) if header else SESSION_HEADERS
    recorder = Recorder(path, session_headers=headers)
    try:
        recorder.start()
    except OSError as error:
        _log.warning("requests are not recorded: %s", error)
        return None
    atexit.register(recorder.close)
    return recorder
