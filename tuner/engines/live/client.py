"""Changing a live engine from the process that talks to it. Needs the ``plugin`` in the engine.

``llm`` is vLLM's AsyncLLM throughout (in ``vllm serve``: ``app.state.engine_client``). What the
engine core says of itself goes through its utility calls; ``stream_interval`` belongs to the front
end and is set there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from tuner.config import Json
from tuner.errors import ConfigRejected, EngineFault

#: Seconds that a change waits for the engine core to become idle, which it does a moment after the
#: last answer is out.
IDLE_S = 10.0
_LOOK_S = 0.02
_NOT_HOT = "not_hot"
_FRONTEND = "stream_interval"


async def state(llm: Any) -> dict[str, Json]:
    """Return what the engine says of itself: see ``plugin.tuner_live_get``.

    Raises ConfigRejected("not_hot") where the engine has no plugin.
    """
    answer = await _ask(llm, "tuner_live_get")
    if _FRONTEND in answer.get("values", {}):
        answer["values"][_FRONTEND] = llm.output_processor.stream_interval
    return answer


async def apply(
    llm: Any, values: Mapping[str, Json], *, idle_s: float = IDLE_S
) -> Mapping[str, Json]:
    """Change arguments of an idle engine; return them as read back from it. Prefixes are forgotten.

    Arguments that are not named stay as they are; None takes an optional one back to "not set".
    Waits up to ``idle_s`` seconds for the engine to become idle. Raises ConfigRejected("not_hot")
    with the engine as it was where it refuses, EngineFault("not_applied") where it took other
    values than asked for.
    """
    core = {name: value for name, value in values.items() if name != _FRONTEND}
    front = await _checked_front(llm, values)
    answer = await _set(llm, core, idle_s) if core else await state(llm)
    if front is not None:
        llm.output_processor.stream_interval = front
        answer["values"][_FRONTEND] = llm.output_processor.stream_interval
    got = {name: answer["values"].get(name) for name in values}
    wrong = {name: [value, got[name]] for name, value in values.items() if got[name] != value}
    if wrong:
        raise EngineFault("not_applied", f"asked and got: {wrong}")
    return got


async def _checked_front(llm: Any, values: Mapping[str, Json]) -> int | None:
    """Return the wanted stream interval, None if not asked for; refuse it before all else."""
    if _FRONTEND not in values:
        return None
    value = values[_FRONTEND]
    why = (await state(llm))["cold"].get(_FRONTEND)
    if why is None and not hasattr(llm.output_processor, _FRONTEND):
        why = "the front end of this vLLM keeps it elsewhere"
    if why is None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        why = f"{value!r} is no number from 1 on"
    if why is not None:
        raise ConfigRejected(_NOT_HOT, f"{_FRONTEND}: {why}")
    return int(value)


async def _set(llm: Any, values: Mapping[str, Json], idle_s: float) -> dict[str, Json]:
    clock = asyncio.get_running_loop().time
    give_up = clock() + idle_s
    while True:
        answer = await _ask(llm, "tuner_live_set", dict(values))
        if answer["ok"]:
            return answer
        if not answer["busy"]:
            raise ConfigRejected(_NOT_HOT, answer["reason"])
        if clock() >= give_up:
            raise ConfigRejected(_NOT_HOT, f"{answer['reason']} after {idle_s:g} s")
        await asyncio.sleep(_LOOK_S)


async def _ask(llm: Any, method: str, *args: Json) -> dict[str, Json]:
    try:
        answer: dict[str, Json] = await llm.engine_core.call_utility_async(method, *args)
    except Exception as error:
        if f"has no attribute '{method}'" in str(error):
            raise ConfigRejected(
                _NOT_HOT,
                "the engine runs without the tuner's plugin",
                "install vllm-tuner where vLLM is installed, and leave VLLM_PLUGINS unset",
            ) from error
        raise
    return answer


async def self_test(llm: Any) -> str:
    """Change the idle engine, read it back, change it back; return '' or what is wrong.

    Takes three changes (0.3 to 1 s each) and leaves the engine as it was found, prefixes forgotten.
    Raises what ``apply`` raises only where the engine itself fails.
    """
    try:
        before = await state(llm)
        if "max_num_seqs" not in before["hot"]:
            return before.get("off") or f"max_num_seqs: {before['cold']['max_num_seqs']}"
        return await _tested(llm, before)
    except ConfigRejected as rejected:
        return rejected.detail


async def _tested(llm: Any, before: dict[str, Json]) -> str:
    values, started = before["values"], before["started"]
    most = started["max_num_seqs"]
    fewer = {"max_num_seqs": math.ceil(most / 2)}
    fewer["max_num_batched_tokens"] = max(started["max_num_batched_tokens"] - 1, most)
    try:
        await apply(llm, {"max_num_seqs": most + 1})
        return "more sequences than the engine has room for were taken"
    except ConfigRejected:
        pass
    if not _same(await state(llm), before):
        return "a refused change left a trace"
    await apply(llm, fewer)
    effective = (await state(llm))["effective"]
    await apply(llm, {name: values[name] for name in fewer})
    if effective["running_max"] != fewer["max_num_seqs"]:
        return f"{fewer} was read back, but the scheduler works with {effective}"
    return "" if _same(await state(llm), before) else "changing back did not restore the engine"


def _same(one: Mapping[str, Json], other: Mapping[str, Json]) -> bool:
    return all(one[part] == other[part] for part in ("values", "effective"))
