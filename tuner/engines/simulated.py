"""A simulated engine: discrete events in virtual time with a plain cost model.

For tests, planning, and studies of the search itself. Everything it produces says "simulated".

A step of the scheduler serves every running request with one token and fills the rest of
``max_num_batched_tokens`` with prompt tokens; it lasts ``step_s + prompt tokens * prompt_token_s +
running * sequence_s``. Requests wait while ``max_num_seqs`` run or the KV cache is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tuner.config import EngineConfig, Json
from tuner.engines import Completion
from tuner.errors import ConfigRejected
from tuner.trace import Request

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Jumps to the next timer: in virtual time nothing comes from outside."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(0)
            if not ready:
                raise RuntimeError("every task waits and no timer is pending")
            return ready
        self.now += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is virtual: ``sleep(60)`` takes no time at all."""

    def __init__(self) -> None:
        self._jump = _JumpingSelector()
        super().__init__(self._jump)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jump.now


@dataclass(frozen=True, slots=True)
class SimulatedCosts:
    """Seconds of a start and of one step, and the size of the simulated device."""

    start_s: float = 60.0
    reconfigure_s: float = 0.6
    step_s: float = 0.006
    prompt_token_s: float = 2.5e-5
    sequence_s: float = 8e-5
    #: KV cache at gpu_memory_utilization 1.0, in tokens.
    kv_tokens: int = 400_000
    #: Relative spread of a step's duration (lognormal sigma).
    noise: float = 0.02


@dataclass(slots=True)
class _Running:
    request: Request
    prompt_left: int
    cached: int
    done: asyncio.Future[Completion]
    token_s: list[float] = field(default_factory=list)

    @property
    def kv_tokens(self) -> int:
        return self.request.prompt_tokens + self.request.output_tokens


class SimulatedEngine:
    """Continuous batching with chunked prefill over a virtual device."""

    def __init__(self, config: EngineConfig, costs: SimulatedCosts) -> None:
        self._costs = costs
        self._args = dict(config.args)
        self._noise = np.random.default_rng(int(config.key, 16))
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._prefixes: OrderedDict[int, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._totals: dict[str, float] = {}
        self._config = config

    @property
    def facts(self) -> Mapping[str, Json]:
        """What the simulated engine runs with."""
        return {
            "version": "simulated",
            "device": "simulated",
            "simulated": True,
            "vocab_size": 32_000,
            "effective": dict(self._args),
            "kv_cache_tokens": self._capacity,
        }

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Queue one request and wait for its last token."""
        cached = self._hit(request)
        run = _Running(
            request,
            max(request.prompt_tokens - cached, 1),
            cached,
            asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(run)
        self._count_max("waiting_max", len(self._waiting))
        self._wake.set()
        return await run.done

    async def reset(self) -> None:
        """Forget prefixes and counters."""
        self._prefixes.clear()
        self._totals.clear()

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Take new values for the next step."""
        if hot:
            await asyncio.sleep(self._costs.reconfigure_s)
        self._args.update(hot)
        return dict(hot)

    async def counters(self) -> Mapping[str, float]:
        """Totals since the last reset."""
        totals = dict(self._totals)
        queries, hits = totals.pop("queries", 0.0), totals.pop("hits", 0.0)
        return {**totals, "prefix_hit_share": hits / queries} if queries else totals

    async def serve(self) -> None:
        """Run scheduler steps until cancelled."""
        while True:
            self._admit()
            if not self._running:
                self._wake.clear()
                await self._wake.wait()
                continue
            await asyncio.sleep(self._step())
            self._finish(asyncio.get_running_loop().time())

    @property
    def _capacity(self) -> int:
        return int(self._costs.kv_tokens * float(self._args.get("gpu_memory_utilization", 0.9)))

    def _admit(self) -> None:
        used = sum(run.kv_tokens for run in self._running)
        limit = int(self._args.get("max_num_seqs", 256))
        while self._waiting and len(self._running) < limit:
            used += self._waiting[0].kv_tokens
            if used > self._capacity and self._running:
                break
            self._running.append(self._waiting.popleft())
        self._count_max("running_max", len(self._running))
        self._count_max("kv_usage_max_share", min(used / self._capacity, 1.0))

    def _step(self) -> float:
        """Spend the token budget; return how long the step lasts."""
        budget = int(self._args.get("max_num_batched_tokens", 2048))
        budget -= sum(run.prompt_left == 0 for run in self._running)
        prompt_tokens = 0
        for run in self._running:
            if run.prompt_left and budget > 0:
                chunk = min(run.prompt_left, budget)
                run.prompt_left -= chunk
                budget -= chunk
                prompt_tokens += chunk
        costs = self._costs
        seconds = costs.step_s + prompt_tokens * costs.prompt_token_s
        seconds += len(self._running) * costs.sequence_s
        return seconds * float(np.exp(self._noise.normal(0.0, costs.noise)))

    def _finish(self, now: float) -> None:
        still: list[_Running] = []
        for run in self._running:
            if run.prompt_left == 0:
                run.token_s.append(now)
                self._totals["generated_tokens"] = self._totals.get("generated_tokens", 0) + 1
            if len(run.token_s) < run.request.output_tokens:
                still.append(run)
            elif not run.done.done():
                run.done.set_result(Completion(tuple(run.token_s), len(run.token_s), run.cached))
        self._running = [run for run in still if not run.done.cancelled()]

    def _hit(self, request: Request) -> int:
        """Return the prompt tokens in leading blocks seen before, and remember this prompt's."""
        hit, leading = 0, True
        for block, size in zip(request.blocks, request.block_tokens, strict=True):
            leading = leading and block in self._prefixes
            hit += size if leading else 0
            self._prefixes[block] = None
        if not self._args.get("enable_prefix_caching", True):
            hit = 0
        self._totals["queries"] = self._totals.get("queries", 0.0) + request.prompt_tokens
        self._totals["hits"] = self._totals.get("hits", 0.0) + hit
        return hit

    def _count_max(self, name: str, value: float) -> None:
        self._totals[name] = max(self._totals.get(name, 0.0), value)


@dataclass(frozen=True, slots=True)
class SimulatedLauncher:
    """Launches simulated engines. ``run`` gives a coroutine the virtual clock that they need."""

    costs: SimulatedCosts = field(default_factory=SimulatedCosts)

    @staticmethod
    def run(main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in virtual time."""
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(main)

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[SimulatedEngine]:
        """Start an engine after ``costs.start_s`` virtual seconds.

        Raises ConfigRejected for what vLLM refuses too: a token budget below max_num_seqs.
        """
        seqs = int(config.args.get("max_num_seqs", 256))
        budget = int(config.args.get("max_num_batched_tokens", 2048))
        if budget < seqs:
            detail = f"max_num_batched_tokens ({budget}) is less than max_num_seqs ({seqs})"
            raise ConfigRejected("invalid_arguments", detail)
        await asyncio.sleep(self.costs.start_s)
        engine = SimulatedEngine(config, self.costs)
        serving = asyncio.create_task(engine.serve())
        try:
            yield engine
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
