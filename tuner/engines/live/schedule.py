"""Two engines compared step by step: the same requests, and which of them got how many tokens.

For the self-test of a started engine (``proof``), for tests and benchmarks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.config import Json
from tuner.engines import Completion
from tuner.engines.vllm import VllmEngine
from tuner.trace import Request

_ARRIVAL_S = 30.0
_LOOK_S = 0.02

#: Requests with their prompts.
Work = Sequence[tuple[Request, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What an engine made of some requests that were all there before its first step."""

    #: SHA-256 over (request, tokens) of every step.
    digest: str
    #: ``steps``, ``running_max``, ``step_tokens_max``, ``preemptions``, ... of the recording.
    totals: Mapping[str, Json]
    #: Seconds of each step, but for the last one.
    step_s: Sequence[float]
    completions: Sequence[Completion]
    #: When the first step could begin, on the event loop's clock.
    released_s: float

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second from the release to the last token."""
        tokens = sum(one.answered_tokens for one in self.completions)
        return tokens / (max(self._ends()) - self.released_s)

    @property
    def latencies_s(self) -> list[float]:
        """Seconds from the release to the last token of each request, ascending."""
        return sorted(end - self.released_s for end in self._ends())

    def _ends(self) -> list[float]:
        return [one.token_s[-1] for one in self.completions]


async def recorded(engine: VllmEngine, work: Work) -> Schedule:
    """Queue all requests while the scheduler is paused, let it go, and record what it does.

    Only so is the order of arrival the same in any two engines. Raises TimeoutError where the
    requests do not arrive, RuntimeError where they arrive in another order than they were sent.
    """
    core = engine.llm.engine_core
    await core.call_utility_async("pause_scheduler", "keep", False)
    async with asyncio.TaskGroup() as tasks:
        sent = []
        for request, prompt in work:
            sent.append(tasks.create_task(engine.generate(request, prompt)))
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(_ARRIVAL_S):
                await _arrived(core, len(work))
        finally:
            released_s = asyncio.get_running_loop().time()
            await core.call_utility_async("resume_scheduler")
    totals = await core.call_utility_async("tuner_record_stop")
    digest, step_s = totals.pop("digest"), totals.pop("step_s")
    return Schedule(digest, totals, step_s, [task.result() for task in sent], released_s)


async def _arrived(core: Any, count: int) -> None:
    names = None
    while names is None:
        await asyncio.sleep(_LOOK_S)
        names = await core.call_utility_async("tuner_record_start", count)
    numbers = [int(name.partition("-")[0]) for name in names]
    if numbers != sorted(numbers):
        raise RuntimeError(f"requests arrived in another order than sent: {numbers}")
