"""What the trials so far say about points not tried: how much front is to be gained, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tuner import pareto
from tuner.knobs import Point, SearchSpace
from tuner.objectives import Constraint, Objective
from tuner.records import Dominated, Faulted, Infeasible, Measured, TrialRecord
from tuner.strategies.encoding import Encoder
from tuner.strategies.gaussian import STEPS, GaussianProcess
from tuner.strategies.improvement import expected_improvement, free_boxes

Floats = NDArray[np.float64]

#: Measured trials before the model speaks.
ENOUGH = 3
#: Only this many of the latest trials are learned from: fitting costs their number cubed.
LATEST = 250
#: Results count as gain up to this far beyond the first measured trial, a study's baseline: half
#: its throughput, twice its latency (values that are not all positive: by their spread). A
#: reference that follows the trials would shrink onto what they found first.
BEYOND = math.log(2.0)

#: A model of failures is half believed after this many of them: one failure does not say which knob
#: was at fault, and must not close off all that shares a value with it.
DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Targets:
    """What is optimized, and what must hold."""

    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]

    @property
    def maximize(self) -> list[bool]:
        """Per objective, whether more is better."""
        return [objective.maximize for objective in self.objectives]


@dataclass(frozen=True, slots=True)
class Gate:
    """A model of what must be <= 0, the rows it learned from, and how far it is to be believed."""

    process: GaussianProcess
    rows: Floats
    trust: float


class Model:
    """One Gaussian process per objective, per constraint ever violated, and for what can run.

    Objectives whose values are all positive are modelled in the logarithm: a tenth more throughput
    weighs as much as a tenth less latency.
    """

    def __init__(self, space: SearchSpace, targets: Targets) -> None:
        self._encoder = Encoder(space)
        self._targets = targets
        self._knobs = len(space.knobs)
        self._processes: dict[str, GaussianProcess] = {}
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether ``gain`` can be asked: enough trials were measured at the last ``learn``."""
        return self._ready

    def learn(self, records: Sequence[TrialRecord], running: Sequence[Point] = ()) -> None:
        """Fit to finished trials. ``running`` points count as if they gave what is expected.

        A trial that was stopped early counts as if it had reached its bound.
        """
        records = [_at_bound(record, self._targets.objectives) for record in records]
        known = [r for r in records if not isinstance(r.outcome, Faulted)][-LATEST:]
        measured = [r for r in known if r.scores is not None]
        self._seen = self._encoder.rows([r.point for r in known] + list(running))
        self._ready = len(measured) >= ENOUGH
        if not self._ready:
            return
        self._rows = self._encoder.rows(r.point for r in measured)
        self._running = self._encoder.rows(running)
        self._gates = [self._gate("can_run", known, [_label(r) for r in known])]
        for n, constraint in enumerate(self._targets.constraints):
            telling = [r for r in known if _tells(r, constraint.metric)]
            held = [r.violations[n] for r in telling]
            self._gates.append(self._gate(constraint.metric, telling, held))
        losses, self._logarithmic = _losses(measured, self._targets.maximize)
        self._fitted = [self._fit(str(n), self._rows, column) for n, column in enumerate(losses.T)]
        self._boxes = self._free(measured, losses)

    def gain(self, points: Sequence[Point]) -> Floats:
        """Return the front's expected gain per point, times the chance that it is allowed."""
        rows = self._encoder.rows(points)
        mean, std = self._belief(rows)
        gain = expected_improvement(mean, std, self._boxes)
        for gate in self._gates:
            gain = gain * self._chance(gate, rows)
        return np.asarray(gain, np.float64)

    def _chance(self, gate: Gate | None, rows: Floats) -> Floats:
        """Return each row's chance to pass a gate."""
        if gate is None:
            return np.ones(len(rows))
        belief = gate.process.posterior(self._encoder.gaps(rows, gate.rows))
        chance = ndtr(-belief.mean / np.hypot(belief.std, gate.process.noise_std))
        return np.asarray(1.0 - gate.trust * (1.0 - chance), np.float64)

    def novelty(self, points: Sequence[Point]) -> Floats:
        """Return each point's distance to the nearest known or running one, inf without any."""
        if not len(self._seen):
            return np.full(len(points), np.inf)
        gaps = self._encoder.gaps(self._encoder.rows(points), self._seen)
        return np.asarray(np.sqrt(gaps.sum(axis=0)).min(axis=1), np.float64)

    def _belief(self, rows: Floats) -> tuple[Floats, Floats]:
        gaps = self._encoder.gaps(rows, self._with_running)
        beliefs = [process.posterior(gaps) for process in self._fitted]
        return np.column_stack([b.mean for b in beliefs]), np.column_stack([b.std for b in beliefs])

    def _fit(self, name: str, rows: Floats, values: Floats, steps: int = STEPS) -> GaussianProcess:
        process = self._processes.setdefault(name, GaussianProcess(self._knobs))
        process.fit(self._encoder.gaps(rows, rows), _calm(values), steps)
        return process

    def _gate(
        self, name: str, records: Sequence[TrialRecord], values: Sequence[float]
    ) -> Gate | None:
        """Fit a model of what must be <= 0; None while it always was."""
        broken = sum(value > 0 for value in values)
        if not broken:
            return None
        rows = self._encoder.rows(r.point for r in records)
        process = self._fit(name, rows, np.array(values, np.float64))
        return Gate(process, rows, broken / (broken + DOUBT))

    def _free(self, measured: Sequence[TrialRecord], losses: Floats) -> tuple[Floats, Floats]:
        """Return the boxes that the believed front leaves free, the running points included."""
        self._with_running = self._rows
        believed, _ = self._belief(self._rows)
        front = believed[[r.feasible and isinstance(r.outcome, Measured) for r in measured]]
        if len(self._running):
            expected, _ = self._belief(self._running)
            front = np.concatenate([front, expected])
            self._believe(np.concatenate([losses, expected]))
        reference = losses[0] + np.where(self._logarithmic, BEYOND, losses.std(axis=0) + 1e-9)
        return free_boxes(front, reference)

    def _believe(self, losses: Floats) -> None:
        """Take the running points in, with the fitted lengths as they are."""
        self._with_running = np.concatenate([self._rows, self._running])
        for n, column in enumerate(losses.T):
            self._fit(str(n), self._with_running, column, steps=0)


def _label(record: TrialRecord) -> float:
    return 1.0 if isinstance(record.outcome, Infeasible) else -1.0


def _at_bound(record: TrialRecord, objectives: Sequence[Objective]) -> TrialRecord:
    """Return a trial that was stopped with the best scores it could reach, where all are known."""
    if not isinstance(record.outcome, Dominated):
        return record
    best = [record.outcome.bound.get(objective.metric) for objective in objectives]
    known = tuple(value for value in best if value is not None)
    return replace(record, scores=known) if len(known) == len(best) else record


def _tells(record: TrialRecord, metric: str) -> bool:
    """Whether a trial says how far it was from breaking a constraint on ``metric``."""
    if isinstance(record.outcome, Dominated):
        return metric in record.outcome.bound
    return record.scores is not None


def _losses(
    measured: Sequence[TrialRecord], maximize: Sequence[bool]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return shape (n, m), smaller is better, and in which columns it is the logarithm."""
    scores = np.array([r.scores for r in measured], np.float64)
    positive = np.asarray((scores > 0).all(axis=0))
    scores[:, positive] = np.log(scores[:, positive])
    return pareto.oriented(scores.tolist(), maximize), positive


def _calm(values: Floats) -> Floats:
    """Return values with the far bad end pulled in: how bad a bad point is teaches little."""
    low, middle, high = np.percentile(values, [10, 50, 90])
    limit = middle + 3.0 * max(high - middle, middle - low)
    return np.minimum(values, limit) if limit > middle else values
