"""Presets: the members of a front that people deploy, each with where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner import pareto
from tuner.config import EngineConfig, Json
from tuner.objectives import Objective
from tuner.records import Measured, TrialRecord

#: Labels of configurations that others are held against begin so.
BASELINE = "baseline:"
#: The label of the configuration that a user gets who sets nothing.
DEFAULT_BASELINE = "baseline: vllm serve defaults"

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration under the name of what it is good for.

    ``scores``, ``intervals`` and ``gains`` are by objective metric, in base units. A gain is this
    preset's value divided by the baseline's: above 1 is better where the objective is maximized,
    below 1 where it is minimized. ``provenance`` says from what the numbers come, ``conditions``
    under which they hold: see ``validity``.
    """

    name: str
    config: EngineConfig
    trial: int
    scores: Mapping[str, float]
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Json] = field(default_factory=dict)
    conditions: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping, what lies beside the exported file."""
        return {
            "name": self.name,
            "trial": self.trial,
            "config": self.config.to_json(),
            "scores": dict(self.scores),
            "intervals": {metric: list(pair) for metric, pair in self.intervals.items()},
            "ratio_to_default": dict(self.gains),
            "conditions": dict(self.conditions),
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Preset:
        """Rebuild a preset from ``to_json``."""
        return cls(
            name=data["name"],
            config=EngineConfig(**data["config"]),
            trial=data["trial"],
            scores=data["scores"],
            intervals={metric: (low, high) for metric, (low, high) in data["intervals"].items()},
            gains=data["ratio_to_default"],
            provenance=data["provenance"],
            conditions=data.get("conditions", {}),
        )


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a study's numbers come from: what all its presets share.

    ``versions`` and ``hardware`` are those of the machine that measured. ``date`` is when the study
    ended, ISO 8601. ``confirmed`` holds trial -> repeats for trials measured again at the end.
    """

    study: str
    definition_digest: str = ""
    workload: str = ""
    workload_digest: str = ""
    trace_digest: str = ""
    #: See ``validity.model_digest``; '' where the model's files were not at hand.
    model_digest: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Json] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    simulated: bool = False
    confirmed: Mapping[int, int] = field(default_factory=dict)

    def of(self, record: TrialRecord) -> dict[str, Json]:
        """Return the provenance of one trial of the study: shared part, measurement, cautions."""
        repeats = self.confirmed.get(record.number, 0)
        return {
            "study": self.study,
            "study_definition_digest": self.definition_digest,
            "trial": record.number,
            "workload": self.workload,
            "workload_digest": self.workload_digest,
            "trace_digest": self.trace_digest,
            "versions": dict(self.versions),
            "hardware": dict(self.hardware),
            "command": self.command,
            "date": self.date,
            "simulated": self.simulated,
            "random_weights": record.config.args.get("load_format") == "dummy",
            "confirmed_repeats": repeats,
            "caution": "" if repeats else "single measurement, not confirmed",
            "start_s": record.cost.start_s or None,
            **_measured(record),
        }

    def conditions(self, config: EngineConfig) -> dict[str, Json]:
        """Return under what the numbers of a configuration hold: model, device, vLLM, traffic."""
        devices = self.hardware.get("gpus") or []
        return {
            "model": config.model,
            "model_digest": self.model_digest or None,
            "vllm": self.versions.get("vllm"),
            "gpu": devices[0] if devices else None,
            "gpus": config.gpus if devices else 0,
            "cpu": None if devices else self.hardware.get("cpu"),
            "workload": self.workload,
            "trace_digest": self.trace_digest,
        }


def _measured(record: TrialRecord) -> dict[str, Json]:
    if not isinstance(record.outcome, Measured):
        return {}
    measurement = record.outcome.measurement
    return {
        "measured": dict(measurement.values),
        "counts": dict(measurement.counts),
        "engine": dict(measurement.facts),
        "warnings": list(measurement.warnings),
    }


Chooser = Callable[[pareto.Scores], int]
_ORDER = ("max-throughput", "low-latency", "balanced")
CAPACITY = "capacity.requests_per_s"
COST = ".cost_per_million_tokens"
#: Of several measured costs, the one that counts: at capacity, at saturation, as paced.
_COSTS = ("capacity", "saturated", "paced")


def choose(
    front: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    provenance: Provenance,
    baseline: TrialRecord | None = None,
    intervals: Mapping[int, Mapping[str, Interval]] | None = None,
) -> list[Preset]:
    """Name the front's members: max-throughput, low-latency, balanced, max-capacity, cheapest.

    The first maximized objective picks max-throughput, the first minimized one low-latency;
    balanced is the knee, and needs two objectives. Capacity and cost have names of their own, given
    wherever they were measured, objective or not. One member may carry several names; members
    without scores are passed over; an empty front gives no presets. ``intervals`` are by trial
    number and metric.
    """
    scored = [record for record in front if record.scores is not None]
    if not scored:
        return []
    maximize = [objective.maximize for objective in objectives]
    losses = pareto.oriented([record.scores or () for record in scored], maximize)
    picked = {name: scored[pick(losses)] for name, pick in _choosers(objectives).items()}
    picked |= _measured_best(scored, objectives)
    return [
        _preset(name, record, objectives, provenance, baseline, intervals or {})
        for name, record in picked.items()
    ]


def _choosers(objectives: Sequence[Objective]) -> dict[str, Chooser]:
    named: dict[str, Chooser] = {}
    for column, objective in enumerate(objectives):
        if objective.metric != CAPACITY and not objective.metric.endswith(COST):
            name = "max-throughput" if objective.maximize else "low-latency"
            named.setdefault(name, _best(column))
    if len(objectives) > 1:
        named["balanced"] = pareto.knee
    return dict(sorted(named.items(), key=lambda item: _ORDER.index(item[0])))


def _measured_best(
    records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> dict[str, TrialRecord]:
    """Return the best in capacity and in cost, of the members for which these were measured."""
    metrics = [objective.metric for objective in objectives]
    costs = [metric for metric in metrics if metric.endswith(COST)]
    found: dict[str, TrialRecord] = {}
    for name, candidates, sign in (
        ("max-capacity", [CAPACITY], -1),
        ("cheapest", [*costs, *(measure + COST for measure in _COSTS)], 1),
    ):
        for metric in candidates:
            values = {r.number: _value(r, metric, metrics) for r in records}
            having = [r for r in records if values[r.number] is not None]
            if having:
                found[name] = min(having, key=lambda r: sign * (values[r.number] or 0.0))
                break
    return found


def _value(record: TrialRecord, metric: str, metrics: Sequence[str]) -> float | None:
    """Return a score, which may be a mean of repeats, or else what the trial measured."""
    if metric in metrics and record.scores is not None:
        return record.scores[metrics.index(metric)]
    if not isinstance(record.outcome, Measured):
        return None
    return record.outcome.measurement.values.get(metric)


def _best(column: int) -> Chooser:
    """The best row of a column; among equals the one that is best in the columns from the left."""

    def pick(losses: pareto.Scores) -> int:
        return min(range(len(losses)), key=lambda row: (losses[row, column], *losses[row], row))

    return pick


def _preset(
    name: str,
    record: TrialRecord,
    objectives: Sequence[Objective],
    provenance: Provenance,
    baseline: TrialRecord | None,
    intervals: Mapping[int, Mapping[str, Interval]],
) -> Preset:
    metrics = [objective.metric for objective in objectives]
    return Preset(
        name=name,
        config=record.config,
        trial=record.number,
        scores=dict(zip(metrics, record.scores or (), strict=True)),
        intervals=dict(intervals.get(record.number, {})),
        gains=ratios(record, baseline, objectives),
        provenance=provenance.of(record),
        conditions=provenance.conditions(record.config),
    )


def ratios(
    record: TrialRecord, baseline: TrialRecord | None, objectives: Sequence[Objective]
) -> dict[str, float]:
    """Return the record's score divided by the baseline's, by metric.

    Empty without a measured baseline; a baseline value of 0 has no ratio.
    """
    if baseline is None or baseline.scores is None or record.scores is None:
        return {}
    triples = zip(objectives, record.scores, baseline.scores, strict=True)
    return {objective.metric: ours / theirs for objective, ours, theirs in triples if theirs}


def is_baseline(record: TrialRecord) -> bool:
    """Whether the trial measured a configuration that others are held against."""
    return record.config.label.startswith(BASELINE)


def default_baseline(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the measured trial of ``vllm serve`` defaults, None where there is none."""
    found = [r for r in records if r.config.label == DEFAULT_BASELINE and r.scores is not None]
    return found[0] if found else None
