"""A against B: both configurations measured in turns (ABBA), and a verdict per metric.

The runs are trials of a study of their own in the study's storage: nothing is lost when it is
interrupted, the same request continues, and more repeats add to those that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tuner.again import Again, measure_again
from tuner.beforehand import checking, refusing, temperatures
from tuner.compare_sides import Side, drift, sides
from tuner.errors import Problem, StudyError
from tuner.intervals import (
    Interval,
    Verdict,
    ratio_interval,
    repeats_needed,
    verdict,
)
from tuner.objectives import Constraint
from tuner.records import Faulted, Infeasible, Measured, TrialRecord
from tuner.results import load_results, open_store, stored
from tuner.study import StudySpec, load_study
from tuner.surroundings import Surroundings

#: Shown besides the study's objectives and constraints, where measured. True: more is better.
METRICS: Mapping[str, bool] = {
    "saturated.output_tokens_per_s": True,
    "saturated.requests_per_s": True,
    "saturated.tokens_per_joule": True,
    "saturated.cost_per_million_tokens": False,
    "paced.goodput": True,
    "paced.ttft.p50": False,
    "paced.ttft.p99": False,
    "paced.tpot.p50": False,
    "paced.itl.p99": False,
    "paced.e2e.p50": False,
    "paced.e2e.p99": False,
    "capacity.requests_per_s": True,
}
#: Ends of names of which more is better, for a metric with an upper and a lower bound.
_MORE_IS_BETTER = ("_per_s", "goodput", "attainment", "_per_joule", "hit_share")
SIDES = ("a", "b")
SIMULATED = "a simulated engine repeats itself exactly: intervals say nothing of a real one"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: two names (see ``compare_sides``), and how to measure them."""

    folder: Path
    names: tuple[str, str]
    repeats: int = 4
    #: Kind of engine; None takes the study's.
    engine: str | None = None
    #: Change one running engine instead of starting one per run.
    live: bool = False
    #: The relative difference that one wants to be able to see.
    difference: float = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One metric on both sides, in base units; value i of each was measured in the same round."""

    metric: str
    maximize: bool
    a: tuple[float, ...]
    b: tuple[float, ...]
    #: B / A. None below two rounds, or where a value is not positive.
    ratio: Interval | None
    #: Of B against A.
    verdict: Verdict
    #: Repeats that would show the wanted difference; None where no spread was seen.
    needed: int | None

    @property
    def means(self) -> tuple[float, float]:
        """Mean of A's and of B's repeats."""
        return float(np.mean(self.a)), float(np.mean(self.b))


@dataclass(frozen=True, slots=True)
class Compared:
    """What came out."""

    question: Question
    study: str
    sides: tuple[Side, Side]
    #: The metrics that matter most; all of them are in ``values``.
    rows: tuple[Row, ...]
    #: Where logs and files are.
    folder: Path
    kind: str
    #: What a reader has to know: other versions, runs that broke.
    notes: tuple[str, ...] = ()
    #: Metric -> values of A and of B, by round.
    values: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)

    @property
    def decided(self) -> bool:
        """Whether any metric could be compared at all."""
        return any(row.ratio is not None for row in self.rows)


def compare(question: Question, around: Surroundings) -> Compared:
    """Measure both sides, as far as that is not done yet, and say what the runs show.

    On the held-out part of the workload where one is kept. Raises StudyError for names that stand
    for nothing and for a side that can never run; StoreError where other sides of the same names
    were measured before.
    """
    results = load_results(question.folder)
    spec = load_study(question.folder / "study.yaml")
    a, b = sides(question.names, results, spec)
    kind = question.engine or spec.engine.kind
    run = _measuring(spec, kind)
    notes = [SIMULATED] if kind == "simulated" else [*drift(a), *drift(b)]
    for note in dict.fromkeys(notes):
        around.say(note)
    again = _again(question, run, (a, b), around)
    measure_again(run, around, again)
    records = stored(open_store(question.folder), again.name)
    values = _values(records)
    return Compared(
        question,
        spec.name,
        (a, b),
        tuple(_rows(spec, values, question.difference)),
        question.folder / again.folder,
        kind,
        tuple(dict.fromkeys([*notes, *_cautions(records)])),
        values,
    )


def _measuring(spec: StudySpec, kind: str) -> StudySpec:
    """Return the study with this kind of engine, one at a time: both sides on the same device."""
    options = spec.engine.options if kind == spec.engine.kind else {}
    return replace(
        spec,
        engine=replace(spec.engine, kind=kind, options=options),
        ray=replace(spec.ray, slots=1),
    )


def _again(
    question: Question, run: StudySpec, pair: tuple[Side, Side], around: Surroundings
) -> Again:
    workload = run.held_out() or run.workload()
    configs = [side.config for side in pair]
    with checking(run, around.cache) as checker:
        check = refusing(checker, workload)
        refused = [(side, found) for side in pair if (found := check(side.config)) is not None]
        if refused:
            raise StudyError(
                Problem("", side.name, f"can never run here: {found.reason}: {found.detail}")
                for side, found in refused
            )
        hot = {} if checker is None else temperatures(run, checker)
        warmth = _live(hot, pair, run) if question.live else {}
    name = "-".join(side.slug for side in pair)
    name += f"-{question.engine}" * bool(question.engine) + "-live" * question.live
    return Again(
        f"{run.name}-compare-{name}",
        list(enumerate(configs)),
        question.repeats,
        workload,
        run.engine.kind,
        f"compare/{name}",
        warmth,
        {side: config.to_json() for side, config in zip(SIDES, configs, strict=True)},
    )


def _live(
    temperatures: Mapping[str, str], pair: tuple[Side, Side], run: StudySpec
) -> dict[str, str]:
    """Return the arguments that are changed live. Raises StudyError where that is not enough."""
    a, b = (side.config for side in pair)
    both = set(a.args) & set(b.args)
    live = {name for name, warmth in temperatures.items() if warmth == "hot" and name in both}
    differing = {n for n in set(a.args) | set(b.args) if a.args.get(n) != b.args.get(n)}
    why = []
    if run.engine.kind != "vllm":
        why.append(f"the engine {run.engine.kind} cannot be changed while it runs")
    if (a.model, a.env) != (b.model, b.env):
        why.append("the sides differ in model or environment")
    if differing - live:
        names = ", ".join(sorted(differing - live))
        why.append(f"they differ in what no live engine changes, or one leaves to vLLM: {names}")
    if why:
        what = f"{'; '.join(why)}. Without --live both start cold."
        raise StudyError(Problem("", "--live", what))
    return dict.fromkeys(live, "hot")


def _values(
    records: Sequence[TrialRecord],
) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return the values of rounds in which both sides were measured."""
    seen: dict[str, dict[int, dict[int, float]]] = {}
    for record in records:
        if isinstance(record.outcome, Measured):
            side, turn = int(record.point["member"]), int(record.point["repeat"])
            for metric, value in record.outcome.measurement.values.items():
                seen.setdefault(metric, {}).setdefault(turn, {})[side] = value
    found = {}
    for metric, rounds in seen.items():
        pairs = [rounds[turn] for turn in sorted(rounds) if len(rounds[turn]) == len(SIDES)]
        if pairs:
            found[metric] = (tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    return found


def _rows(
    spec: StudySpec,
    values: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]],
    difference: float,
) -> list[Row]:
    bounds = {c.metric: _more_is_better(c) for c in spec.constraints if c.metric not in METRICS}
    objectives = {objective.metric: objective.maximize for objective in spec.objectives}
    wanted = {*objectives, *(c.metric for c in spec.constraints)}
    rows = []
    for metric, maximize in {**METRICS, **bounds, **objectives}.items():
        if metric in values:
            a, b = values[metric]
            ratio = ratio_interval(b, a)
            needed = None if ratio is None else repeats_needed(ratio, difference)
            rows.append(Row(metric, maximize, a, b, ratio, verdict(ratio, maximize), needed))
    # The study's own metrics go first.
    return sorted(rows, key=lambda row: row.metric not in wanted)


def _more_is_better(constraint: Constraint) -> bool:
    """Return the direction of a bound's metric; with both bounds, or none, its name decides."""
    if (constraint.lower is None) != (constraint.upper is None):
        return constraint.upper is None
    return constraint.metric.endswith(_MORE_IS_BETTER)


def _cautions(records: Sequence[TrialRecord]) -> list[str]:
    said: list[str] = []
    for record in records:
        match record.outcome:
            case Measured(measurement):
                said += measurement.warnings
            case Faulted(reason, detail) | Infeasible(reason, detail):
                side = SIDES[int(record.point.get("member", 0))].upper()
                said.append(f"a run of {side} gave no result: {reason}: {detail}")
    return said
