"""What the installed vLLM says of a study before anything starts: prices, and what cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.calibration import Memory
from tuner.config import EngineConfig, Json, canonical
from tuner.errors import Problem, StudyError
from tuner.job import Workload
from tuner.knobs import ChoiceDomain, Knob
from tuner.presets import BASELINE, DEFAULT_BASELINE
from tuner.records import Infeasible
from tuner.strategies.plain import KnownGood
from tuner.study import StudySpec
from tuner.study_arguments import argument_problems
from tuner.surroundings import CACHE, environment
from tuner.tune import Check

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.engines.vllm_check import Checker, Verdict


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
    with Checker({**environment(spec, cache), **as_if}) as checker:
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


def simulated_baselines(spec: StudySpec) -> list[KnownGood]:
    """Return what a simulated study measures first: the simulated engine's defaults, its baselines.

    None where the budget is what it takes to try every point, and has no room for them.
    """
    from tuner.engines.simulated_costs import DEFAULTS

    named = [(f"{BASELINE} {b.name}", dict(b.arguments)) for b in spec.baselines]
    pairs = [(DEFAULT_BASELINE, {}), *named]
    trials, size = spec.budget.trials, spec.space.size_bound
    if trials is not None and size is not None and size <= trials < size + len(pairs):
        return []
    given = {**DEFAULTS, **spec.base.args}
    return [KnownGood(label, arguments, {**given, **arguments}) for label, arguments in pairs]


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


def at(warmth: Mapping[str, str], wanted: str) -> frozenset[str]:
    """Return the knobs whose change costs ``wanted``: "hot", "warm" or "cold"."""
    return frozenset(name for name, found in warmth.items() if found == wanted)


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


def predicting(
    spec: StudySpec, checker: Checker | None, warmth: Mapping[str, str]
) -> Memory | None:
    """Return the memory model of a search, None for a simulated engine."""
    hot = at(warmth, "hot")
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
