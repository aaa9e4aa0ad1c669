"""Replay by several client processes: for rates at which one core cannot send and read in time.

Requests are parted so that sessions stay whole. Each part is replayed by a process of its own over
connections of its own. All have one clock, the system's monotonic one, which every process of a
machine shares, and one start, set when the last of them has its prompts ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from tuner.engines import Door, Engine, Shared
from tuner.errors import EngineFault
from tuner.job import Deadlines
from tuner.records import RequestRecord
from tuner.replay import Judge, Plan, replay
from tuner.replay_ahead import Prompts
from tuner.replay_parts import parted

#: From the moment at which all clients are ready to the start: each must have heard of it by then.
START_S = 0.1
#: Seconds for a client to end by itself once its pipe is closed.
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class _Part:
    """What one client replays."""

    door: Door
    plan: Plan
    prompts: Prompts
    deadlines: Deadlines


async def replay_shared(
    engine: Engine,
    plan: Plan,
    prompts: Prompts,
    deadlines: Deadlines,
    judge: Judge | None = None,
) -> list[RequestRecord]:
    """Do what ``replay`` does, with as many clients as the engine asks for (``Shared``).

    Several clients are not stopped early: the judge is told of every record afterwards. Raises
    EngineFault("client_lost") where a client's process ended before it had answered.
    """
    if not isinstance(engine, Shared) or engine.clients < 2:
        return await replay(engine, plan, prompts, deadlines, judge)
    parts = parted(plan.requests, engine.clients)
    door = engine.door()
    shares = [_Part(door, replace(plan, requests=part), prompts, deadlines) for part in parts]
    with _running(shares) as clients:
        await _answers(clients)
        async with engine.away() as answered:
            start = asyncio.get_running_loop().time() + START_S
            for client in clients:
                _blocking(client).send(start)
            records = {record.id: record for part in await _answers(clients) for record in part}
            answered(sum(record.answered_tokens for record in records.values()))
    for record in records.values():
        if judge is not None and record.sent_s is not None:
            judge.take(record)
    return [records[request.id] for request in plan.requests]


@contextlib.contextmanager
def _running(parts: Sequence[_Part]) -> Iterator[list[Connection]]:
    """Give a pipe to a process per part; none is left afterwards."""
    spawning = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        clients: list[Connection] = []
        for part in parts:
            here, there = spawning.Pipe()
            process = spawning.Process(target=_client, args=(there, part), daemon=True)
            process.start()
            there.close()
            stack.callback(_end, process)
            clients.append(stack.enter_context(here))
        yield clients


def _end(process: SpawnProcess) -> None:
    process.join(_END_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


async def _answers(others: Sequence[Connection]) -> list[Any]:
    """Return what each process says next. Raises the first fault."""
    try:
        async with asyncio.TaskGroup() as group:
            hearing = [group.create_task(_heard(other)) for other in others]
    except* EngineFault as faults:
        raise faults.exceptions[0] from None
    return [heard.result() for heard in hearing]


async def _heard(other: Connection) -> Any:
    """Return what a process says next. Raises its fault, or that it is gone."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(other.fileno(), readable.set)
    try:
        await readable.wait()
        said = _blocking(other).recv()
    except (EOFError, ConnectionError):
        raise EngineFault("client_lost", "a client's process ended before its replay did") from None
    finally:
        loop.remove_reader(other.fileno())
    if isinstance(said, EngineFault):
        raise said
    return said


def _client(parent: Connection, part: _Part) -> None:
    """Be a client: say that the prompts are ready, hear the start, answer with the records."""
    from tuner.engines.http_loop import PreciseLoop

    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt, ConnectionError):
        with asyncio.Runner(loop_factory=PreciseLoop) as runner:
            try:
                said: list[RequestRecord] | EngineFault = runner.run(_replayed(parent, part))
            except EngineFault as fault:
                said = fault
        _blocking(parent).send(said)


def _blocking(pipe: Connection) -> Connection:
    """Undo what uvloop does to a pipe that it watches: a long message has to wait for its rest."""
    os.set_blocking(pipe.fileno(), True)
    return pipe


async def _replayed(parent: Connection, part: _Part) -> list[RequestRecord]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    async def begin() -> float:
        parent.send(None)
        start: float = await _heard(parent)
        loop.add_reader(parent.fileno(), task.cancel)  # it says no more: this is its end
        return start

    async with part.door() as engine:
        return await replay(engine, part.plan, part.prompts, part.deadlines, begin=begin)
