"""Replay: an engine and a workload become request records.

Open loop: a request leaves at its time whatever the engine does, and latency counts from that
time. Sessions are partly open: a child leaves when its parents have ended and its think time has
passed. The event loop is the only clock (``loop.time()``, ``asyncio.sleep``), so the same code
drives a real engine in real time and a simulated one in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from tuner.engines import Engine
from tuner.errors import EngineFault, RequestRejected
from tuner.job import Deadlines
from tuner.records import RequestRecord
from tuner.replay_ahead import Ahead, Prompts
from tuner.trace import Request

#: How the errors of requests begin that a replay's deadline left without an answer.
CUT_OFF = ("deadline: the replay ended", "deadline: never sent")
#: Seconds between looks at whether a replay is decided.
LOOK_S = 0.2
#: A request this near to its time leaves: an event loop's timers are good to about 1 ms.
EARLY_S = 0.0005


@runtime_checkable
class Preparing(Protocol):
    """What an engine may offer besides ``Engine``: work that need not wait for the send."""

    def prepare(self, request: Request, prompt: Sequence[int]) -> Sequence[int]:
        """Return what this engine's ``generate`` takes in the prompt's place, ready to send."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one replay sends: requests in order of arrival, at their times or all at once."""

    requests: Sequence[Request]
    #: False: every root is offered at once and think times are skipped.
    paced: bool = True
    #: Children wait for their parents; False replays recorded times only.
    partly_open: bool = True
    #: Requests that arrive earlier are sent but not scored.
    lead_in_s: float = 0.0

    def scores(self, request: Request) -> bool:
        """Whether a request counts."""
        return request.arrival_s >= self.lead_in_s

    @property
    def scored(self) -> list[Request]:
        """The requests that count."""
        return [request for request in self.requests if self.scores(request)]


class Judge(Protocol):
    """Knows what a replay is for, and so when its rest can no longer matter."""

    def take(self, record: RequestRecord) -> None:
        """Take note of a request that has ended."""

    def decided(self, now_s: float, open: Collection[RequestRecord]) -> bool:
        """Whether to stop at ``now_s`` of the replay's clock; ``open``: records at the engine."""


#: Says when a replay that has its prompts ready starts, on the event loop's clock.
Begin = Callable[[], Awaitable[float]]


class _Decided(Exception):
    """The judge has seen enough."""


@dataclass(slots=True)
class _Replay:
    engine: Engine
    plan: Plan
    prompts: Prompts
    deadlines: Deadlines
    clock: Callable[[], float]
    #: One per request, done when the request has ended, with the time of its end.
    ended: dict[int, asyncio.Future[float]]
    judge: Judge | None = None
    begin: Begin | None = None
    records: dict[int, RequestRecord] = field(default_factory=dict)
    #: Requests at the engine.
    open: dict[int, RequestRecord] = field(default_factory=dict)
    #: When the clock of the records was at 0.
    start: float = 0.0
    #: What ends the replay before its last answer.
    ending: str = "deadline"

    def now(self) -> float:
        return self.clock() - self.start

    async def until(self, at: float) -> None:
        # More than once: a timer may fire early.
        while (delay := at - self.now()) > EARLY_S:  # noqa: ASYNC110 - it is the clock
            await asyncio.sleep(delay)

    def waits(self, request: Request) -> bool:
        return self.plan.partly_open and any(parent in self.ended for parent in request.parents)

    async def send(self, request: Request, prompt: Sequence[int], scheduled: float) -> None:
        """Send one request and record what came of it."""
        record = record_of(request, self.plan, scheduled, sent_s=self.now())
        self.open[request.id] = record
        try:
            async with asyncio.timeout(self.deadlines.request_s):
                done = await self.engine.generate(request, prompt)
            record = replace(
                record,
                token_s=tuple(at - self.start for at in done.token_s),
                answered_tokens=done.answered_tokens,
                cached_tokens=done.cached_tokens,
            )
        except RequestRejected as exc:
            record = replace(record, error=f"rejected: {exc}")
        except TimeoutError:
            wait_s = self.deadlines.request_s
            record = replace(record, error=f"deadline: no full answer within {wait_s:g} s")
        except asyncio.CancelledError:
            record = replace(record, error=f"{self.ending}: the replay ended before the answer")
            raise
        finally:
            del self.open[request.id]
            self.records[request.id] = record
            if self.judge is not None:
                self.judge.take(record)
            if not self.ended[request.id].done():  # cancelled with a child that waited for it
                self.ended[request.id].set_result(self.now())

    async def follow(self, request: Request) -> None:
        """Send a child of a session once its parents have ended and its think time has passed."""
        ends = [await self.ended[parent] for parent in request.parents if parent in self.ended]
        scheduled = max(ends)
        if self.plan.paced and request.gap_s is None:
            scheduled = max(scheduled, request.arrival_s)
        elif self.plan.paced:
            scheduled += request.gap_s or 0.0
        prompt = self.prompts(request)
        await self.until(scheduled)
        await self.send(request, prompt, scheduled)

    async def dispatch(self, group: asyncio.TaskGroup) -> None:
        """Send the roots at their times, preparing prompts while there is time to spare.

        The clock starts when as many prompts are ready as the bounds allow.
        """
        roots = [request for request in self.plan.requests if not self.waits(request)]
        ahead = Ahead(self.prompts, iter(roots), self.clock)
        while ahead.prepare():
            pass
        self.start = self.clock() if self.begin is None else await self.begin()
        for request in self.plan.requests:
            if self.waits(request):
                group.create_task(self.follow(request))
        while (due := ahead.due_s()) is not None:
            at = due if self.plan.paced else 0.0
            while ahead.fits(at - self.now()) and ahead.prepare():  # noqa: ASYNC110
                await asyncio.sleep(0)  # lets answers in between two prompts
            await self.until(at)
            group.create_task(self.send(*ahead.pop(), at))
            await asyncio.sleep(0)  # the request leaves now, not after the next prompt is made

    async def watch(self) -> None:
        """Raise EngineFault when requests wait at the engine and nothing moves for too long."""
        before: tuple[object, ...] = ()  # asking a real engine costs time, not now at the start
        while True:
            await asyncio.sleep(self.deadlines.stall_s)
            after = await self._progress()
            if self.open and before == after:
                raise EngineFault("stalled", f"no token for {self.deadlines.stall_s:g} s")
            before = after

    async def _progress(self) -> tuple[object, ...]:
        counters = await self.engine.counters()
        return len(self.records), len(self.open), counters.get("generated_tokens")

    async def look(self, judge: Judge) -> None:
        """Stop the replay once the judge has seen enough."""
        while True:
            await asyncio.sleep(LOOK_S)
            if judge.decided(self.now(), self.open.values()):
                self.ending = "stopped"
                self.judge = None  # what is cut off now says nothing about the engine
                raise _Decided


async def replay(
    engine: Engine,
    plan: Plan,
    prompts: Prompts,
    deadlines: Deadlines,
    judge: Judge | None = None,
    begin: Begin | None = None,
) -> list[RequestRecord]:
    """Send the plan's requests to an idle engine and return one record each, in the plan's order.

    Refused, failed and overdue requests are recorded as such, and so are those that were open or
    not sent yet when the judge stopped the replay. ``begin`` is asked for the start once prompts
    are ready; None: then. Raises EngineFault where the engine broke ("stalled": nothing was
    generated for ``deadlines.stall_s``).
    """
    loop = asyncio.get_running_loop()
    ended = {request.id: loop.create_future() for request in plan.requests}
    ready = _ready_to_send(engine, prompts)
    run = _Replay(engine, plan, ready, deadlines, loop.time, ended, judge, begin)
    try:
        with _steady_memory(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadlines.replay_s):
                await _run(run)
    except* _Decided:
        pass
    except* EngineFault as faults:
        raise faults.exceptions[0] from None
    unsent = f"{run.ending}: never sent"
    return [
        run.records.get(request.id)
        or record_of(request, plan, request.arrival_s * plan.paced, error=unsent)
        for request in plan.requests
    ]


def _ready_to_send(engine: Engine, prompts: Prompts) -> Prompts:
    if not isinstance(engine, Preparing):
        return prompts
    prepare = engine.prepare
    return lambda request: prepare(request, prompts(request))


async def _run(run: _Replay) -> None:
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(run.watch())]
        if run.judge is not None:
            watching.append(group.create_task(run.look(run.judge)))
        await run.dispatch(group)
        if run.ended:
            await asyncio.wait(run.ended.values())
        for watch in watching:
            watch.cancel()


def record_of(
    request: Request, plan: Plan, scheduled: float, sent_s: float | None = None, error: str = ""
) -> RequestRecord:
    """Return the record of a request that has no answer (yet)."""
    return RequestRecord(
        id=request.id,
        slo_class=request.slo_class,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        scheduled_s=scheduled,
        sent_s=sent_s,
        error=error,
        scored=plan.scores(request),
    )


@contextlib.contextmanager
def _steady_memory() -> Iterator[None]:
    """Keep the garbage collector out of the measurement."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
