"""Optuna's storage as the one record of a study: parameters, values, constraints, attributes.

What the dashboard shows is what we read back: there is no second log to keep in step.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from tuner.config import EngineConfig, Json, canonical
from tuner.errors import StoreError
from tuner.knobs import ChoiceDomain, Point, SearchSpace
from tuner.objectives import Constraint, Objective
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

# Nothing is printed by the library; what a user should know is an event.
optuna.logging.set_verbosity(optuna.logging.ERROR)

#: Name of the constraint that says whether an engine with this configuration can run at all.
CAN_RUN = "can_run"
INTERRUPTED = "interrupted"
#: Attributes that say what a queued trial is, and so go with it when it is queued again.
_KEPT = ("label", "arguments", "teaches", "retries", "rides")


def sqlite_url(folder: Path) -> str:
    """Return the default storage URL of a results folder."""
    return f"sqlite:///{(folder / 'study.db').resolve()}"


@dataclass(slots=True)
class Store:
    """One study in its storage. Make it with ``Store.open`` or ``Store.load``."""

    study: optuna.Study
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def open(
        cls,
        url: str,
        name: str,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        definition: Mapping[str, Json],
    ) -> Store:
        """Create the study or resume it.

        Raises StoreError, naming the difference, where the stored study was defined otherwise.
        """
        study = optuna.create_study(
            storage=url,
            study_name=name,
            directions=[objective.direction for objective in objectives],
            load_if_exists=True,
        )
        stored = study.user_attrs.get("definition")
        if stored is None:
            study.set_user_attr("definition", dict(definition))
            study.set_user_attr("objectives", [asdict(o) for o in objectives])
            study.set_user_attr("constraints", [asdict(c) for c in constraints])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                study.set_metric_names([objective.metric for objective in objectives])
        else:
            _same_definition(name, stored, definition)
        return cls(study, tuple(objectives), tuple(constraints))

    @classmethod
    def load(cls, url: str | optuna.storages.BaseStorage, name: str) -> Store:
        """Open a stored study to read it. Raises StoreError where there is none."""
        try:
            study = optuna.load_study(storage=url, study_name=name)
        except KeyError:
            raise StoreError(f"no study named {name!r} in {url}", "run `tuner run` first") from None
        attrs = study.user_attrs
        objectives = tuple(Objective(**o) for o in attrs.get("objectives", []))
        constraints = tuple(Constraint(**c) for c in attrs.get("constraints", []))
        return cls(study, objectives, constraints)

    def records(self) -> list[TrialRecord]:
        """Return every finished trial, by number."""
        return [_record(trial) for trial in self.study.trials if trial.state.is_finished()]

    def calibrations(self) -> dict[str, dict[str, Json]]:
        """Return what first starts taught the memory model: key of a demand -> its numbers."""
        return dict(self.study.user_attrs.get("calibrations", {}))

    def calibrate(self, key: str, found: Mapping[str, Json]) -> None:
        """Keep what one start taught the memory model."""
        self.study.set_user_attr("calibrations", {**self.calibrations(), key: dict(found)})

    def reap(self) -> list[int]:
        """End trials that a dead driver left RUNNING, and queue their parameters again."""
        left = [t for t in self.study.trials if t.state == TrialState.RUNNING]
        for trial in left:
            self._attributes(trial.number, {"outcome": INTERRUPTED})
            self.study.tell(trial.number, state=TrialState.FAIL)
            self.enqueue_again(trial.number)
        return [trial.number for trial in left]

    def enqueue_again(self, number: int, attributes: Mapping[str, Json] | None = None) -> None:
        """Queue a trial's parameters once more, as a new trial that names the old one."""
        trial = self.study.trials[number]
        kept = {k: v for k, v in trial.user_attrs.items() if k in _KEPT}
        again = {**kept, **(attributes or {}), "retry_of": number}
        self.study.enqueue_trial(trial.params, again)

    def begin(self, number: int, config: EngineConfig) -> None:
        """Store what a trial will try, before anything can go wrong with it."""
        self._attributes(number, {"config": config.to_json(), "key": config.key})

    def finish(self, record: TrialRecord) -> None:
        """Store a trial's outcome and tell Optuna, each kind in its own way.

        Measured: values. Infeasible: PRUNED with a violated constraint (no filler values, and the
        sampler learns to stay away). Faulted: FAIL, which samplers ignore. Dominated: PRUNED, which
        samplers rank behind everything measured; its bound is an attribute, no value of its own,
        so that nothing takes it for a measurement.
        """
        self._attributes(record.number, _attributes(record))
        trial = optuna.trial.Trial(self.study, _trial_id(self.study, record.number))
        match record.outcome:
            case Measured() if record.scores is not None:
                trial.set_constraint(CAN_RUN, 0.0)
                for constraint, violation in zip(self.constraints, record.violations, strict=True):
                    trial.set_constraint(constraint.metric, violation)
                self.study.tell(record.number, record.scores)
            case Infeasible():
                trial.set_constraint(CAN_RUN, 1.0)
                self.study.tell(record.number, state=TrialState.PRUNED)
            case Dominated(bound):
                trial.set_constraint(CAN_RUN, 0.0)
                for constraint, violation in zip(self.constraints, record.violations, strict=True):
                    if constraint.metric in bound:
                        trial.set_constraint(constraint.metric, violation)
                self.study.tell(record.number, state=TrialState.PRUNED)
            case _:
                self.study.tell(record.number, state=TrialState.FAIL)

    def _attributes(self, number: int, attributes: Mapping[str, Json]) -> None:
        trial_id = _trial_id(self.study, number)
        for name, value in attributes.items():
            self.study._storage.set_trial_user_attr(trial_id, name, value)


def _trial_id(study: optuna.Study, number: int) -> int:
    return study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)


def distribution(space: SearchSpace, name: str) -> optuna.distributions.BaseDistribution:
    """Return Optuna's distribution of a knob; a choice is stored by its labels."""
    domain = space[name].domain
    if isinstance(domain, ChoiceDomain):
        return optuna.distributions.CategoricalDistribution(domain.labels)
    if isinstance(domain.low, int) and isinstance(domain.step, int):
        return optuna.distributions.IntDistribution(
            domain.low, int(domain.high), log=domain.log, step=domain.step
        )
    return optuna.distributions.FloatDistribution(
        domain.low, domain.high, log=domain.log, step=domain.step
    )


def to_point(space: SearchSpace, params: Mapping[str, Any]) -> dict[str, Json]:
    """Return stored parameters as a point of the space: options instead of labels, no dust."""
    point: dict[str, Json] = {}
    for knob in space.knobs:
        if knob.name in params:
            value, domain = params[knob.name], knob.domain
            if isinstance(domain, ChoiceDomain):
                value = domain.option(value)
            elif isinstance(value, float) and not isinstance(domain.low, int):
                value = domain.rounded(value)  # type: ignore[union-attr]
            point[knob.name] = value
    return point


def to_params(space: SearchSpace, point: Point) -> dict[str, Any]:
    """Return a point as storage holds it: labels instead of options."""
    return {
        name: space[name].domain.label(value)  # type: ignore[union-attr]
        if isinstance(space[name].domain, ChoiceDomain)
        else value
        for name, value in point.items()
    }


def _attributes(record: TrialRecord) -> dict[str, Json]:
    out: dict[str, Json] = {
        "config": record.config.to_json(),
        "key": record.config.key,
        "point": dict(record.point),
        "cost": asdict(record.cost),
        "violations": list(record.violations),
    }
    match record.outcome:
        case Measured(measurement):
            out |= {"outcome": "measured", **asdict(measurement)}
        case Infeasible(reason, detail):
            out |= {"outcome": "infeasible", "reason": reason, "detail": detail}
        case Faulted(reason, detail):
            out |= {"outcome": "faulted", "reason": reason, "detail": detail}
        case Dominated(bound, detail):
            out |= {"outcome": "dominated", "bound": dict(bound), "detail": detail}
    return out


def _record(trial: FrozenTrial) -> TrialRecord:
    attrs = trial.user_attrs
    return TrialRecord(
        number=trial.number,
        config=EngineConfig(**attrs.get("config", {"model": ""})),
        point=attrs.get("point", trial.params),
        outcome=_outcome(attrs),
        scores=tuple(trial.values) if trial.state == TrialState.COMPLETE else None,
        violations=tuple(attrs.get("violations", ())),
        cost=Cost(**attrs.get("cost", {})),
        span_s=_span(trial),
    )


def _span(trial: FrozenTrial) -> tuple[float, float] | None:
    began, ended = trial.datetime_start, trial.datetime_complete
    return None if began is None or ended is None else (began.timestamp(), ended.timestamp())


def _outcome(attrs: Mapping[str, Any]) -> Outcome:
    detail = attrs.get("detail", "")
    match attrs.get("outcome"):
        case "measured":
            return Measured(
                Measurement(
                    attrs["values"],
                    attrs["counts"],
                    attrs["facts"],
                    tuple(attrs["warnings"]),
                    {name: (low, high) for name, (low, high) in attrs.get("intervals", {}).items()},
                    attrs.get("absent", {}),
                )
            )
        case "infeasible":
            return Infeasible(attrs["reason"], detail)
        case "dominated":
            return Dominated(attrs["bound"], detail)
        case "faulted":
            return Faulted(attrs["reason"], detail)
        case _:
            return Faulted(INTERRUPTED, "the driver ended before the trial did")


def _same_definition(name: str, stored: Mapping[str, Json], wanted: Mapping[str, Json]) -> None:
    differences = [
        f"{key}: stored {canonical(stored.get(key))}, now {canonical(wanted.get(key))}"
        for key in sorted(set(stored) | set(wanted))
        if canonical(stored.get(key)) != canonical(wanted.get(key))
    ]
    if differences:
        raise StoreError(
            f"the results of study {name!r} were made with another definition:\n  "
            + "\n  ".join(differences),
            "give the study another name or --out folder, or restore the definition",
        )
