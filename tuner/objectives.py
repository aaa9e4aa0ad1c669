"""What a study optimizes: objectives with a direction, and constraints that a winner must meet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.records import Measurement


@dataclass(frozen=True, slots=True)
class Objective:
    """One metric to push up or down. The metric is named as in ``Measurement.values``."""

    metric: str
    maximize: bool

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Optuna's word for it."""
        return "maximize" if self.maximize else "minimize"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on one metric: at most ``upper``, at least ``lower``, in the metric's base unit."""

    metric: str
    upper: float | None = None
    lower: float | None = None

    def violation(self, measurement: Measurement) -> float:
        """Return how far the bound is missed: <= 0 where it holds.

        A metric that could not be had counts as missed by 1.
        """
        value = measurement.values.get(self.metric)
        return 1.0 if value is None else self.excess(value)

    def excess_of(self, bound: Mapping[str, float]) -> float:
        """Return how far the best values still to be reached miss the bound; 0 where unknown."""
        return self.excess(bound[self.metric]) if self.metric in bound else 0.0

    def excess(self, value: float) -> float:
        """Return how far a value misses the bound: <= 0 where it holds."""
        over = [] if self.upper is None else [value - self.upper]
        under = [] if self.lower is None else [self.lower - value]
        return max(over + under, default=0.0)


def scores(measurement: Measurement, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return the objective values in order, None if any of them is absent or not finite."""
    if missing(measurement, objectives):
        return None
    return tuple(measurement.values[objective.metric] for objective in objectives)


def missing(measurement: Measurement, objectives: Sequence[Objective]) -> list[str]:
    """Return the objectives' metrics of which the measurement has no finite value."""
    values = measurement.values
    return [o.metric for o in objectives if not math.isfinite(values.get(o.metric, math.nan))]
