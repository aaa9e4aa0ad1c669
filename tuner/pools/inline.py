"""A pool in this process: jobs run while they are collected, one after another."""

from __future__ import annotations

import traceback
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tuner.engines import Launcher
from tuner.errors import TunerError
from tuner.events import Observer, SlotPhase
from tuner.job import Job
from tuner.pools import Result
from tuner.pools.spec import Evaluate, closed, loop_of
from tuner.records import Cost, Faulted, Outcome


@dataclass(slots=True)
class InlinePool:
    """Runs jobs in virtual time (or whatever loop the launcher brings): for simulation and tests.

    ``slots`` jobs may be submitted before one is collected, so a loop over several slots can be
    simulated. An exception that leaves ``evaluate`` is a fault of the job, as it is in a host.
    """

    launcher: Launcher
    evaluate: Evaluate
    slots: int = 1
    #: GPUs over all slots; None for no limit.
    gpus: int | None = None
    observer: Observer | None = None
    _waiting: deque[tuple[int, Job]] = field(default_factory=deque, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget what was not collected; end what the launcher kept alive."""
        self._waiting.clear()
        with loop_of(self.launcher) as run:
            run(closed(self.launcher))

    @property
    def busy(self) -> int:
        """Jobs submitted and not collected yet."""
        return len(self._waiting)

    def has_room(self, gpus: int) -> bool:
        """Whether a slot, and so many GPUs, are free."""
        held = sum(job.config.gpus for _, job in self._waiting)
        return self.busy < self.slots and (self.gpus is None or held + gpus <= self.gpus)

    @property
    def live(self) -> frozenset[str]:
        """No engine lives on between jobs here."""
        return frozenset()

    def submit(self, job: Job) -> None:
        """Take a job; it runs when it is collected. Raises TunerError where there is no room."""
        if not self.has_room(job.config.gpus):
            raise TunerError(f"no room for {job.config.gpus} GPUs", "ask has_room first")
        taken = {slot for slot, _ in self._waiting}
        slot = next(slot for slot in range(self.slots) if slot not in taken)
        self._waiting.append((slot, job))

    def collect(self, timeout_s: float) -> Result | None:
        """Run the oldest job to its end, however long that takes; None if there is none."""
        if not self._waiting:
            return None
        slot, job = self._waiting[0]
        try:
            outcome, cost = self._run(slot, job)
        finally:
            self._waiting.popleft()
            self._tell(SlotPhase(slot, None, "idle"))
        return job, outcome, cost

    def _run(self, slot: int, job: Job) -> tuple[Outcome, Cost]:
        def on_phase(phase: str) -> None:
            self._tell(SlotPhase(slot, job.number, phase))

        async def measured() -> tuple[Outcome, Cost]:
            return await self.evaluate(job, self.launcher, on_phase)

        try:
            with loop_of(self.launcher) as run:
                return run(measured())
        except Exception:
            return Faulted("host_error", traceback.format_exc(limit=-8)), Cost()

    def _tell(self, event: SlotPhase) -> None:
        if self.observer is not None:
            self.observer.on_event(event)
