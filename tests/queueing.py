"""An engine whose answers are known on paper: requests in order of arrival before some servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tuner.config import EngineConfig, Json
from tuner.engines import Completion
from tuner.engines.simulated import SimulatedLauncher
from tuner.errors import RequestRejected
from tuner.trace import Request

T = TypeVar("T")


@dataclass
class Queueing:
    """``servers`` serve one request each, a token every ``token_s``; ``refuse`` ids are refused."""

    servers: int = 1
    token_s: float = 1.0
    refuse: frozenset[int] = frozenset()
    facts: Mapping[str, Json] = field(default_factory=lambda: {"vocab_size": 100})
    resets: int = 0
    cut_off: int = 0

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.servers)
        self._made = 0

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        if request.id in self.refuse:
            raise RequestRejected("refused")
        times = []
        try:
            async with self._free:
                for _ in range(request.output_tokens):
                    await asyncio.sleep(self.token_s)
                    times.append(asyncio.get_running_loop().time())
                    self._made += 1
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        return Completion(tuple(times), len(times))

    async def reset(self) -> None:
        self.resets += 1

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        return hot

    async def counters(self) -> Mapping[str, float]:
        return {"generated_tokens": self._made}


@dataclass
class QueueingLauncher:
    """Starts engines in virtual time; the arguments are those of ``Queueing``."""

    start_s: float = 1.0
    engines: list[Queueing] = field(default_factory=list)

    @staticmethod
    def run(main: Coroutine[Any, Any, T]) -> T:
        return SimulatedLauncher.run(main)

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Queueing]:
        await asyncio.sleep(self.start_s)
        self.engines.append(Queueing(**config.args))
        yield self.engines[-1]
