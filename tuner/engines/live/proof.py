"""The self-test of a started engine: do live changes do here what they say?

Reading the version's internals (``probe``) shows that all parts are there; this shows that they
work. An engine that fails is used like any other one: started for each configuration.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tuner.engines.live import client
from tuner.engines.live.schedule import Schedule, Work, recorded
from tuner.errors import ConfigRejected
from tuner.trace import Request

if TYPE_CHECKING:
    from tuner.engines.vllm import VllmEngine

_AT_MOST_S = 120.0
_TRIES = 3
_REQUESTS, _PROMPT, _ANSWER = 8, 24, 6
_FEW = 2


async def fault_of(engine: VllmEngine) -> str:
    """Change the idle engine, read back, replay, change back, replay; return '' or what is wrong.

    A replay after changing back must have the schedule of the engine as it was started: which
    request got how many tokens in every step. One with fewer sequences must keep to them. The
    engine is left as it was. Takes a few seconds.
    """
    try:
        async with asyncio.timeout(_AT_MOST_S):
            return await client.self_test(engine.llm) or await _replayed(engine)
    except TimeoutError:
        return f"the self-test did not end within {_AT_MOST_S:g} s"
    except ConfigRejected as rejected:
        return rejected.detail


async def _replayed(engine: VllmEngine) -> str:
    most = (await client.state(engine.llm))["values"]["max_num_seqs"]
    few = min(_FEW, most)
    started = await _recorded(engine)
    await client.apply(engine.llm, {"max_num_seqs": few})
    fewer = await _recorded(engine)
    await client.apply(engine.llm, {"max_num_seqs": most})
    same = await _repeats(engine, started)
    await engine.reset()
    if fewer.totals["running_max"] > few:
        return f"changed to {few} sequences it ran {fewer.totals['running_max']}"
    if not same:
        return "changed back, its schedule is another one than that of its start"
    return ""


async def _repeats(engine: VllmEngine, started: Schedule) -> bool:
    """Whether a schedule comes again. Looks more than once.

    Where steps overlap, which one a request leaves in depends on when its last result arrives.
    """
    for _ in range(_TRIES):
        if (await _recorded(engine)).digest == started.digest:
            return True
    return False


async def _recorded(engine: VllmEngine) -> Schedule:
    """Record a replay of a few requests, anew where they did not arrive in order."""
    reason = ""
    for _ in range(_TRIES):
        try:
            return await recorded(engine, _work())
        except ExceptionGroup as group:
            disorder, other = group.split(RuntimeError)
            if other is not None or disorder is None:
                raise
            reason = str(disorder.exceptions[0])
    raise ConfigRejected("not_hot", f"no self-test: {reason}")


def _work() -> Work:
    return [
        (Request(n, 0.0, _PROMPT, _ANSWER), [5 + n + k for k in range(_PROMPT)])
        for n in range(_REQUESTS)
    ]
