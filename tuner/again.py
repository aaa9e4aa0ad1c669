"""Measuring again: configurations, several times, interleaved, as a study beside the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.beforehand import refusing
from tuner.config import EngineConfig, Json
from tuner.confirm import finalists
from tuner.confirm import study_name as confirming
from tuner.demotion import ATTRIBUTE, demoted, notice
from tuner.job import Workload
from tuner.results import load_results, open_store
from tuner.runner import Parts, make_loop, make_store
from tuner.runner_pool import make_pool
from tuner.strategies.repeats import Repeats
from tuner.study import StudySpec
from tuner.study_sections import Budget
from tuner.surroundings import Surroundings


def confirm_study(spec: StudySpec, around: Surroundings) -> str:
    """Measure the front and the baselines again, as they are deployed; return why it ended.

    Cold, ``confirm.repeats`` times each, in interleaved rounds, on the held-out part of the
    workload where one is kept. What was measured by an earlier run is not measured again.
    """
    found = load_results(around.folder)
    members = finalists(found.front, found.baselines, spec.confirm.members)
    if not members or not found.front:
        return "nothing to confirm"
    kind = spec.confirm.engine if spec.engine.kind == "vllm" else spec.engine.kind
    workload = spec.held_out() or spec.workload()
    again = Again(confirming(spec.name), members, spec.confirm.repeats, workload, kind, "confirm")
    reason = measure_again(spec, around, again)
    _demote(around)
    return reason


def _demote(around: Surroundings) -> None:
    """Store and name the hot knobs that the confirmation found to measure otherwise live."""
    found = load_results(around.folder)
    knobs = demoted(found.confirmed, found.records, found.repeats)
    if knobs:
        store = open_store(around.folder)
        store.study.set_user_attr(ATTRIBUTE, {**found.demoted, **knobs})
        around.say(notice(knobs))


@dataclass(frozen=True, slots=True)
class Again:
    """Configurations to measure several times: a study of its own, ``name``, in the storage."""

    name: str
    #: By a number of their own; see ``Repeats``.
    members: Sequence[tuple[int, EngineConfig]]
    repeats: int
    workload: Workload
    #: Kind of engine.
    kind: str
    #: Below the study's folder.
    folder: str
    #: Argument -> "hot" where a live engine is to be changed; none: every run starts cold.
    warmth: Mapping[str, str] = field(default_factory=dict)
    #: What must not change when it is resumed, besides the study's own definition.
    definition: Mapping[str, Json] = field(default_factory=dict)


def measure_again(spec: StudySpec, around: Surroundings, again: Again) -> str:
    """Measure in interleaved rounds (ABBA); return why it ended. What is stored is not repeated."""
    store = make_store(spec, around.folder, again.name, again.definition)
    strategy = Repeats(store, again.members, again.repeats)
    budget = Budget(trials=len(again.members) * again.repeats)
    with make_pool(spec, around, again.kind, again.warmth) as pool:
        parts = Parts(store, strategy, pool, refusing(None, again.workload), budget)
        return make_loop(spec, around, parts, again.workload, around.folder / again.folder).run()
