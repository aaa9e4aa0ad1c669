"""What a study would try, what of it can never start, and what it will cost: without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuner.beforehand import (
    checking,
    known_good,
    predicting,
    refusing,
    simulated_baselines,
    temperatures,
)
from tuner.calibration import Memory
from tuner.config import EngineConfig, Json
from tuner.feasible import Refused, look, points, reasons, suggestions
from tuner.job import Workload
from tuner.knobs import ChoiceDomain, FloatDomain, Knob, Point
from tuner.preview_memory import answers
from tuner.records import Infeasible
from tuner.results import load_results
from tuner.runner import searching
from tuner.store import Store, sqlite_url
from tuner.strategies.expected import expected
from tuner.strategies.plain import KnownGood
from tuner.study import StudySpec
from tuner.study_workload import workload_warnings
from tuner.target import stand_in
from tuner.tune import counts_as_trial

if TYPE_CHECKING:
    from tuner.engines.vllm_check import Checker, Verdict

#: Points of a space that is too large to be looked at whole.
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
    #: Why what was rejected was rejected, the most frequent reason first.
    reasons: Sequence[Refused] = ()
    #: How to narrow the space, in sentences.
    suggestions: Sequence[str] = ()
    #: The three questions about memory; empty for a simulated engine. See ``preview_memory``.
    memory: Mapping[str, Json] = field(default_factory=dict)
    #: The GPU that was stood in for, '' where the machine at hand was asked.
    checked_for: str = ""
    #: What could not be checked, and why.
    unchecked: str = ""
    #: Knob -> hot, warm or cold on the installed vLLM; empty for a simulated engine.
    temperatures: Mapping[str, str] = field(default_factory=dict)

    @property
    def feasible_share(self) -> float | None:
        """Share of the points looked at that nothing speaks against."""
        return 1 - len(self.rejected) / self.looked_at if self.looked_at else None

    def warnings(self, spec: StudySpec) -> list[str]:
        """Return what the study's files and its workload warn about."""
        found = [*spec.warnings, *workload_warnings(self.workload)]
        return [*found, self.unchecked] if self.unchecked else found

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
            "reasons": [asdict(reason) for reason in self.reasons],
            "suggestions": list(self.suggestions),
            "checked_for": self.checked_for or None,
            "memory": dict(self.memory),
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
    found, whole = points(spec, SAMPLE)
    device = stand_in(spec)
    with checking(spec, device=device) as checker:
        known = known_good(spec, checker, workload) if checker else simulated_baselines(spec)
        warmth = {} if checker is None else temperatures(spec, checker)
        memory = None if checker is None else _memory(spec, checker, warmth, folder)
        looked = look(spec, found, refusing(checker, workload, memory))
        startable = [spec.config(point) for point, why in looked if why is None]
        told = {} if memory is None else answers(spec, workload, memory, known, startable)
        unchecked = "" if memory is None else _unchecked(memory.ask(spec.base))
    return Preview(
        points=len(found) if whole else None,
        looked_at=len(found),
        rejected=[(point, why) for point, why in looked if why is not None],
        known_good=known,
        workload=workload,
        cost=_cost(spec, workload, folder, (warmth, len(known))),
        reasons=reasons(looked),
        suggestions=suggestions(spec, looked, whole=whole),
        memory=told,
        checked_for=device.name if device else "",
        unchecked=unchecked,
        temperatures=warmth,
    )


def _memory(
    spec: StudySpec, checker: Checker, warmth: Mapping[str, str], folder: Path
) -> Memory | None:
    """Return the memory model with what earlier runs of the study taught it; each check once."""
    asked: dict[str, Verdict] = {}

    def ask(config: EngineConfig) -> Verdict:
        if config.key not in asked:
            asked[config.key] = checker.check(config)
        return asked[config.key]

    memory = predicting(spec, checker, warmth)
    if memory is None:
        return None
    memory = replace(memory, ask=ask)
    if (folder / "study.db").is_file():
        memory.knows(Store.load(spec.storage or sqlite_url(folder), spec.name).calibrations())
    return memory


def _unchecked(verdict: Verdict) -> str:
    return verdict.detail if verdict.ok and verdict.reason == "unchecked" else ""


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


def _cost(
    spec: StudySpec, workload: Workload, folder: Path, known: tuple[Mapping[str, str], int]
) -> dict[str, Json]:
    """Return the estimate: by the prices of recorded trials, else what the trace alone tells.

    ``known``: temperatures, and how many known-good configurations come first. Seconds are those of
    the search on one slot, its confirmation aside.
    """
    cost: dict[str, Json] = {
        "trials": spec.budget.trials,
        "paced_replay_s": workload.trace.span_s if "paced" in workload.measures else 0.0,
        "starts": None,
        "seconds_per_trial": None,
        "seconds": None,
    }
    if (folder / "study.db").is_file():
        records = load_results(folder).records
        warmth, first = known
        found = expected(searching(spec, warmth), spec.strategy.name, first, records)
        spent = [r.cost.total_s for r in records if counts_as_trial(r)]
        if found is not None:
            cost["starts"], cost["seconds"] = found.starts, found.seconds
            cost["seconds_per_trial"] = found.seconds / found.trials
        elif spent:
            cost["seconds_per_trial"] = float(np.mean(spent))
            cost["seconds"] = cost["seconds_per_trial"] * (spec.budget.trials or len(spent))
    return cost
