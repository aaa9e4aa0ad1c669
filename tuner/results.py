"""Results of a study, read back from its folder: what tables, exports and report are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from tuner import demotion
from tuner.accuracy import ATTRIBUTE, Drift, bounded, from_attribute
from tuner.attribution import Attribution
from tuner.config import Json, digest
from tuner.confirm import Confirmed, confirmed
from tuner.confirm import study_name as confirming
from tuner.errors import Problem, StoreError, StudyError
from tuner.objectives import Constraint, Objective
from tuner.presets import Preset, Provenance, choose, default_baseline, is_baseline
from tuner.records import Measured, TrialRecord
from tuner.report_confirmed import Proof
from tuner.report_memory import COLUMNS, columns
from tuner.report_table import front_rows
from tuner.results_attribution import load_attribution
from tuner.results_requests import requests_frame
from tuner.store import Store, sqlite_url
from tuner.store_importances import importances
from tuner.tune import front
from tuner.yaml_file import read


@dataclass(frozen=True, slots=True)
class StudyResults:
    """Everything a finished (or running) study has stored."""

    folder: Path
    name: str
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    records: tuple[TrialRecord, ...]
    definition: Mapping[str, Json] = field(default_factory=dict)
    #: What repeats say of the finalists and the baselines; empty before the confirmation.
    confirmed: tuple[Confirmed, ...] = ()
    #: The repeats themselves, as the confirming study stored them.
    repeats: tuple[TrialRecord, ...] = ()
    #: The machine that ran the study: ``hardware`` and ``versions``.
    machine: Mapping[str, Json] = field(default_factory=dict)
    #: The command that ran the study last.
    command: str = ""
    #: From which knobs the gain of a preset comes; None where that was not measured.
    attribution: Attribution | None = None
    #: What configurations cost in accuracy, by trial, where that was measured.
    drifts: Mapping[int, Drift] = field(default_factory=dict)
    #: Hot knobs that measured otherwise live than from a start: live / cold. See ``demotion``.
    demoted: Mapping[str, float] = field(default_factory=dict)

    @property
    def front(self) -> list[TrialRecord]:
        """The feasible trials that no other one dominates."""
        return front(self.records, self.objectives)

    @property
    def baselines(self) -> list[TrialRecord]:
        """The measured baselines, with the means of their repeats where they were confirmed."""
        means = {one.trial: self._with_means(one) for one in self.confirmed}
        measured = [r for r in self.records if is_baseline(r) and r.scores is not None]
        return [means.get(record.number, record) for record in measured]

    @property
    def deployable(self) -> list[TrialRecord]:
        """The front, as confirmed where it was: means of the repeats instead of single scores.

        A member that another one surely beats in everything is left out then.
        """
        kept = [one for one in self.confirmed if not one.dominated]
        return front([self._with_means(one) for one in kept], self.objectives) or self.front

    def presets(self, provenance: Provenance) -> list[Preset]:
        """Return the deployable front's named members."""
        default = default_baseline(self.settled)
        return choose(self.deployable, self.objectives, provenance, default, self.intervals)

    @property
    def settled(self) -> list[TrialRecord]:
        """All trials, by number, with the means of their repeats where they were confirmed."""
        found = {one.trial: self._with_means(one) for one in self.confirmed}
        return sorted(
            (found.get(record.number, record) for record in self.records), key=lambda r: r.number
        )

    @property
    def intervals(self) -> dict[int, dict[str, tuple[float, float]]]:
        """The bounds of each confirmed mean, by trial and metric, in base units."""
        metrics = [objective.metric for objective in self.objectives]
        return {
            one.trial: {
                metric: (interval.low, interval.high)
                for metric, interval in zip(metrics, one.intervals, strict=True)
            }
            for one in self.confirmed
        }

    @property
    def proof(self) -> Proof:
        """What the confirmation says, as the verdict needs it."""
        searched = str(self.provenance().trace_digest)
        drifts = {trial: str(drift) for trial, drift in self.drifts.items()}
        return Proof(self.confirmed, self.repeats, self.folder, searched, drifts)

    def _with_means(self, one: Confirmed) -> TrialRecord:
        record = next(r for r in self.records if r.number == one.trial)
        return replace(record, scores=tuple(one.scores.mean(axis=0).tolist()))

    def importances(self) -> dict[str, dict[str, float]]:
        """Return knob -> share of importance, by objective; {} where there are too few trials."""
        return importances(open_store(self.folder))

    def provenance(self, command: str = "", date: str = "") -> Provenance:
        """Return where the numbers come from, as the engines and the study's machine say."""
        facts: Mapping[str, Json] = next(
            (r.outcome.measurement.facts for r in self.records if isinstance(r.outcome, Measured)),
            {},
        )
        versions = dict(self.machine.get("versions", {}))
        if "version" in facts:
            versions["vllm"] = str(facts["version"])
        return Provenance(
            study=self.name,
            definition_digest=digest(dict(self.definition)),
            workload=str(facts.get("workload", "")),
            workload_digest=str(facts.get("workload_digest", "")),
            trace_digest=str(facts.get("trace_digest", "")),
            model_digest=str(self.machine.get("model_digest", "")),
            versions=versions,
            hardware={**self.machine.get("hardware", {}), "device": facts.get("device")},
            command=command or self.command,
            date=date,
            simulated=bool(facts.get("simulated", False)),
            confirmed={one.trial: len(one.scores) for one in self.confirmed},
        )

    def front_frame(self) -> pd.DataFrame:
        """Return one row per baseline and member of the deployable front, times in milliseconds.

        What was confirmed has the means of its repeats and their bounds.
        """
        presets = self.presets(self.provenance())
        rows = front_rows(self.deployable, self.objectives, self.baselines, presets, self.intervals)
        return pd.DataFrame(rows)

    def trials_frame(self) -> pd.DataFrame:
        """Return one row per trial: outcome, scores, cost, knobs, all measured values; base units.

        Columns of measured values are named as metrics are; a knob's column has the knob's name.
        """
        frame = pd.DataFrame([_row(record, self.objectives) for record in self.records])
        return frame.astype({name: "Int64" for name in COLUMNS if name in frame})

    def requests_frame(self, trials: Collection[int] | None = None) -> pd.DataFrame:
        """Return one row per replayed request, of all trials or of some; times in seconds.

        ``part`` says whether it is the search's or the confirmation's, ``trial`` is the number in
        the search also for repeats. Trials without records are absent.
        """
        parts = [("search", self.folder / "trials", r.number, r) for r in self.records]
        confirming = self.folder / "confirm" / "trials"
        parts += [("confirm", confirming, int(r.point["member"]), r) for r in self.repeats]
        frames = [
            requests_frame(file).assign(part=part, trial=trial)
            for part, folder, trial, record in parts
            if trials is None or trial in trials
            if (file := folder / str(record.number) / "requests.parquet").is_file()
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _row(record: TrialRecord, objectives: tuple[Objective, ...]) -> dict[str, Json]:
    scores = record.scores or (None,) * len(objectives)
    outcome = record.outcome
    values = outcome.measurement.values if isinstance(outcome, Measured) else {}
    return {
        "trial": record.number,
        "outcome": type(outcome).__name__.lower(),
        "reason": getattr(outcome, "reason", None),
        "feasible": record.feasible,
        "label": record.config.label or None,
        **{objective.metric: s for objective, s in zip(objectives, scores, strict=True)},
        "start_s": record.cost.start_s,
        "reconfigure_s": record.cost.reconfigure_s,
        "replay_s": record.cost.replay_s,
        "other_s": record.cost.other_s,
        "gpus": record.cost.gpus,
        **columns(record),
        **record.point,
        **{name: value for name, value in values.items() if name not in record.point},
    }


def open_store(folder: Path) -> Store:
    """Open the study of a results folder to read it.

    Raises StudyError where the folder holds none, StoreError where its storage does not.
    """
    file = folder / "study.yaml"
    if not file.is_file():
        raise StudyError(
            Problem(str(folder), "", "holds no study.yaml: this is not a folder of results."),
            "`tuner run STUDY.yaml` makes one under results/",
        )
    study = read(file).value
    if study.get("storage") is None and not (folder / "study.db").is_file():
        raise StoreError(f"{folder} holds no study.db", "run or resume the study with `tuner run`")
    return Store.load(str(study.get("storage") or sqlite_url(folder)), str(study["name"]))


def load_results(folder: str | Path) -> StudyResults:
    """Read the results of a study from its folder."""
    store = open_store(Path(folder))
    drifts = from_attribute(store.study.user_attrs.get(ATTRIBUTE))
    records = tuple(bounded(store.records(), drifts))
    repeats = stored(store, confirming(store.study.study_name))
    results = StudyResults(
        Path(folder),
        store.study.study_name,
        store.objectives,
        store.constraints,
        records,
        store.study.user_attrs.get("definition", {}),
        tuple(confirmed(repeats, records, store.objectives)),
        tuple(repeats),
        store.study.user_attrs.get("machine", {}),
        str(store.study.user_attrs.get("command", "")),
    )
    shown = {record.number for record in results.deployable}
    return replace(
        results,
        attribution=load_attribution(store, shown),
        drifts=drifts,
        demoted=store.study.user_attrs.get(demotion.ATTRIBUTE, {}),
    )


def stored(beside: Store, name: str) -> list[TrialRecord]:
    """Return the records of another study in the same storage; none where there is no such one."""
    storage = beside.study._storage
    if name not in {study.study_name for study in storage.get_all_studies()}:
        return []
    return Store.load(storage, name).records()
