"""A running ``vllm serve`` with our middleware, seen from outside."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.config import Json
from tuner.engines.http_client import HttpClient
from tuner.engines.http_stream import Reply
from tuner.engines.http_wire import Target
from tuner.errors import ConfigRejected, EngineFault

PATH = "/tuner/live"
#: Seconds that a change itself may take, beyond the wait for an idle engine.
CHANGE_S = 60.0
_HINTS = {
    401: "the server's TUNER_LIVE_TOKEN is another one",
    403: "run this on the machine of the server, and give a loopback address",
    404: "start it with TUNER_LIVE_TOKEN=... vllm serve ... "
    "--middleware tuner.engines.live.middleware.LiveConfig",
}


@dataclass(frozen=True, slots=True)
class LiveServer:
    """Asks and changes one server. Make it with ``LiveServer.open``."""

    client: HttpClient

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, token: str) -> AsyncIterator[LiveServer]:
        """Run the body with a server. Raises StudyError for a bad URL; connects when asked."""
        target = Target.parse(url, {"Authorization": f"Bearer {token}"})
        async with HttpClient.open(target) as client:
            yield cls(client)

    async def state(self) -> dict[str, Any]:
        """Return what the engine says of itself: see ``LiveConfig``.

        Raises EngineFault where there is no such server, ConfigRejected("not_hot") where its engine
        cannot be changed live at all.
        """
        state: dict[str, Any] = _content(await self.client.ask("GET", PATH), self.client.target)
        if state.get("off"):
            raise ConfigRejected("not_hot", state["off"])
        return state

    async def change(self, values: Mapping[str, Json], drain_s: float = 0.0) -> dict[str, Json]:
        """Change arguments; return them as read back.

        Raises ConfigRejected("not_hot") where the engine refuses and is as it was, EngineFault
        where it is not known what it runs now.
        """
        path = f"{PATH}?{urllib.parse.urlencode({'drain_s': drain_s})}"
        reply = await self.client.ask("POST", path, dict(values), drain_s + CHANGE_S)
        got: dict[str, Json] = _content(reply, self.client.target)["values"]
        return got


def _content(reply: Reply, target: Target) -> Any:
    if reply.status == 200 and (content := reply.json()) is not None:
        return content
    if reply.status == 0:
        raise EngineFault("unreachable", f"{target} gives no answer", "is the server running?")
    detail = _error(reply)
    if reply.status in (400, 409, 413):
        raise ConfigRejected("not_hot", detail)
    reason = "not_live" if reply.status in _HINTS else "not_applied"
    raise EngineFault(reason, f"{target}: status {reply.status}: {detail}", _hint(reply.status))


def _hint(status: int) -> str:
    return _HINTS.get(status, "")


def _error(reply: Reply) -> str:
    try:
        content = json.loads(reply.body)
    except ValueError:
        return reply.body[:200].decode(errors="replace")
    return str(content.get("error", content) if isinstance(content, dict) else content)
