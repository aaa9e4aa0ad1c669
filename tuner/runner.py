"""A study from its file to its end: the parts are made here, and handed to the loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import machine
from tuner.calibration import Memory
from tuner.config import EngineConfig, Json, canonical
from tuner.demotion import ATTRIBUTE, cooled
from tuner.errors import Problem, StudyError
from tuner.events import Notice, Observer
from tuner.feasible import hopeless
from tuner.job import Workload
from tuner.knobs import ChoiceDomain, Knob
from tuner.knowledge import knowing
from tuner.pools import Pool
from tuner.presets import BASELINE, DEFAULT_BASELINE
from tuner.records import Infeasible
from tuner.store import Store, sqlite_url
from tuner.strategies import Search, Strategy
from tuner.strategies.plain import KnownGood, Plain
from tuner.strategies.table import STRATEGIES
from tuner.study import StudySpec
from tuner.study_arguments import argument_problems
from tuner.study_sections import Budget
from tuner.study_workload import workload_warnings
from tuner.target import elsewhere
from tuner.tune import Check, Loop, StopRequest
from tuner.validity import model_digest

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.engines.vllm_check import Checker, Verdict
    from tuner.pools.spec import HostSpec

#: Compile and kernel caches that outlive a study.
CACHE = Path.home() / ".cache" / "vllm-tuner"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What comes from outside of a study: where it writes, who watches, who may stop it."""

    folder: Path
    observers: Sequence[Observer] = ()
    stop: StopRequest = field(default_factory=StopRequest)
    cache: Path = CACHE

    def say(self, message: str) -> None:
        """Tell the observers one sentence."""
        for observer in self.observers:
            observer.on_event(Notice(message))


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
        known = [] if checker is None else known_good(spec, checker, workload)
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
        parts = Parts(store, strategy, pool, check, spec.budget, spec.early_end)
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
        on_gpus=on_gpus(spec),
        price=spec.price,
        observers=around.observers,
        stop=around.stop,
    )


@contextlib.contextmanager
def checking(
    spec: StudySpec, cache: Path = CACHE, device: Device | None = None
) -> Iterator[Checker | None]:
    """Give a checker of the installed vLLM, None for a simulated engine.

    ``device``: the GPU to stand in for, where it is not the machine at hand that is asked.
    Raises StudyError for engine arguments that the installed vLLM does not know.
    """
    if spec.engine.kind == "simulated":
        yield None
        return
    from tuner.engines.vllm_check import Checker
    from tuner.engines.vllm_device import stand_in_env

    as_if = {} if device is None else stand_in_env(device)
    with Checker({**_environment(spec, cache), **as_if}) as checker:
        known = checker.arguments()
        switches = {name for name, argument in known.items() if argument.kind == "bool"}
        problems = argument_problems(spec, known, switches)
        if problems:
            raise StudyError(problems, f"names are those of the installed vLLM {checker.version}")
        yield checker


def known_good(spec: StudySpec, checker: Checker, workload: Workload) -> list[KnownGood]:
    """Return the configurations to measure first, each different from those before it.

    vLLM's own defaults, its performance modes where the version has them, the study's baselines.
    Raises StudyError where the defaults can never run: then nothing of the study can be compared.
    """
    modes = [
        (f"{BASELINE} --performance-mode {mode}", {"performance_mode": mode})
        for mode in checker.performance_modes()
    ]
    named = [(f"{BASELINE} {b.name}", dict(b.arguments)) for b in spec.baselines]
    seen: set[str] = set()
    found: list[KnownGood] = []
    for label, arguments in [(DEFAULT_BASELINE, {}), *modes, *named]:
        verdict = checker.check(spec.base.with_args(arguments), spec.space.names)
        refused = _refusal(verdict, workload)
        if refused is not None and label == DEFAULT_BASELINE:
            what = (
                f"the study's own engine arguments cannot run: {refused.reason}: {refused.detail}"
            )
            raise StudyError(Problem("", "engine.args", what))
        effective = {k: v for k, v in verdict.effective.items() if k != "performance_mode"}
        if refused is None and canonical(effective) not in seen:
            seen.add(canonical(effective))
            found.append(KnownGood(label, arguments, verdict.effective))
    return found


def temperatures(spec: StudySpec, checker: Checker) -> dict[str, str]:
    """Return what a change of each knob costs on the installed vLLM: "hot", "warm" or "cold".

    Only the engine in our own process is changed live; with any other one no knob is hot.
    """
    values = {knob.name: ends(knob) for knob in spec.space.knobs}
    base = spec.base.with_args(spec.space.fixed)
    found = checker.temperatures(values, base)
    if spec.engine.kind != "vllm":
        return {name: "warm" if warmth == "hot" else warmth for name, warmth in found.items()}
    return found


def ends(knob: Knob) -> list[Json]:
    """Return values that stand for a knob's domain: all options, or both ends of a range."""
    domain = knob.domain
    return list(domain.options if isinstance(domain, ChoiceDomain) else (domain.low, domain.high))


def maxima(spec: StudySpec, hot: Collection[str]) -> dict[str, Json]:
    """Return the largest value of each hot knob; of what has no order, the first option."""
    found: dict[str, Json] = {}
    for name in hot:
        values = ends(spec.space[name])
        numbers = all(isinstance(value, int | float) for value in values)
        found[name] = max(values) if numbers else values[0]
    return found


def on_gpus(spec: StudySpec) -> bool:
    """Whether the study's engines run on GPUs: not with the CPU build of vLLM, nor simulated."""
    if spec.engine.kind == "simulated" or spec.engine.cpus is not None:
        return False
    return spec.ray.address is not None or bool(machine.gpus())


def predicting(
    spec: StudySpec, checker: Checker | None, warmth: Mapping[str, str]
) -> Memory | None:
    """Return the memory model of a search, None for a simulated engine."""
    hot = _with(warmth, "hot")
    return None if checker is None else Memory(checker.check, maxima(spec, hot))


def refusing(checker: Checker | None, workload: Workload, memory: Memory | None = None) -> Check:
    """Return the check that needs no engine; without a checker it refuses nothing.

    ``memory`` refuses what does not fit; without it nothing is said about that.
    """

    def check(config: EngineConfig) -> Infeasible | None:
        if checker is None:
            return None
        verdict = memory.ask(config) if memory else checker.check(config)
        refused = _refusal(verdict, workload)
        return refused or (memory.refusal(config, verdict) if memory else None)

    return check


def _refusal(verdict: Verdict, workload: Workload) -> Infeasible | None:
    if not verdict.ok:
        return Infeasible(verdict.reason, verdict.detail)
    limit, longest = verdict.effective.get("max_model_len"), workload.longest_tokens
    if isinstance(limit, int) and longest > limit:
        detail = f"the longest request needs {longest} tokens, max_model_len is {limit}"
        return Infeasible("model_too_long", detail)
    return None


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
    warm = _with(warmth, "warm")
    if spec.engine.kind == "simulated":  # its engines do not live on: what is hot saves compiling
        from tuner.engines.simulated_costs import WARM

        warm = WARM & frozenset(spec.space.names)
    section = spec.strategy
    return Search(
        spec.space,
        spec.base,
        hot=_with(warmth, "hot"),
        warm=warm,
        sampler=section.sampler,
        seed=section.seed,
        trials=spec.budget.trials,
    )


def _with(warmth: Mapping[str, str], wanted: str) -> frozenset[str]:
    return frozenset(name for name, found in warmth.items() if found == wanted)


def make_pool(
    spec: StudySpec,
    around: Surroundings,
    kind: str,
    warmth: Mapping[str, str],
    evaluate_by: str = "",
) -> contextlib.AbstractContextManager[Pool]:
    """Return what runs jobs on engines of ``kind``, live where ``warmth`` has hot arguments.

    ``evaluate_by``: what turns a job into an outcome on real engines, by import path, unwatched.
    """
    teller = _Teller(around.observers)
    if kind == "simulated":
        from tuner.engines.simulated import SimulatedLauncher
        from tuner.engines.simulated_costs import SimulatedCosts
        from tuner.evaluate import evaluate
        from tuner.pools.inline import InlinePool

        launcher = SimulatedLauncher(SimulatedCosts(**_options(spec, kind)))
        return InlinePool(launcher, evaluate, spec.ray.slots or 1, observer=teller)
    from tuner.pools.ray import RayPool
    from tuner.pools.slots import Capacity

    cores = None if on_gpus(spec) else int(spec.engine.cpus or len(os.sched_getaffinity(0)))
    host = host_spec(spec, kind, _with(warmth, "hot"), around.cache)
    if evaluate_by:
        host = replace(host, evaluate=evaluate_by, on_gpus=False)
    return RayPool(
        host,
        Capacity(spec.ray.gpus, spec.ray.slots, cores),
        spec.ray.address,
        observer=teller,
    )


def host_spec(spec: StudySpec, kind: str, hot: frozenset[str], cache: Path = CACHE) -> HostSpec:
    """Return what a process needs to know that runs engines of ``kind`` for the study."""
    from tuner.pools.spec import HostSpec

    return HostSpec(
        kind,
        _options(spec, kind),
        _environment(spec, cache),
        hot=hot,
        maxima=maxima(spec, hot),
        on_gpus=on_gpus(spec),
    )


def _options(spec: StudySpec, kind: str) -> dict[str, Json]:
    return dict(spec.engine.options) if kind == spec.engine.kind else {}


def _environment(spec: StudySpec, cache: Path) -> dict[str, str]:
    """Return the one environment of all engines of a study, and of what checks for them."""
    from tuner.engines.vllm import base_env

    device = "cuda" if on_gpus(spec) else "cpu"
    return {**base_env(cache, device=device, model=spec.base.model), **spec.base.env}


@dataclass(frozen=True, slots=True)
class _Teller:
    """Passes a pool's events on to all observers."""

    observers: Sequence[Observer]

    def on_event(self, event: object) -> None:
        for observer in self.observers:
            observer.on_event(event)  # type: ignore[arg-type]
