"""The loop: ask, check, run, tell, until the budget is spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tuner import pareto
from tuner.config import EngineConfig
from tuner.events import (
    Event,
    Notice,
    Observer,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.job import Deadlines, Job, Rivals, Workload
from tuner.measures_capacity import near
from tuner.objectives import Objective, missing, scores
from tuner.pools import Pool
from tuner.price import priced
from tuner.records import (
    Cost,
    Dominated,
    Faulted,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    TrialRecord,
)
from tuner.store import Store
from tuner.strategies import Proposal, Strategy
from tuner.study_sections import Budget, Price

#: Looks at a configuration without starting it: what can never run, or None.
Check = Callable[[EngineConfig], Infeasible | None]

#: Adds to a trial's outcome what was known of it beforehand.
Noted = Callable[[EngineConfig, Outcome, Cost], Outcome]


def as_it_is(config: EngineConfig, outcome: Outcome, cost: Cost) -> Outcome:
    """Add nothing to an outcome."""
    return outcome


#: A study in which the first trials all fail alike is not worth the rest of its budget.
HOPELESS = 5
#: Proposals refused in a row, at no cost, before we say that the space is dead.
REFUSALS = 50
POLL_S = 0.5


@dataclass(slots=True)
class StopRequest:
    """Set by the first Ctrl-C: finish what runs, start nothing more."""

    requested: bool = False


@dataclass(slots=True)
class Loop:
    """One run of a study over its parts. ``run`` may be called once."""

    name: str
    store: Store
    strategy: Strategy
    pool: Pool
    check: Check
    workload: Workload
    deadlines: Deadlines
    budget: Budget
    folder: Path
    repeats: int = 1
    #: Whether a trial that is proven off the front is stopped.
    early_end: bool = False
    #: Whether what is found of a configuration later may take it off the front: it proves nothing
    #: against others then.
    provisional: Callable[[EngineConfig], bool] = lambda config: False
    #: Whether trials hold GPUs (False on a CPU engine: GPU hours do not count then).
    on_gpus: bool = False
    price: Price | None = None
    noted: Noted = as_it_is
    observers: Sequence[Observer] = ()
    stop: StopRequest = field(default_factory=StopRequest)
    _records: list[TrialRecord] = field(default_factory=list)
    _proposals: dict[int, Proposal] = field(default_factory=dict)
    _waiting: Proposal | None = None
    _refused: int = 0

    def run(self) -> str:
        """Run until the budget is spent, the space is exhausted, or someone stops it.

        Returns why it ended. Whatever happens, no trial stays RUNNING: one that could not end is
        queued again for the next run.
        """
        began = time.monotonic()
        self._records = self.store.records()
        done = sum(map(counts_as_trial, self._records))
        self._say(StudyStarted(self.name, self.budget.trials, done))
        reason = "interrupted"
        try:
            reason = self._loop(began)
        finally:
            left = self.store.reap()
            if left:
                self._say(Notice(f"trials {left} did not end and are queued for the next run"))
            self._say(StudyFinished(reason, time.monotonic() - began))
        return reason

    def _loop(self, began: float) -> str:
        while True:
            # Looked at anew each time: a run that broke gives its share of the budget back.
            reason = self._fill(began)
            if reason and not self.pool.busy:
                return reason
            done = self.pool.collect(POLL_S)
            if done is not None:
                job, outcome, cost = done
                self._finish(self._proposals.pop(job.number), outcome, cost)

    def _fill(self, began: float) -> str:
        """Submit while there is room; return why to stop, '' to go on."""
        while True:
            reason = self._over(began)
            if reason:
                return reason
            if self._waiting is None and not self.pool.has_room(1):
                return ""  # ask late: what runs now may teach something first
            proposal = self._waiting or self.strategy.ask(self.pool.live)
            self._waiting = None
            if proposal is None:
                return "every point of the space has been tried"
            refused = self.check(proposal.config) or self._no_room_ever(proposal.config)
            if refused is not None:
                self._refused += 1
                self._finish(proposal, refused, Cost())
            elif self.pool.has_room(proposal.config.gpus):
                self._refused = 0
                self._submit(proposal)
            else:
                self._waiting = proposal
                return ""

    def _no_room_ever(self, config: EngineConfig) -> Infeasible | None:
        if self.pool.busy or self.pool.has_room(config.gpus):
            return None
        return Infeasible("too_few_gpus", f"needs {config.gpus} GPUs at once")

    def _submit(self, proposal: Proposal) -> None:
        self._proposals[proposal.number] = proposal
        self.pool.submit(
            Job(
                proposal.number,
                proposal.config,
                self.workload,
                str(self.folder / "trials" / str(proposal.number)),
                self.deadlines,
                self.repeats,
                self._rivals(proposal),
                near(self._records, proposal.config),
            )
        )
        self._say(TrialStarted(proposal.number, proposal.config, dict(proposal.point)))

    def _rivals(self, proposal: Proposal) -> Rivals | None:
        """Return what a trial must beat; a baseline is measured in full, others are held to it."""
        if not self.early_end or proposal.config.label:
            return None
        staying = [record for record in self._records if not self.provisional(record.config)]
        best = [member.scores or () for member in front(staying, self.store.objectives)]
        return Rivals(self.store.objectives, self.store.constraints, tuple(best))

    def _finish(self, proposal: Proposal, outcome: Outcome, cost: Cost) -> None:
        if self.on_gpus:
            cost = replace(cost, gpus=proposal.config.gpus)
        record = self._record(proposal, outcome, cost)
        self.strategy.tell(record)
        self._records.append(record)
        best = front(self._records, self.store.objectives)
        self._say(TrialFinished(record, [member.number for member in best]))

    def _record(self, proposal: Proposal, outcome: Outcome, cost: Cost) -> TrialRecord:
        outcome = priced(outcome, proposal.config.gpus, self.price)
        outcome = self.noted(proposal.config, outcome, cost)
        record = TrialRecord(proposal.number, proposal.config, proposal.point, outcome, cost=cost)
        constraints = self.store.constraints
        if isinstance(outcome, Dominated):
            return replace(
                record, violations=tuple(c.excess_of(outcome.bound) for c in constraints)
            )
        if not isinstance(outcome, Measured):
            return record
        measurement = outcome.measurement
        values = scores(measurement, self.store.objectives)
        if values is None:
            return replace(record, outcome=_without_result(measurement, self.store.objectives))
        return replace(
            record, scores=values, violations=tuple(c.violation(measurement) for c in constraints)
        )

    def _over(self, began: float) -> str:
        budget = self.budget
        started = sum(map(counts_as_trial, self._records)) + self.pool.busy
        minutes = (time.monotonic() - began) / 60
        gpu_hours = sum(record.cost.gpu_s for record in self._records) / 3600
        if self.stop.requested:
            return "stopped on request"
        if budget.trials is not None and started >= budget.trials:
            return f"budget of {budget.trials} trials spent"
        if budget.minutes is not None and minutes >= budget.minutes:
            return f"budget of {budget.minutes:g} minutes spent"
        if budget.gpu_hours is not None and gpu_hours >= budget.gpu_hours:
            return f"budget of {budget.gpu_hours:g} GPU hours spent"
        if self._refused >= REFUSALS:
            return f"{REFUSALS} proposals in a row can never start"
        return self._hopeless()

    def _hopeless(self) -> str:
        tried = [record for record in self._records if record.cost.total_s > 0]
        ran = any(isinstance(record.outcome, Measured | Dominated) for record in tried)
        if ran or len(tried) < HOPELESS:
            return ""
        reasons = ", ".join(f"{reason} ({n})" for reason, n in failures(tried).most_common())
        return f"none of the first {len(tried)} trials gave a result: {reasons}"

    def _say(self, event: Event) -> None:
        for observer in self.observers:
            observer.on_event(event)


def _without_result(measurement: Measurement, objectives: Sequence[Objective]) -> Outcome:
    """Return what a measurement without an objective is: out of reach where it says so."""
    lacking = missing(measurement, objectives)
    reasons = [measurement.absent[name] for name in lacking if name in measurement.absent]
    if reasons:
        return Infeasible("slo_out_of_reach", f"no value for {lacking[0]}: {reasons[0]}")
    return Faulted("no_result", f"no value for {', '.join(lacking)}")


def counts_as_trial(record: TrialRecord) -> bool:
    """Whether a trial counts against a budget of trials: it ran, and was not broken by weather."""
    match record.outcome:
        case Measured() | Dominated():
            return True
        case Infeasible():
            return record.cost.total_s > 0
        case _:
            return False


def failures(records: Sequence[TrialRecord]) -> Counter[str]:
    """Return how often each reason ended a trial."""
    return Counter(
        record.outcome.reason
        for record in records
        if isinstance(record.outcome, Infeasible | Faulted)
    )


def front(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Return the feasible trials that no other one dominates, best first in the first objective."""
    measured = [record for record in records if record.feasible]
    if not measured:
        return []
    maximize = [objective.maximize for objective in objectives]
    losses = pareto.oriented([record.scores or () for record in measured], maximize)
    order = np.lexsort(losses.T[::-1])
    keep = pareto.non_dominated(losses)
    return [measured[row] for row in order if keep[row]]
