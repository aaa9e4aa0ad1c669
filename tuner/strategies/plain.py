"""Plain strategy: every proposal of the sampler as it comes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from tuner.config import EngineConfig, Json, canonical
from tuner.knobs import Point, SearchSpace
from tuner.records import Faulted, TrialRecord
from tuner.rules import broken
from tuner.store import Store, distribution, to_params, to_point
from tuner.strategies import Proposal
from tuner.strategies.distinct import RETRIES, DistinctSampler, tried


@dataclass(frozen=True, slots=True)
class KnownGood:
    """A configuration worth measuring first: a baseline, or what the user runs now.

    ``arguments`` are set on top of the study's fixed engine arguments, without the space's own;
    ``effective`` are the knobs' values that the engine then has, as far as known.
    """

    label: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    effective: Mapping[str, Json] = field(default_factory=dict)


def _tpe(seed: int, trials: int | None) -> BaseSampler:
    # Groups keep the multivariate model whole where a trial lacks a knob (``when``, baselines).
    # Two of three trials of a short study must be left to the model.
    startup = 10 if trials is None else max(4, min(10, trials // 3))
    return optuna.samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=startup
    )


#: Sampler name -> maker from (seed, trial budget).
SAMPLERS: dict[str, Callable[[int, int | None], BaseSampler]] = {
    "tpe": _tpe,
    "random": lambda seed, trials: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda seed, trials: optuna.samplers.QMCSampler(seed=seed, scramble=True),
    "gp": lambda seed, trials: optuna.samplers.GPSampler(seed=seed),
    "nsga2": lambda seed, trials: optuna.samplers.NSGAIISampler(seed=seed, population_size=16),
    # The inner sampler of a grid never gets to draw: see ``Plain.ask``.
    "grid": lambda seed, trials: optuna.samplers.RandomSampler(seed=seed),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A point that a strategy chose itself, and what its trial should remember of it."""

    point: Point
    attributes: dict[str, Json] = field(default_factory=dict)


class Plain:
    """Ask/tell on one Optuna study, kept in a ``Store``."""

    def __init__(
        self,
        store: Store,
        space: SearchSpace,
        base: EngineConfig,
        sampler: str = "tpe",
        seed: int = 0,
        trials: int | None = None,
    ) -> None:
        self._store = store
        self._study = store.study
        self._space = space
        self._base = base
        self._grid = sampler == "grid"
        # A resumed study must not draw its first points again.
        seed += len(store.study.get_trials(deepcopy=False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            inner = SAMPLERS[sampler](seed, trials)
        self._sampler = DistinctSampler(
            inner, space, self._allowed, seed, view=self._view, blocked=self._blocked
        )
        self._study.sampler = self._sampler

    def enqueue(self, known: KnownGood) -> None:
        """Queue a known-good configuration, to be measured before the sampler's own proposals.

        It teaches the sampler those knobs whose value lies in the space; the others are left out.
        """
        point = self._space.normalised(
            {n: v for n, v in known.effective.items() if n in self._space.names and self._in(n, v)}
        )
        self._study.enqueue_trial(
            to_params(self._space, point),
            {"label": known.label, "arguments": dict(known.arguments), "teaches": list(point)},
        )

    def ask(self, live: Collection[str] = ()) -> Proposal | None:
        """Return the next proposal: queued ones first, then the sampler's. None when exhausted."""
        if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            if self._sampler.exhausted(self._study):
                return None
            chosen = self._choose(live)
            if chosen is not None:
                self._study.enqueue_trial(to_params(self._space, chosen.point), chosen.attributes)
        trial = self._study.ask()
        attrs = trial.user_attrs
        point = self._suggest(trial, attrs.get("teaches"))
        arguments = attrs.get("arguments", self._space.arguments(point))
        config = replace(self._base.with_args(arguments), label=attrs.get("label", ""))
        self._store.begin(trial.number, config)
        return Proposal(trial.number, point, config)

    def _choose(self, live: Collection[str]) -> Choice | None:
        """Return what to try next, None to leave it to the sampler."""
        return self._next_of_grid() if self._grid else None

    def tell(self, record: TrialRecord) -> None:
        """Store the outcome; queue a broken run again, ``RETRIES`` times."""
        self._store.finish(record)
        if isinstance(record.outcome, Faulted):
            self._retry(record.number)

    def _view(self, study: optuna.Study) -> optuna.Study:
        """Return the study as the sampler's model should see it."""
        return study

    def _blocked(self, point: Point) -> bool:
        """Whether a point is only to be tried when nothing else is left."""
        return False

    def _retry(self, number: int) -> None:
        attrs = self._study.trials[number].user_attrs
        if attrs.get("retries", 0) < RETRIES:
            self._store.enqueue_again(number, {"retries": attrs.get("retries", 0) + 1})

    def _suggest(self, trial: optuna.Trial, only: Collection[str] | None) -> dict[str, Json]:
        point: dict[str, Json] = {}
        for knob in self._space.knobs:
            if (only is None or knob.name in only) and knob.active(point):
                value = trial._suggest(knob.name, distribution(self._space, knob.name))
                point |= to_point(self._space, {knob.name: value})
        return point

    def _allowed(self, point: Mapping[str, Json]) -> bool:
        return not broken(self._space.rules, self._space.arguments(point))

    def _in(self, name: str, value: Json) -> bool:
        return self._space[name].domain.contains(value)

    def _next_of_grid(self) -> Choice:
        seen = tried(self._study, self._space)
        left = (p for p in self._space.points() if canonical(p) not in seen and self._allowed(p))
        return Choice(next(left))
