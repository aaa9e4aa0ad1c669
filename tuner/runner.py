"""A study from its file to its end: the parts are made here, and handed to the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner import machine
from tuner.accuracy import changes_numbers
from tuner.beforehand import (
    at,
    checking,
    known_good,
    predicting,
    refusing,
    simulated_baselines,
    temperatures,
)
from tuner.config import EngineConfig, Json
from tuner.demotion import ATTRIBUTE, cooled
from tuner.feasible import hopeless
from tuner.job import Workload
from tuner.knowledge import knowing
from tuner.pools import Pool
from tuner.runner_pool import make_pool
from tuner.store import Store, sqlite_url
from tuner.strategies import Search, Strategy
from tuner.strategies.plain import KnownGood, Plain
from tuner.strategies.table import STRATEGIES
from tuner.study import StudySpec
from tuner.study_sections import Budget
from tuner.study_workload import workload_warnings
from tuner.surroundings import Surroundings, on_gpus
from tuner.target import elsewhere
from tuner.tune import Check, Loop, Noted, as_it_is
from tuner.validity import model_digest


def run_study(spec: StudySpec, around: Surroundings) -> str:
    """Run or resume a study; return why it ended. What it found is in its folder and storage.

    Raises StudyError for input that is wrong and StoreError for results of another study, both
    before any engine starts.
    """
    workload = spec.workload()
    for warning in filter(None, (*spec.warnings, *workload_warnings(workload), elsewhere(spec))):
        around.say(warning)
    with contextlib.ExitStack() as stack:
        checker = stack.enter_context(checking(spec, around.cache))
        known = known_good(spec, checker, workload) if checker else simulated_baselines(spec)
        warmth = {} if checker is None else temperatures(spec, checker)
        fits = predicting(spec, checker, warmth)
        hopeless(spec, refusing(checker, workload, fits))
        store = make_store(spec, around.folder, spec.name)
        (around.folder / "study.yaml").write_text(spec.resolved(), encoding="utf-8")
        warmth = cooled(warmth, store.study.user_attrs.get(ATTRIBUTE, {}), around.say)
        strategy = _strategy(spec, store, known, warmth)
        pool = stack.enter_context(make_pool(spec, around, spec.engine.kind, warmth))
        check = refusing(checker, workload, fits)
        if fits is not None:
            fits.keep_in(store)
            around = replace(around, observers=[*around.observers, fits])
        memory = knowing(spec, checker.version if checker else None, around.say)
        if memory is not None:
            around = replace(around, observers=[*around.observers, memory])
            check = memory.before(check)
        noted = as_it_is if fits is None else fits.noted
        parts = Parts(store, strategy, pool, check, spec.budget, spec.early_end, noted)
        return make_loop(spec, around, parts, workload, around.folder).run()


@dataclass(frozen=True, slots=True)
class Parts:
    """What differs between the search and what measures again."""

    store: Store
    strategy: Strategy
    pool: Pool
    check: Check
    budget: Budget
    #: Only a search may stop a trial: what is measured again is measured in full.
    early_end: bool = False
    noted: Noted = as_it_is


def make_loop(
    spec: StudySpec, around: Surroundings, parts: Parts, workload: Workload, folder: Path
) -> Loop:
    """Return the loop of these parts; what trials leave goes below ``folder``."""
    return Loop(
        parts.store.study.study_name,
        parts.store,
        parts.strategy,
        parts.pool,
        parts.check,
        workload,
        spec.engine.deadlines,
        parts.budget,
        folder,
        repeats=spec.repeats,
        early_end=parts.early_end,
        provisional=_provisional(spec),
        on_gpus=on_gpus(spec),
        price=spec.price,
        noted=parts.noted,
        observers=around.observers,
        stop=around.stop,
    )


def _provisional(spec: StudySpec) -> Callable[[EngineConfig], bool]:
    """Return what the accuracy guard may take off the front when the search has ended."""
    bounded = spec.accuracy.max_logprob_drift is not None
    return changes_numbers if bounded else lambda config: False


def make_store(
    spec: StudySpec, folder: Path, name: str, more: Mapping[str, Json] | None = None
) -> Store:
    """Open a study in the storage of ``spec``, ready to be resumed; ``more`` is part of its
    definition. Raises StoreError where it was defined otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    url = spec.storage or sqlite_url(folder)
    definition = {**spec.definition(), **(more or {})}
    store = Store.open(url, name, spec.objectives, spec.constraints, definition)
    here = {
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "model_digest": model_digest(spec.base.model),
    }
    store.study.set_user_attr("machine", here)
    store.reap()
    return store


def _strategy(
    spec: StudySpec, store: Store, known: Sequence[KnownGood], warmth: Mapping[str, str]
) -> Plain:
    search, size = searching(spec, warmth), spec.space.size_bound
    whole = search.trials is not None and size is not None and size <= search.trials
    search = replace(search, sampler="grid" if whole else search.sampler)
    new = not store.study.get_trials(deepcopy=False)
    strategy = STRATEGIES["plain" if whole else spec.strategy.name](store, search)
    for one in known if new else ():
        strategy.enqueue(one)
    return strategy


def searching(spec: StudySpec, warmth: Mapping[str, str]) -> Search:
    """Return what a study's strategy searches."""
    warm = at(warmth, "warm")
    if spec.engine.kind == "simulated":  # its engines do not live on: what is hot saves compiling
        from tuner.engines.simulated_costs import WARM

        warm = WARM & frozenset(spec.space.names)
    section = spec.strategy
    return Search(
        spec.space,
        spec.base,
        hot=at(warmth, "hot"),
        warm=warm,
        sampler=section.sampler,
        seed=section.seed,
        trials=spec.budget.trials,
    )
