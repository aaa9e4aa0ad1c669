"""A launcher around another one whose engines also count what their GPUs do during a replay.

The counters of an engine are totals since its last reset; here they include the devices' memory,
activity and energy from the first request after the reset on (prompts made before it do not count).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tuner.config import EngineConfig, Json
from tuner.engines import Completion, Door, Engine, Launcher
from tuner.engines.gpu import Gpus, Meter, gpus_of
from tuner.trace import Request

#: Between two looks; NVML itself averages activity over 0.2 to 1 s.
LOOK_S = 0.2


@dataclass(slots=True)
class Sampler:
    """Looks at the devices in a thread, and adds up while a window is open."""

    gpus: Gpus
    _meter: Meter | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close_window(self) -> None:
        """Forget what was seen, and look no more until ``open_window``."""
        with self._lock:
            self._meter = None

    def open_window(self) -> None:
        """Begin to add up, unless that has begun."""
        if self._meter is None:
            self.add(begin=True)

    def add(self, *, begin: bool = False) -> None:
        """Look once more, while a window is open."""
        with self._lock:
            if begin and self._meter is None:
                self._meter = Meter()
            if self._meter is not None:
                self._meter.add(self.gpus.look())

    def values(self) -> dict[str, float]:
        """Return what was seen since the window was opened, up to now."""
        self.add()
        with self._lock:
            return {} if self._meter is None else self._meter.values()

    @contextlib.contextmanager
    def running(self, every_s: float = LOOK_S) -> Iterator[None]:
        """Look again and again while the body runs."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(every_s):
                self.add()

        thread = threading.Thread(target=look, name="gpu-sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@dataclass(frozen=True)
class MeteredEngine:
    """An engine with the counters of its GPUs beside its own."""

    engine: Engine
    sampler: Sampler

    @property
    def facts(self) -> Mapping[str, Json]:
        """Pass on."""
        return self.engine.facts

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Pass on; the first one opens the window."""
        self.sampler.open_window()
        return await self.engine.generate(request, prompt)

    async def reset(self) -> None:
        """Pass on; the window closes."""
        self.sampler.close_window()
        await self.engine.reset()

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Pass on."""
        return await self.engine.reconfigure(hot)

    async def counters(self) -> Mapping[str, float]:
        """Return the engine's counters and those of its GPUs; see ``gpu.Meter``."""
        seen = self.sampler.values()
        counted = await self.engine.counters()
        tokens, joules = counted.get("generated_tokens"), seen.get("energy_j")
        if tokens and joules:
            seen["tokens_per_joule"] = tokens / joules
        return {**counted, **seen}


@dataclass(frozen=True)
class PreparingEngine(MeteredEngine):
    """The same around an engine that takes requests made ready beforehand."""

    def prepare(self, request: Request, prompt: Sequence[int]) -> Sequence[int]:
        """Pass on."""
        prepared: Sequence[int] = self.engine.prepare(request, prompt)  # type: ignore[attr-defined]
        return prepared

    @property
    def clients(self) -> int:
        """Pass on. See ``Shared``."""
        return getattr(self.engine, "clients", 1)

    def door(self) -> Door:
        """Pass on."""
        door: Door = self.engine.door()  # type: ignore[attr-defined]
        return door

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[Callable[[int], None]]:
        """Pass on; the window opens."""
        self.sampler.open_window()
        async with self.engine.away() as answered:  # type: ignore[attr-defined]
            yield answered


@dataclass(frozen=True, slots=True)
class MeteredLauncher:
    """Launches through another launcher. Where the engine has no GPU, nothing is added."""

    inner: Launcher
    #: Gives the devices of a configuration.
    gpus_of: Callable[[EngineConfig], AbstractContextManager[Gpus | None]] = gpus_of

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Engine]:
        """Run the body with the engine. See ``Launcher.launch``."""
        async with self.inner.launch(config, log) as engine:
            with self.gpus_of(config) as gpus:
                if gpus is None:
                    yield engine
                    return
                sampler = Sampler(gpus)
                kind = PreparingEngine if hasattr(engine, "prepare") else MeteredEngine
                with sampler.running():
                    yield kind(engine, sampler)
