"""A running OpenAI-compatible server as an engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.config import Json
from tuner.engines import Completion, Door
from tuner.engines.http_client import HttpClient
from tuner.engines.http_connection import Broken, Unreachable
from tuner.engines.http_stream import Answer
from tuner.engines.http_wire import RequestBytes, Writer
from tuner.engines.server_metrics import Tally, read
from tuner.engines.server_process import ServerProcess
from tuner.errors import ConfigRejected, EngineFault, RequestRejected
from tuner.trace import Request

#: Seconds between looks at the server's metrics while requests are open. Each look costs the
#: server a few milliseconds, and levels in between are not seen.
LOOK_S = 2.0
#: So many connections in a row that cannot be made mean that the server is gone.
GONE_AFTER = 5
#: Seconds that a dying server may take to exit after it broke a connection.
_EXIT_S = 5.0
#: Seconds for the server to let go of cancelled requests, and between looks.
_RESET_S = 5.0
_RESET_LOOK_S = 0.1
_OK = 200
#: How vLLM tells every open request that its engine is dead.
_DEAD = re.compile(r"EngineCore encountered an issue|EngineDeadError")
#: How the prefix cache is emptied between replays.
RESET_ENDPOINT = "POST /reset_prefix_cache"
RESET_SALT = "a cache_salt per replay"
RESET_NONE = "not at all: the server has neither of vLLM's ways"


@dataclass(slots=True)
class ServerEngine:
    """See ``Engine``. ``process`` is the server where we started it."""

    client: HttpClient
    writer: Writer
    process: ServerProcess | None = None
    facts: dict[str, Json] = field(default_factory=dict)
    #: Processes that send the requests of a replay. See ``Shared``.
    clients: int = 1
    _tally: Tally = field(default_factory=Tally)
    #: Open requests, and the tokens of all since the last reset, as seen from here.
    _open: dict[Answer, None] = field(default_factory=dict)
    _tokens: int = 0
    _unreachable: int = 0
    _away: bool = False

    def prepare(self, request: Request, prompt: Sequence[int]) -> RequestBytes:
        """Return the bytes to send: what ``generate`` takes in the prompt's place."""
        return self.writer.request(request, prompt)

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Answer one request. See ``Engine.generate``."""
        message = prompt if isinstance(prompt, RequestBytes) else self.prepare(request, prompt)
        answer = await self.answer(message)
        if problem := answer.problem():
            raise RequestRejected(problem)
        return answer.completion()

    async def answer(self, message: RequestBytes) -> Answer:
        """Return the server's answer, whatever it is.

        Raises RequestRejected where the connection broke, EngineFault where the server is gone.
        """
        answer = Answer()
        self._open[answer] = None
        try:
            await self.client.stream(message, answer)
            self._unreachable = 0
        except (Unreachable, Broken) as error:
            raise await self._translated(error, answer) from error
        finally:
            del self._open[answer]
            self._tokens += answer.tokens
        if _DEAD.search(answer.problem()):
            await self._raise_if_dead()
        return answer

    async def reset(self) -> None:
        """Forget prefixes and counters. Raises EngineFault("not_reset") while requests run."""
        if await self._emptied():
            self.facts["prefix_cache_reset"] = RESET_ENDPOINT
        elif self.writer.dialect.vllm:
            self.writer.cache_salt = uuid.uuid4().hex
            self.facts["prefix_cache_reset"] = RESET_SALT
        else:
            self.facts["prefix_cache_reset"] = RESET_NONE
        self._tokens = 0
        self._tally.reset(await self._metrics())
        await self.client.warm()

    async def _emptied(self) -> bool:
        """Whether the server emptied its prefix cache; False where it has no such endpoint."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + _RESET_S
        while clock() < give_up:
            reply = await self.client.ask("POST", "/reset_prefix_cache")
            if reply.status != _OK:
                return False
            done = reply.json()  # nothing until 0.11
            if not isinstance(done, dict) or done.get("success") is not False:
                return True
            await asyncio.sleep(_RESET_LOOK_S)  # blocks of a cancelled request, for a moment
        raise EngineFault("not_reset", "vLLM kept its prefix cache: requests still run")

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Change nothing for nothing; a server cannot be changed while it runs."""
        if hot:
            names = ", ".join(sorted(hot))
            raise ConfigRejected("not_hot", f"cannot be changed on a running server: {names}")
        return {}

    async def counters(self) -> Mapping[str, float]:
        """Return totals since the last reset. See ``Engine.counters``.

        Levels (``running_max``, ``waiting_max``, ``kv_usage_max_share``) are the highest of looks
        ``LOOK_S`` apart. Tokens are counted here where the server does not say.
        """
        self._tally.add(await self._metrics())
        seen = self._tokens + sum(answer.tokens for answer in self._open)
        return {"generated_tokens": float(seen), **self._tally.totals()}

    def door(self) -> Door:
        """Return what opens this engine in another process. See ``Shared``."""
        return functools.partial(opened, self.writer)

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[Callable[[int], None]]:
        """Run the body while other processes send. See ``Shared``."""
        self._away = True
        try:
            yield self._answered
        finally:
            self._away = False
            await self._raise_if_dead(0.0)

    def _answered(self, tokens: int) -> None:
        self._tokens += tokens

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at the server's levels while the body runs."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._open or self._away:
                self._tally.add(await self._metrics())

    async def _metrics(self) -> dict[str, float]:
        reply = await self.client.ask("GET", "/metrics")
        return read(reply.body.decode(errors="replace")) if reply.status == _OK else {}

    async def _translated(self, error: Unreachable | Broken, answer: Answer) -> Exception:
        """Say whether the server is gone, or broke this one request."""
        await self._raise_if_dead()
        if isinstance(error, Unreachable):
            self._unreachable += 1
            if self._unreachable >= GONE_AFTER:
                return EngineFault("unreachable", f"{error} ({self._unreachable} times in a row)")
        after = f" after {answer.tokens} tokens" if answer.tokens else ""
        return RequestRejected(f"{error}{after}")

    async def _raise_if_dead(self, within_s: float = _EXIT_S) -> None:
        if self.process is None:
            return
        if ended := await self.process.end_seen(within_s):
            raise self.process.death(ended)


@contextlib.asynccontextmanager
async def opened(writer: Writer) -> AsyncIterator[ServerEngine]:
    """Run the body with the engine that a writer writes to, over connections of our own."""
    async with HttpClient.open(writer.target) as client:
        await client.warm()
        yield ServerEngine(client, writer)
