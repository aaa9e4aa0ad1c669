"""vLLM's AsyncLLM in this process: the engine of the search.

Meant for a plain process that launches many engines one after another: vLLM is imported once and
forks its engine processes from here. Importing this module does not import vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.accuracy import Scored
from tuner.config import EngineConfig, Json
from tuner.engines import Completion, vllm_args
from tuner.engines.live import client, plugin
from tuner.engines.priming import first_start
from tuner.engines.server_port import SLOT_VARIABLE, inner_ports
from tuner.engines.vllm_env import METHOD, base_env, choose_start_method, fit_threads, own_cache
from tuner.engines.vllm_errors import death, message_of, refusal, start_failure
from tuner.engines.vllm_facts import facts_of
from tuner.engines.vllm_process import Descendants, environment_kept, output_to
from tuner.engines.vllm_scoring import score
from tuner.engines.vllm_start import broken_down, compilation, start_phases
from tuner.errors import ConfigRejected, EngineFault, RequestRejected, TunerError
from tuner.trace import Request

if TYPE_CHECKING:
    from tuner.engines.vllm_counters import Counters

__all__ = ["VllmEngine", "VllmLauncher", "base_env"]

_T = TypeVar("_T")
_FIRST = Request(id=-1, arrival_s=0.0, prompt_tokens=1, output_tokens=1)
#: Seconds until blocks of cancelled requests must be free.
_RESET_S = 5.0
#: Seconds between looks at what cannot be awaited.
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class VllmLauncher:
    """Starts engines of the installed vLLM, one at a time."""

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[VllmEngine]:
        """Run the body with an engine that has made a token. See ``Launcher.launch``.

        While the body runs, all that this process prints goes to ``log``.
        """
        began = time.monotonic()
        since = os.path.getsize(log) if os.path.exists(log) else 0
        with output_to(log), environment_kept():
            os.environ.update(inner_ports(os.environ.get(SLOT_VARIABLE), config))
            children = Descendants()
            try:
                start = await _in_thread(lambda: _import_and_build(config), children)
                async with contextlib.AsyncExitStack() as stack:
                    async with first_start(start.vllm_config.compute_hash()) as waited_s:
                        start.seconds["waited_s"] = waited_s
                        engine = await _start(config, start, children, _Log(log, since))
                        stack.callback(engine.llm.shutdown)
                        await engine.make_first_token(began)
                    yield engine
            finally:
                children.end()


@dataclass(frozen=True, slots=True)
class _Log:
    """The file that takes an engine's output, and where this engine's part begins, in bytes."""

    path: str
    since: int


@dataclass(slots=True)
class _Start:
    """A start under way: vLLM's configuration objects, and how long each phase took."""

    args: Any
    vllm_config: Any
    seconds: dict[str, float]


def _import_and_build(config: EngineConfig) -> _Start:
    began = time.monotonic()
    fit_threads()
    import vllm.v1.engine.async_llm  # noqa: F401

    plugin.register()  # vLLM does so itself, unless VLLM_PLUGINS or stale metadata is in the way
    imported = time.monotonic()
    method = os.environ.get(METHOD)
    try:
        args, vllm_config = vllm_args.built(config)
    except Exception as error:
        raise refusal(error) from error
    built = time.monotonic()
    choose_start_method(method)
    os.environ.update(own_cache(vllm_config))
    return _Start(args, vllm_config, {"import_s": imported - began, "config_s": built - imported})


async def _start(
    config: EngineConfig, start: _Start, children: Descendants, log: _Log
) -> VllmEngine:
    from tuner.engines.vllm_counters import Counters

    counters = Counters()
    began = time.monotonic()
    try:
        llm = await _in_thread(lambda: _async_llm(start, counters), children)
    except Exception as error:
        raise start_failure(error, log.path, log.since) from error
    start.seconds["engine_s"] = time.monotonic() - began
    return VllmEngine(llm, config, start, counters, log)


def _async_llm(start: _Start, counters: Counters) -> Any:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_vllm_config(
        start.vllm_config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        stat_loggers=[counters.logger],
        enable_log_requests=start.args.enable_log_requests,
        disable_log_stats=start.args.disable_log_stats,
    )


async def _in_thread(work: Callable[[], _T], children: Descendants) -> _T:
    """Await blocking work; on cancellation end the processes it waits for, then its thread."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            children.end()
            await asyncio.wait([task], timeout=_LOOK_S)
        if not task.cancelled() and task.exception() is None:
            getattr(task.result(), "shutdown", lambda: None)()
        raise


@dataclass(slots=True)
class VllmEngine:
    """A running AsyncLLM. See ``Engine``."""

    llm: Any
    config: EngineConfig
    start: _Start
    tally: Counters
    log: _Log
    facts: dict[str, Json] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _answered: int = 0

    async def make_first_token(self, launch_began: float) -> None:
        """Prove that the engine works by one real token, then gather the facts.

        Raises EngineFault or ConfigRejected where it does not.
        """
        began = time.monotonic()
        await self.generate(_FIRST, [1])
        now = time.monotonic()
        seconds = self.start.seconds
        seconds |= {"first_token_s": now - began, "start_s": now - launch_began}
        self.facts |= facts_of(self.config, self.start.args, self.llm.vllm_config)
        log = (self.log.path, self.log.since)
        self.facts["start"] = broken_down(start_phases(*log), seconds)
        self.facts["compile"] = compilation(*log)
        with contextlib.suppress(ConfigRejected):  # without the plugin nothing is changed live
            self.facts["started"] = (await client.state(self.llm)).get("started", {})
        await self.reset()

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        """Answer one request. See ``Engine.generate``."""
        now = asyncio.get_running_loop().time
        times: list[float] = []
        cached: int | None = None
        try:
            async for output in self._outputs(request, prompt):
                new = len(output.outputs[0].token_ids)
                times += [now()] * new
                cached = (
                    output.num_cached_tokens if output.num_cached_tokens is not None else cached
                )
        except Exception as error:
            raise self._translated(error) from error
        self._answered += 1
        return Completion(tuple(times), len(times), cached)

    def _outputs(self, request: Request, prompt: Sequence[int]) -> AsyncIterator[Any]:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=request.output_tokens,
            ignore_eos=True,  # enough: min_tokens would make the sampler look at every request
            detokenize=False,
            temperature=0.0,
            output_kind=RequestOutputKind.DELTA,
        )
        ranked = self.facts.get("effective", {}).get("scheduling_policy") == "priority"
        outputs: AsyncIterator[Any] = self.llm.generate(
            tokens_input(list(prompt)),
            sampling,
            request_id=str(next(self._numbers)),
            priority=request.priority if ranked else 0,
        )
        return outputs

    async def score(
        self, prompt: Sequence[int], tokens: int, answer: Sequence[int] | None
    ) -> Scored:
        """Answer a prompt, and score an answer. See ``accuracy.Scoring``."""
        try:
            return await score(self.llm, f"score-{next(self._numbers)}", prompt, tokens, answer)
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError) or self.llm.errored:
            return death(error, self.log.path, self.log.since)
        # A request that vLLM refuses raises ValueError (until 0.2x) or VLLMClientError; one that
        # breaks inside raises EngineGenerateError, whose cause says more.
        cause = error.__cause__ or error
        return RequestRejected(message_of(cause))

    async def reset(self) -> None:
        """Forget prefixes and counters. Raises EngineFault("not_reset") while requests run."""
        until = asyncio.get_running_loop().time() + _RESET_S
        # False while blocks are in use: those of a request that was just cancelled, for a moment.
        while not await self._prefixes_forgotten():
            if asyncio.get_running_loop().time() > until:
                raise EngineFault("not_reset", "vLLM kept its prefix cache: requests still run")
            await asyncio.sleep(_LOOK_S)
        await self.tally.settle(self._answered)
        self._answered = 0
        self.tally.reset()

    async def _prefixes_forgotten(self) -> bool:
        try:
            return await self.llm.reset_prefix_cache() is not False
        except Exception as error:
            raise self._translated(error) from error

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        """Change hot arguments, forget prefixes. See ``Engine.reconfigure``; facts follow."""
        if not hot:
            return {}
        try:
            got = await client.apply(self.llm, hot)
            effective = (await client.state(self.llm))["effective"]
        except TunerError:
            raise
        except Exception as error:  # a change that breaks leaves nothing to rely on
            raise death(error, self.log.path, self.log.since) from error
        self.facts["effective"] = {**self.facts["effective"], **got}
        self.facts["kv_cache_tokens"] = effective["kv_cache_tokens"]
        return got

    async def live_fault(self) -> str:
        """Say what is wrong with live changes of this engine, '' where nothing is."""
        from tuner.engines.live import proof

        return await proof.fault_of(self)

    async def counters(self) -> Mapping[str, float]:
        """Return totals since the last reset. See ``Engine.counters``."""
        await self.tally.settle(self._answered)
        return self.tally.totals()
