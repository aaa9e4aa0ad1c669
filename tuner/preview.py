"""What a study would try, what of it can never start, and what it will cost: without an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tuner.config import Json
from tuner.job import Workload
from tuner.knobs import ChoiceDomain, FloatDomain, Knob, Point
from tuner.records import Infeasible
from tuner.results import load_results
from tuner.rules import broken
from tuner.runner import checking, known_good, refusing, temperatures
from tuner.strategies.plain import KnownGood
from tuner.study import StudySpec
from tuner.study_workload import workload_warnings
from tuner.tune import Check, counts_as_trial

#: A space of at most this many points is looked at whole, a larger one by a sample of this size.
WHOLE = 1000
SAMPLE = 300


@dataclass(frozen=True, slots=True)
class Preview:
    """What ``tuner check`` found."""

    #: Points of the space that keep the rules; None for one that is too large to list.
    points: int | None
    #: Points looked at.
    looked_at: int
    rejected: Sequence[tuple[Point, Infeasible]]
    known_good: Sequence[KnownGood]
    workload: Workload
    cost: dict[str, Json] = field(default_factory=dict)
    #: Knob -> hot, warm or cold on the installed vLLM; empty for a simulated engine.
    temperatures: Mapping[str, str] = field(default_factory=dict)

    @property
    def feasible_share(self) -> float | None:
        """Share of the points looked at that nothing speaks against."""
        return 1 - len(self.rejected) / self.looked_at if self.looked_at else None

    @property
    def reasons(self) -> Counter[str]:
        """How often each reason and detail rejects a point."""
        return Counter(f"{why.reason}: {why.detail}" for _, why in self.rejected)

    def warnings(self, spec: StudySpec) -> list[str]:
        """Return what the study's files and its workload warn about."""
        return [*spec.warnings, *workload_warnings(self.workload)]

    def to_json(self, spec: StudySpec) -> dict[str, Json]:
        """Return what ``tuner check --json`` prints."""
        return {
            "points": self.points,
            "looked_at": self.looked_at,
            "feasible_share": self.feasible_share,
            "rejected": [
                {"config": spec.config(p).to_json(), "reason": why.reason, "detail": why.detail}
                for p, why in self.rejected
            ],
            "baselines": [known.label for known in self.known_good],
            "temperatures": dict(self.temperatures),
            "cost": self.cost,
            "warnings": self.warnings(spec),
        }


def preview(spec: StudySpec, folder: Path) -> Preview:
    """Look at a study's space and workload; ``folder`` may hold earlier results of it.

    Raises StudyError for what is wrong with the study itself.
    """
    workload = spec.workload()
    points, whole = _points(spec)
    with checking(spec) as checker:
        known = [] if checker is None else known_good(spec, checker, workload)
        warmth = {} if checker is None else temperatures(spec, checker)
        rejected = _rejected(spec, points, refusing(checker, workload))
    count, cost = len(points) if whole else None, _cost(spec, workload, folder)
    return Preview(count, len(points), rejected, known, workload, cost, warmth)


def values_text(knob: Knob) -> str:
    """Return what a knob can be, in one line: the effective grid, not the range asked for."""
    domain = knob.domain
    if domain.size is None or domain.size > 24:
        span = f"{domain.low} .. {domain.high}"  # type: ignore[union-attr]
        scale = ", even in the logarithm" if getattr(domain, "log", False) else ""
        grid = "" if isinstance(domain, FloatDomain) else f", {domain.size} values"
        return span + grid + scale
    labels = domain.labels if isinstance(domain, ChoiceDomain) else tuple(domain.values())
    return ", ".join("null" if v is None else str(v) for v in labels)


def _points(spec: StudySpec) -> tuple[list[Point], bool]:
    """Return all points that keep the rules, or a sample; and whether it is all."""
    from tuner.strategies.distinct import uniform_points

    space = spec.space
    bound = space.size_bound
    if bound is not None and bound <= WHOLE:
        found = list(space.points())
    else:
        found = uniform_points(space, SAMPLE, np.random.default_rng(spec.strategy.seed))
    kept = [p for p in found if not broken(space.rules, space.arguments(p))]
    return list(kept), bound is not None and bound <= WHOLE


def _rejected(
    spec: StudySpec, points: Sequence[Point], check: Check
) -> list[tuple[Point, Infeasible]]:
    looked = ((point, check(spec.config(point))) for point in points)
    return [(point, why) for point, why in looked if why is not None]


def _cost(spec: StudySpec, workload: Workload, folder: Path) -> dict[str, Json]:
    """Return the estimate: seconds of a trial as recorded, else what the trace alone tells."""
    cost: dict[str, Json] = {
        "trials": spec.budget.trials,
        "paced_replay_s": workload.trace.span_s if "paced" in workload.measures else 0.0,
        "seconds_per_trial": None,
        "seconds": None,
    }
    if (folder / "study.db").is_file():
        spent = [r.cost.total_s for r in load_results(folder).records if counts_as_trial(r)]
        if spent:
            cost["seconds_per_trial"] = float(np.mean(spent))
            cost["seconds"] = cost["seconds_per_trial"] * (spec.budget.trials or len(spent))
    return cost
