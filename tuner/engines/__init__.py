"""Engines: what answers requests. The seams that every engine adapter implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tuner.config import EngineConfig, Json
from tuner.trace import Request


@dataclass(frozen=True, slots=True)
class Completion:
    """An engine's answer to one request."""

    #: One time per output token, on the event loop's clock (``loop.time()``).
    token_s: tuple[float, ...]
    #: The engine's own count of output tokens.
    answered_tokens: int
    #: Prompt tokens served from the prefix cache, None where the engine does not say.
    cached_tokens: int | None = None


class Engine(Protocol):
    """A running engine."""

    @property
    def facts(self) -> Mapping[str, Json]:
        """What really runs: ``version``, ``device``, ``vocab_size``, ``effective`` (argument ->
        value as the engine has it), ``kv_cache_tokens``, ``start`` (phase -> seconds), ..."""

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Send token ids, ask for exactly ``request.output_tokens`` tokens, await them all.

        Raises RequestRejected where this request is refused, EngineFault where the engine is gone.
        """

    async def reset(self) -> None:
        """Forget cached prefixes and counters. Only called while idle."""

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Change hot arguments of the idle engine; return the values as read back.

        Raises ConfigRejected("not_hot", ...) and leaves the engine as it was where it cannot.
        """

    async def counters(self) -> Mapping[str, float]:
        """Return totals since the last ``reset`` under the metrics' names: ``preemptions``,
        ``kv_usage_max_share``, ``prefix_hit_share``, ``waiting_max``, ... as far as known."""


#: Opens an engine that runs already, in another process: it is pickled.
Door = Callable[[], AbstractAsyncContextManager[Engine]]


@runtime_checkable
class Shared(Protocol):
    """What an engine may offer besides ``Engine``: clients in processes of their own."""

    @property
    def clients(self) -> int:
        """How many send the requests of a replay; 1: no process but this one."""

    def door(self) -> Door:
        """Return what opens this engine in another process, as it is since its last reset."""

    def away(self) -> AbstractAsyncContextManager[Callable[[int], None]]:
        """Run the body while others send; the body tells how many tokens were answered.

        Raises what this process knows of an engine that died meanwhile.
        """


class Launcher(Protocol):
    """Starts engines of one kind."""

    def launch(self, config: EngineConfig, log: str) -> AbstractAsyncContextManager[Engine]:
        """Return a context manager whose body runs with a ready engine (it has made a token).

        ``log`` is the path of the file that takes the engine's output. Leaving the body ends every
        process of the engine. Raises ConfigRejected or EngineFault on entry.
        """
