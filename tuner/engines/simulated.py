"""A simulated engine: discrete events in virtual time with a plain cost model.

For tests, planning, and studies of the search itself. Everything it produces says "simulated".

The scheduler is in ``simulated_batch``, what it costs in ``simulated_costs``; here both meet the
clock of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.config import EngineConfig, Json, digest
from tuner.engines import Completion, simulated_batch
from tuner.engines.simulated_batch import Batch
from tuner.engines.simulated_costs import (
    DEFAULTS,
    HOT,
    SimulatedCosts,
    check,
    compile_key,
)
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


class SimulatedEngine:
    """A simulated scheduler (``Batch``) whose steps take virtual time."""

    def __init__(self, config: EngineConfig, costs: SimulatedCosts) -> None:
        self._costs = costs
        self._config = config
        self._args = dict(config.args)
        self._kv_tokens = costs.kv_tokens(config.args)
        self._batch = Batch(self._args, costs.pace(self._args), self._kv_tokens)
        self._waits: dict[int, asyncio.Future[Completion]] = {}
        self._orders = itertools.count()
        self._wake = asyncio.Event()
        self._reseed()

    @property
    def facts(self) -> Mapping[str, Json]:
        """What the simulated engine runs with."""
        return {
            "version": "simulated",
            "device": "simulated",
            "simulated": True,
            "vocab_size": 32_000,
            "effective": dict(self._args),
            "started": {name: {**DEFAULTS, **self._config.args}[name] for name in HOT},
            "kv_cache_tokens": self._kv_tokens,
        }

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Queue one request and wait for its last token."""
        order = next(self._orders)
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        sequence = self._batch.add(request, order)
        self._waits[order] = done
        self._wake.set()
        try:
            return await done
        except asyncio.CancelledError:
            self._waits.pop(order, None)
            self._batch.drop(sequence)
            raise

    async def reset(self) -> None:
        """Forget prefixes and counters."""
        self._batch.reset()
        self._reseed()

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Take new values for the next step. Raises ConfigRejected for what is not hot."""
        cold = sorted(set(hot) - HOT)
        if cold:
            raise ConfigRejected("not_hot", f"a live engine cannot change {', '.join(cold)}")
        wanted = {**self._args, **hot}
        check(wanted)
        if hot:
            await asyncio.sleep(self._costs.reconfigure_s)
        self._args = wanted
        self._batch.apply(wanted, self._costs.pace(wanted))
        return dict(hot)

    async def counters(self) -> Mapping[str, float]:
        """Totals since the last reset."""
        totals = dict(self._batch.totals)
        queries, hits = totals.pop("queries", 0.0), totals.pop("hits", 0.0)
        return {**totals, "prefix_hit_share": hits / queries} if queries else totals

    async def serve(self) -> None:
        """Run scheduler steps until cancelled."""
        while True:
            self._wake.clear()
            if not self._batch.busy:
                await self._wake.wait()
            elif self._batch.steady:
                await self._span()
            else:
                seconds = self._batch.step() * float(self._noisy(1)[0])
                await asyncio.sleep(seconds)
                self._commit([asyncio.get_running_loop().time()])

    async def _span(self) -> None:
        """Make like steps at once; where a request arrives meanwhile, end with the present one."""
        clock = asyncio.get_running_loop().time
        seconds = self._batch.span()
        ends = clock() + np.cumsum(seconds * self._noisy(len(seconds)))
        try:
            async with asyncio.timeout_at(float(ends[-1])):
                await self._wake.wait()
        except TimeoutError:
            self._commit(ends.tolist())
            return
        made = int(np.searchsorted(ends, clock(), side="right")) + 1
        made = min(made, len(ends))
        await asyncio.sleep(max(float(ends[made - 1]) - clock(), 0.0))
        self._commit(ends[:made].tolist())

    def _commit(self, ends: list[float]) -> None:
        for sequence in self._batch.commit(ends):
            done = self._waits.pop(sequence.order, None)
            if done is not None and not done.done():
                times = self._seen(sequence)
                done.set_result(Completion(times, len(times), sequence.cached))

    def _seen(self, sequence: simulated_batch.Sequence) -> tuple[float, ...]:
        """Return when the client sees each token: the first, then every n-th, and the last."""
        times = [at for begin, end in sequence.pieces for at in self._batch.ends[begin:end]]
        every = int(self._args.get("stream_interval", 1))
        if every == 1:
            return tuple(times)
        last = len(times) - 1
        return tuple(times[min(-(-n // every) * every, last)] for n in range(len(times)))

    def _reseed(self) -> None:
        """Start the noise anew: the same arguments measure the same, live or from a start."""
        seed = int(digest([self._config.model, self._args]), 16)
        self._random = np.random.default_rng(seed)

    def _noisy(self, n: int) -> NDArray[np.float64]:
        return np.exp(self._random.normal(0.0, self._costs.noise, n))


@dataclass(frozen=True, slots=True)
class SimulatedLauncher:
    """Launches simulated engines. ``run`` gives a coroutine the virtual clock that they need."""

    costs: SimulatedCosts = field(default_factory=SimulatedCosts)
    #: Hashes of what was compiled: starting it again is cheaper.
    compiled: set[str] = field(default_factory=set)

    @property
    def loop_factory(self) -> type[VirtualTimeLoop]:
        """The event loop that simulated engines need."""
        return VirtualTimeLoop

    @staticmethod
    def run(main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in virtual time."""
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(main)

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[SimulatedEngine]:
        """Start an engine after the virtual seconds of a first, or of a repeated, start.

        Raises ConfigRejected for a token budget below max_num_seqs (at once, as vLLM does) and
        where memory does not suffice (after a warm start's seconds).
        """
        check(config.args)
        costs = self.costs
        key = compile_key(config.model, config.args)
        warm = key in self.compiled or bool(config.args.get("enforce_eager"))
        try:
            engine = SimulatedEngine(config, costs)
        except ConfigRejected:
            await asyncio.sleep(costs.warm_start_s)
            raise
        await asyncio.sleep(costs.warm_start_s if warm else costs.start_s)
        self.compiled.add(key)
        serving = asyncio.create_task(engine.serve())
        try:
            yield engine
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
