"""A study as a Ray Tune job: for platforms that run Tune; our own loop needs none of this.

    tuner = ray.tune.Tuner(
        tuner.as_trainable("study.yaml"),
        tune_config=ray.tune.TuneConfig(
            search_alg=tuner.as_searcher("study.yaml"), num_samples=40, reuse_actors=True
        ),
    )

A Tune trial is one measurement of one configuration. Its actor keeps an engine host, and the host
its engine: with ``reuse_actors=True`` the next trial of that actor changes the engine live where it
differs in hot arguments only, and starts another one in the same host where it does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch

from tuner.beforehand import checking, temperatures
from tuner.config import Json
from tuner.engines.simulated import SimulatedLauncher
from tuner.engines.simulated_costs import HOT, SimulatedCosts
from tuner.errors import EngineFault
from tuner.job import Job, Workload
from tuner.knobs import SearchSpace
from tuner.objectives import missing, scores
from tuner.pools.host_process import Limits
from tuner.pools.spec import HostSpec
from tuner.pools.worker import Place, SlotWorker
from tuner.records import Cost, Faulted, Infeasible, Measured, Outcome
from tuner.rules import broken
from tuner.runner_pool import host_spec
from tuner.store import distribution, to_point
from tuner.strategies.plain import SAMPLERS
from tuner.study import StudySpec, load_study
from tuner.surroundings import CACHE, on_gpus

_STOP_S = 10.0
_SECONDS = [one.name for one in fields(Cost) if one.name.endswith("_s")]


def simulated_launcher(**options: Json) -> SimulatedLauncher:
    """Return a launcher of simulated engines with these costs. For a host in another process."""
    return SimulatedLauncher(SimulatedCosts(**options))


def as_trainable(study: StudySpec | str | Path, cache: Path = CACHE) -> type[tune.Trainable]:
    """Return a ``ray.tune.Trainable`` class that measures configurations of the study.

    A trial's ``config`` is a point of the study's space: knob name -> value (of a structured choice
    its label), as ``as_searcher`` proposes it; a knob that is left out stays as vLLM has it. One
    step measures and ends the trial. The result holds every metric of the measurement, the trial's
    costs (``start_s``, ``reconfigure_s``, ...), and ``outcome``: "measured", or "infeasible" with
    ``reason``, ``detail`` and NaN for the objectives. A run that broke raises EngineFault, so that
    Tune's own ``FailureConfig`` decides about another try.

    Each trial asks for the GPUs of its configuration, or for the study's ``engine.cpus``. The
    folder of the study's cache (``cache``) and its model must be there on every node. Raises
    StudyError for a study that is wrong.
    """
    spec = _loaded(study)
    trial = _trial_class(_Measuring(spec, _host(spec, cache)))
    trainable: type[tune.Trainable] = tune.with_parameters(trial, workload=spec.workload())
    return trainable


def as_searcher(study: StudySpec | str | Path, **options: Any) -> OptunaSearch:
    """Return Optuna's search over the study's space and objectives, conditions included.

    Infeasible trials are told to Optuna as failed ones. ``options`` are those of Tune's
    ``OptunaSearch`` (``storage``, ``study_name``, ``points_to_evaluate``, ...).
    """
    spec = _loaded(study)
    options.setdefault(
        "sampler", SAMPLERS[spec.strategy.sampler](spec.strategy.seed, spec.budget.trials)
    )
    return StudySearch(
        _Proposing(spec.space),
        [objective.metric for objective in spec.objectives],
        ["max" if objective.maximize else "min" for objective in spec.objectives],
        **options,
    )


class StudySearch(OptunaSearch):  # type: ignore[misc]
    """Tune's Optuna search, which would leave trials without a result running for ever."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Json] | None = None, error: bool = False
    ) -> None:
        """Tell a trial that lacks an objective's value as failed."""
        lacks = result is not None and any(
            not math.isfinite(result.get(metric, math.nan)) for metric in self.metric
        )
        super().on_trial_complete(trial_id, None if lacks else result, error or lacks)


def _trial_class(measuring: _Measuring) -> type[tune.Trainable]:
    """Return the class of an actor. Made here, because Tune asks the class for its resources."""

    class VllmTrial(tune.Trainable):  # type: ignore[misc]
        """One configuration of a study, measured once."""

        @classmethod
        def default_resource_request(cls, config: dict[str, Json]) -> Any:
            """Ask for what the engine of this configuration needs."""
            return tune.PlacementGroupFactory([measuring.resources(config)])

        def setup(self, config: dict[str, Json], workload: Workload) -> None:
            """Make the worker; its engine host starts with the first step."""
            self._workload = workload
            self._numbers = itertools.count()
            self._worker = SlotWorker(measuring.host, _place(), Limits())

        def step(self) -> dict[str, Json]:
            """Measure. See ``as_trainable`` for the result."""
            number = next(self._numbers)
            directory = Path(self.logdir) / f"trial-{number}"
            job = measuring.job(number, self.config, self._workload, directory)
            if isinstance(job, Infeasible):
                return measuring.result(job, Cost())
            return measuring.result(*tried(self._worker.run, job))

        def reset_config(self, new_config: dict[str, Json]) -> bool:
            """Take another configuration: the host changes its engine live where that can be."""
            self.config = new_config
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Save nothing: Tune asks for it at a trial's end, and one step is all there is."""

        def load_checkpoint(self, checkpoint: Any) -> None:
            """Load nothing."""

        def cleanup(self) -> None:
            """End the engine and its host."""
            self._worker.stop(_STOP_S)

    return VllmTrial


def tried(run: Callable[[Job], tuple[Outcome, Cost]], job: Job) -> tuple[Outcome, Cost]:
    """Run a job, and once more where we measured badly: the engine lives on. Costs add up."""
    outcome, cost = run(job)
    if not (isinstance(outcome, Faulted) and outcome.engine_ok):
        return outcome, cost
    outcome, more = run(job)
    spent = {name: getattr(cost, name) + getattr(more, name) for name in _SECONDS}
    return outcome, replace(more, **spent)


def _loaded(study: StudySpec | str | Path) -> StudySpec:
    return study if isinstance(study, StudySpec) else load_study(study)


@dataclass(frozen=True, slots=True)
class _Proposing:
    """Proposes a point knob by knob; Tune pickles it with the searcher's state."""

    space: SearchSpace

    def __call__(self, trial: Any) -> dict[str, Json]:
        params: dict[str, Json] = {}
        for knob in self.space.knobs:
            if knob.active(to_point(self.space, params)):
                params[knob.name] = trial._suggest(knob.name, distribution(self.space, knob.name))
        return params


def _host(spec: StudySpec, cache: Path) -> HostSpec:
    kind, hot = spec.engine.kind, frozenset[str]()
    if kind == "simulated":
        hot = HOT & set(spec.space.names)
        host = host_spec(spec, kind, hot, cache)
        return HostSpec(
            f"{__name__}:{simulated_launcher.__name__}", host.options, hot=hot, maxima=host.maxima
        )
    with checking(spec, cache) as checker:
        if checker is not None and kind == "vllm":
            warmth = temperatures(spec, checker)
            hot = frozenset(name for name, found in warmth.items() if found == "hot")
    return host_spec(spec, kind, hot, cache)


def _known(spec: StudySpec, config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the knobs of a trial's configuration; Tune and its users may add other keys."""
    return {name: config[name] for name in spec.space.names if name in config}


def _place() -> Place:
    """Return a slot number that another actor of this node hardly has: it spreads the ports."""
    actor = ray.get_runtime_context().get_actor_id() or "0"
    return Place(int(actor[:8], 16) % 512)


@dataclass(frozen=True, slots=True)
class _Measuring:
    """How configurations of a study are measured."""

    spec: StudySpec
    host: HostSpec

    def resources(self, config: Mapping[str, Json]) -> dict[str, float]:
        """Return what Ray is asked for."""
        if not on_gpus(self.spec):
            return {"CPU": self.spec.engine.cpus or 1}
        point = to_point(self.spec.space, _known(self.spec, config))
        return {"CPU": 1, "GPU": self.spec.config(point).gpus}

    def job(
        self, number: int, config: Mapping[str, Json], workload: Workload, directory: Path
    ) -> Job | Infeasible:
        """Return what to run, or why there is no use in it."""
        spec = self.spec
        point = spec.space.normalised(to_point(spec.space, _known(spec, config)))
        rules = broken(spec.space.rules, spec.space.arguments(point))
        if rules:
            return Infeasible("breaks_rule", "; ".join(rules))
        made = spec.config(point)
        return Job(number, made, workload, str(directory), spec.engine.deadlines, spec.repeats)

    def result(self, outcome: Outcome, cost: Cost) -> dict[str, Json]:
        """Return what Tune is told. Raises EngineFault for a run that broke."""
        spent = {name: value for name, value in asdict(cost).items() if name.endswith("_s")}
        common = {"done": True, "outcome": type(outcome).__name__.lower(), **spent}
        match outcome:
            case Measured(measurement):
                if scores(measurement, self.spec.objectives) is None:
                    lacking = ", ".join(missing(measurement, self.spec.objectives))
                    raise EngineFault("no_result", f"no value for {lacking}")
                live = measurement.facts.get("live", {})
                violated = [
                    one.metric for one in self.spec.constraints if one.violation(measurement) > 0
                ]
                return {
                    **measurement.values,
                    **common,
                    "live": bool(live.get("reused")),
                    "violated": violated,
                }
            case Infeasible(reason, detail):
                nothing = {one.metric: math.nan for one in self.spec.objectives}
                return {**nothing, **common, "reason": reason, "detail": detail}
            case Faulted(reason, detail):
                raise EngineFault(reason, detail)
            case _:
                raise AssertionError("a single measurement is never cut short")
