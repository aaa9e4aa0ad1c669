"""A pool on Ray: one actor per slot, each with the GPUs or cores of its engine.

An actor's resources lie on one node, so an engine's GPUs are always packed; the pool chooses the
node itself. No placement group is made: inside one, vLLM would choose its Ray executor.

Answers are awaited as plain futures: ``ray.wait`` turns an exception of a signal handler into
another one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.config import EngineConfig
from tuner.engines.keeping import can_be_kept
from tuner.errors import TunerError
from tuner.events import Notice, Observer, SlotPhase
from tuner.job import Job
from tuner.pools import Result
from tuner.pools.host_process import Limits
from tuner.pools.ray_cluster import connected, cores_of, first_line
from tuner.pools.slots import Capacity, Held, Placement, Wanted, place
from tuner.pools.spec import HostSpec
from tuner.pools.supervisor import ProcessId
from tuner.pools.worker import IDLE, Place, SlotWorker
from tuner.records import Cost, Faulted, Measured, Outcome

#: Seconds between two looks at what the slots do.
_POLL_S = 1.0
#: Seconds without an answer after which a worker is given up; it may have to be started first.
_SILENT_S = 300.0
#: Seconds until every process of ours must be gone after the actors are.
_GONE_S = 15.0

#: A worker's phase and the supervisor of its host.
_State = tuple[str, ProcessId | None]


@dataclass(slots=True)
class _Slot:
    """A live slot: its actor, and the job it runs."""

    held: Held
    actor: Any
    job: Job | None = None
    result: Future[tuple[Outcome, Cost]] | None = None
    began: float = 0.0
    overdue_at: float = 0.0
    state: Future[_State] | None = None
    asked_at: float = 0.0
    phase: str = IDLE
    supervisor: ProcessId | None = None

    def silent(self, now: float) -> bool:
        """Whether the worker no longer answers, or lets its job run far beyond the job's limits."""
        unanswered = self.state is not None and now - self.asked_at > _SILENT_S
        return unanswered or now > self.overdue_at


@dataclass(slots=True)
class RayPool:
    """Runs jobs on Ray actors. See ``tuner.pools.Pool`` for the contract."""

    spec: HostSpec
    capacity: Capacity = field(default_factory=Capacity)
    #: An existing cluster; None starts a Ray of our own on this machine, and ends it.
    address: str | None = None
    observer: Observer | None = None
    limits: Limits = field(default_factory=Limits)
    #: Seconds for engines to end by themselves when the pool is left.
    stop_grace_s: float = 10.0
    _slots: dict[int, _Slot] = field(default_factory=dict, init=False)
    _supervisors: dict[ProcessId, str] = field(default_factory=dict, init=False)
    _losses: dict[str, float] = field(default_factory=dict, init=False)
    #: Slots that take no more jobs, and why. Their actors keep their GPUs from others.
    _quarantined: dict[int, str] = field(default_factory=dict, init=False)
    _ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> Self:
        """Connect to Ray, or start one. Raises TunerError where it cannot be used."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(connected(self.address, self.capacity))
            stack.callback(self._stop_all)
            units = sum(self._nodes().values())
            if units == 0:
                what = "cores" if self.capacity.cpus_per_engine else "GPUs"
                raise TunerError(
                    f"Ray has no {what} for one engine", "state gpus, or cpus for CPU engines"
                )
            self._ending = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what runs, and end every process that the pool started."""
        self._ending.close()

    @property
    def busy(self) -> int:
        """Jobs submitted and not collected yet."""
        return sum(slot.job is not None for slot in self._slots.values())

    @property
    def live(self) -> frozenset[str]:
        """Cold keys of idle engines that live on."""
        return frozenset(s.held.live for s in self._slots.values() if s.held.live)

    def has_room(self, gpus: int) -> bool:
        """Whether a job that needs this many GPUs would start at once.

        Raises TunerError where no node is left at all: that says nothing about the job.
        """
        return self._placement(EngineConfig(""), gpus) is not None

    def submit(self, job: Job) -> None:
        """Start a job on an idle or a new slot. Raises TunerError where there is no room."""
        placement = self._placement(job.config, job.config.gpus)
        if placement is None:
            raise TunerError(f"no room for {job.config.gpus} GPUs", "ask has_room first")
        for number in placement.release:
            self._stop([self._slots.pop(number)])
        if placement.new:
            self._slots[placement.number] = self._new_slot(placement, job)
        slot = self._slots[placement.number]
        slot.held = replace(slot.held, busy=True, last=job.config, live="")
        slot.job = job
        slot.began = time.monotonic()
        slot.overdue_at = slot.began + _SILENT_S + self.limits.host_start_s
        slot.overdue_at += self.limits.job_s(job)
        slot.result = slot.actor.run.remote(job).future()

    def collect(self, timeout_s: float) -> Result | None:
        """Wait for the next job to end; None when none has within the time, or none runs."""
        ends = time.monotonic() + timeout_s
        while running := [slot for slot in self._slots.values() if slot.job is not None]:
            self._ask_states(running)
            now = time.monotonic()
            awaited: list[Future[Any]] = [
                one for slot in running for one in (slot.result, slot.state) if one
            ]
            wait(awaited, max(0.0, min(ends - now, _POLL_S)), FIRST_COMPLETED)
            for slot in running:
                if slot.result and slot.result.done():
                    return self._result(slot, slot.result)
                if slot.state and slot.state.done():
                    self._note_state(slot, slot.state)
                elif slot.silent(now):
                    return self._lost(slot, "the worker gave no answer")
            if now >= ends:
                break
        return None

    def _placement(self, config: EngineConfig, gpus: int) -> Placement | None:
        nodes = self._nodes()
        if not any(nodes.values()):
            hint = "nothing measured is lost: run the study again to go on"
            raise TunerError("Ray lost every node that could run an engine", hint)
        for slot in list(self._slots.values()):
            if slot.job is None and slot.held.node not in nodes:
                del self._slots[slot.held.number]
        held = [slot.held for slot in self._slots.values()]
        wanted = Wanted(self.capacity.units(gpus), config.cold_key(self.spec.hot))
        found = place(self.capacity, nodes, held, config, wanted)
        if found is None and self._quarantined and not self.busy:
            hint = "end what is in the way; nothing measured is lost: run the study again to go on"
            why = "\n".join(self._quarantined.values())
            raise TunerError(f"no clean slot is left:\n{why}", hint)
        return found

    def _nodes(self) -> dict[str, int]:
        """Return the nodes alive and their units; first those that lost no worker of late.

        Ray notices a dead node only after a while; until then another one is the better choice.
        """
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        order = sorted(alive, key=lambda node: self._losses.get(node, 0.0))
        return {node: self.capacity.of_node(alive[node]) for node in order}

    def _new_slot(self, placement: Placement, job: Job) -> _Slot:
        units = self.capacity.units(job.config.gpus)
        cores = self.capacity.cpus_per_engine
        before = [one for one, node in self._supervisors.items() if node == placement.node]
        busy_here = {s.supervisor for s in self._slots.values()}
        where = Place(
            placement.number,
            cores_of(placement.number, cores) if cores and self.address is None else (),
            [one for one in before if one not in busy_here],
        )
        options = (
            {"num_cpus": cores, "num_gpus": 0} if cores else {"num_cpus": 0, "num_gpus": units}
        )
        actor = (
            ray.remote(SlotWorker)
            .options(
                **options,
                max_concurrency=4,  # run, state and stop at one time
                scheduling_strategy=NodeAffinitySchedulingStrategy(placement.node, soft=False),
            )
            .remote(self.spec, where, self.limits)
        )
        return _Slot(Held(placement.number, placement.node, units, busy=True), actor)

    def _ask_states(self, running: Sequence[_Slot]) -> None:
        now = time.monotonic()
        for slot in running:
            if slot.state is None and now >= slot.asked_at + _POLL_S:
                slot.state = slot.actor.state.remote().future()
                slot.asked_at = now

    def _note_state(self, slot: _Slot, answer: Future[_State]) -> None:
        slot.state = None
        with contextlib.suppress(RayError):  # a dead actor shows in its result
            phase, slot.supervisor = answer.result()
            if slot.supervisor is not None:
                self._supervisors[slot.supervisor] = slot.held.node
            if phase != IDLE:  # between two jobs; the end of a job is told with its result
                self._tell(slot, phase)

    def _tell(self, slot: _Slot, phase: str) -> None:
        if phase != slot.phase and self.observer is not None:
            trial = slot.job.number if slot.job else None
            self.observer.on_event(SlotPhase(slot.held.number, trial, phase))
        slot.phase = phase

    def _result(self, slot: _Slot, answer: Future[tuple[Outcome, Cost]]) -> Result:
        try:
            outcome, cost = answer.result()
        except RayError as error:
            return self._lost(slot, f"{type(error).__name__}: {first_line(error)}")
        job = self._idle(slot)
        lives = isinstance(outcome, Measured) or (
            isinstance(outcome, Faulted) and outcome.engine_ok
        )
        if lives and can_be_kept(job.config, self.spec.hot):
            slot.held = replace(slot.held, live=job.config.cold_key(self.spec.hot))
        if isinstance(outcome, Faulted) and not outcome.slot_ok:
            self._quarantine(slot, outcome)
        return job, outcome, cost

    def _quarantine(self, slot: _Slot, fault: Faulted) -> None:
        """Give a slot no more jobs, and say so."""
        slot.held = replace(slot.held, busy=True, live="")
        where = f"slot {slot.held.number} on {slot.held.node}"
        self._quarantined[slot.held.number] = f"{where}: {fault.detail}"
        if self.observer is not None:
            message = f"{where} is left alone, {fault.reason}: {fault.detail}"
            self.observer.on_event(Notice(message))

    def _lost(self, slot: _Slot, detail: str) -> Result:
        """Give up a slot whose actor is dead or silent; its supervisor ends the engine."""
        with contextlib.suppress(RayError):
            ray.kill(slot.actor)
        job = self._idle(slot)
        self._losses[slot.held.node] = time.monotonic()
        del self._slots[slot.held.number]
        return job, Faulted("worker_lost", detail), Cost(other_s=time.monotonic() - slot.began)

    def _idle(self, slot: _Slot) -> Job:
        assert slot.job is not None
        job, slot.job, slot.result, slot.state = slot.job, None, None, None
        slot.held = replace(slot.held, busy=False)
        self._tell(slot, IDLE)
        return job

    def _stop_all(self) -> None:
        slots, self._slots = list(self._slots.values()), {}
        self._stop(slots)
        give_up = time.monotonic() + _GONE_S
        while any(one.alive for one in self._supervisors) and time.monotonic() < give_up:
            time.sleep(0.05)

    def _stop(self, slots: Sequence[_Slot]) -> None:
        """End these slots' engines within their grace, then their actors."""
        stops = [slot.actor.stop.remote(self.stop_grace_s).future() for slot in slots]
        wait(stops, self.stop_grace_s + _GONE_S)
        for slot in slots:
            with contextlib.suppress(RayError):
                ray.kill(slot.actor)
