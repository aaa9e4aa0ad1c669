"""A launcher around another one that keeps the last engine alive and changes it live.

An engine start costs tens of seconds, a live change less than one. An engine serves every
configuration that differs from its own in hot arguments only: it is started at their largest values
(``live.ceiling``), because an engine can be turned down while it lives but not up. Hot arguments
without a bound (a policy, a threshold) are left out of that start, so that vLLM's own defaults are
known: a configuration that leaves one out (its knob's ``when`` does not hold) gets it back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.config import EngineConfig, Json, without
from tuner.engines import Completion, Engine, Launcher
from tuner.engines.live.ceiling import ceiling, is_sized, value_of
from tuner.errors import ConfigRejected, MeasurementInvalid
from tuner.trace import Request

_ABSENT = object()


@dataclass(slots=True)
class _Kept:
    """An engine that lives on between jobs."""

    engine: Engine
    cold_key: str
    log: str
    closing: contextlib.AsyncExitStack
    fresh: bool = True
    #: Why the engine runs as started instead of being changed, '' where it was changed.
    refused: str = ""


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """A kept engine as one job sees it: with the facts of that job's configuration."""

    engine: Engine
    facts: Mapping[str, Json]

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Pass on."""
        return await self.engine.generate(request, prompt)

    async def reset(self) -> None:
        """Pass on."""
        await self.engine.reset()

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Pass on."""
        return await self.engine.reconfigure(hot)

    async def counters(self) -> Mapping[str, float]:
        """Pass on."""
        return await self.engine.counters()


def can_be_kept(config: EngineConfig, hot: Collection[str]) -> bool:
    """Whether an engine of ``config`` may serve other configurations after it.

    Not one that leaves the size of something to vLLM (``max_num_seqs``): that may be more than any
    other configuration asks for. Nor one of special standing (a baseline): these are started
    exactly as they are.
    """
    sized = [name for name in hot if is_sized(name)]
    given = all(value_of(config.args, name, _ABSENT) is not _ABSENT for name in sized)
    return bool(hot) and given and not config.label


def to_start(
    config: EngineConfig, hot: Collection[str], maxima: Mapping[str, Json]
) -> EngineConfig:
    """Return what is started for ``config``: itself, where its engine cannot be kept.

    Else what can serve all configurations of its cold key, up to ``maxima``.
    """
    if not can_be_kept(config, hot):
        return config
    free = {name for name in hot if not is_sized(name)}
    sized = {name: most for name, most in maxima.items() if name not in free}
    return replace(config, args=ceiling(without(config.args, free), sized))


@dataclass(slots=True)
class KeepingLauncher:
    """Keeps one engine. ``aclose`` ends it; so does a launch that it cannot serve."""

    inner: Launcher
    #: Arguments that a live engine can change.
    hot: frozenset[str]
    #: Hot argument -> the largest value that will be asked for.
    maxima: Mapping[str, Json] = field(default_factory=dict)
    _kept: _Kept | None = None
    #: What the self-test of the first engine found wrong, '' for nothing; None before it.
    _fault: str | None = None

    @property
    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return what makes the event loop that the inner launcher needs, None for any loop."""
        return getattr(self.inner, "loop_factory", None)

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Engine]:
        """Run the body with the kept engine changed live, or a new one. See ``Launcher.launch``.

        ``facts["live"]`` says what was changed, where anything was. See ``can_be_kept``.
        """
        if self._fault or not can_be_kept(config, self.hot):
            await self.aclose()
            async with self.inner.launch(config, log) as engine:
                yield engine
            return
        kept, changed = await self._serving(config, log)
        try:
            yield LiveEngine(kept.engine, _facts(kept, changed))
        except MeasurementInvalid:
            raise  # we measured badly; the engine is not to blame
        except BaseException:
            await self.aclose()
            raise
        finally:
            kept.fresh = False

    async def aclose(self) -> None:
        """End the kept engine and all its processes."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.closing.aclose()

    async def _serving(self, config: EngineConfig, log: str) -> tuple[_Kept, Mapping[str, Json]]:
        """Return an engine that runs ``config``, and the hot values that it was changed to."""
        if self._kept is None or self._kept.cold_key != config.cold_key(self.hot):
            await self.aclose()
            self._kept = await self._start(to_start(config, self.hot, self.maxima), log)
        kept = self._kept
        try:
            await self._prove(kept.engine)
            changed = await kept.engine.reconfigure(_wanted(kept.engine, config, self.hot))
        except ConfigRejected as refused:
            # The engine is as it was; what it will not do live it may do from the start.
            await self.aclose()
            self._kept = await self._start(config, log)
            self._kept.refused = refused.detail
            return self._kept, {}
        except BaseException:
            await self.aclose()
            raise
        if not kept.fresh:
            Path(log).write_text(
                f"a live engine, changed to {dict(changed)}; its log: {kept.log}\n"
            )
        return kept, changed

    async def _prove(self, engine: Engine) -> None:
        """Let the first engine test itself, if it can (``live_fault``).

        Raises ConfigRejected where it failed: live changes are off from then on.
        """
        if self._fault is None:
            test = getattr(engine, "live_fault", None)
            self._fault = "" if test is None else await test()
        if self._fault:
            raise ConfigRejected("not_hot", f"live changes are off: {self._fault}")

    async def _start(self, config: EngineConfig, log: str) -> _Kept:
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(self.inner.launch(config, log))
            return _Kept(engine, config.cold_key(self.hot), log, stack.pop_all())


def _wanted(engine: Engine, config: EngineConfig, hot: Collection[str]) -> dict[str, Json]:
    """Return the hot values of ``config``; of those that it leaves out, the engine's own defaults.

    Raises ConfigRejected where a default is not known (``facts["started"]``).
    """
    started = engine.facts.get("started", {})
    wanted = {}
    for name in sorted(hot):
        value = value_of(config.args, name, _ABSENT)
        if value is _ABSENT:
            if name not in started:
                raise ConfigRejected("not_hot", f"{name}: the engine's default is not known")
            value = started[name]
        wanted[name] = value
    return wanted


def _facts(kept: _Kept, changed: Mapping[str, Json]) -> dict[str, Json]:
    facts = dict(kept.engine.facts)
    facts["effective"] = {**facts.get("effective", {}), **changed}
    facts["live"] = {"changed": dict(changed), "reused": not kept.fresh, "log": kept.log}
    if kept.refused:
        facts["live"]["refused"] = kept.refused
    return facts
