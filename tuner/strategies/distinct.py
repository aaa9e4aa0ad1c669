"""An Optuna sampler around another one that never proposes the same point twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuner.config import Json, canonical
from tuner.errors import Problem, SearchSpaceError
from tuner.knobs import Point, SearchSpace
from tuner.store import distribution, to_params, to_point

#: Draws from the inner sampler before a random unseen point is taken.
DRAWS = 16
#: Uniform draws among which an unseen point is sought in a space too large to list.
UNIFORM_DRAWS = 200
#: Largest space that is listed to find an unseen point.
LISTABLE = 20_000
#: How often a point whose run broke is tried again.
RETRIES = 1


class DistinctSampler(BaseSampler):
    """Draws whole points from ``inner`` until one is new and allowed.

    A sampler that has settled on its favourite draws it again and again, and parallel asks collapse
    onto one point (Optuna 5.0: 4 asks on 6 points gave 4 equal ones). Here a point that was tried,
    runs now, or breaks a rule is drawn anew; after ``DRAWS`` a random unseen one is taken.
    ``view`` is the study as the inner sampler is to see it: by default as it is. ``blocked`` points
    are tried last.
    """

    def __init__(
        self,
        inner: BaseSampler,
        space: SearchSpace,
        allowed: Callable[[Point], bool],
        seed: int,
        view: Callable[[Study], Study] = lambda study: study,
        blocked: Callable[[Point], bool] = lambda point: False,
    ) -> None:
        self._view = view
        self._blocked = blocked
        self._inner = inner
        self._space = space
        self._allowed = allowed
        self._random = np.random.default_rng(seed)
        self._distributions = {name: distribution(space, name) for name in space.names}
        self._listed = listed(space, allowed)
        self._texts: dict[int, str] = {}

    def exhausted(self, study: Study) -> bool:
        """Whether every allowed point has been tried. Never true for a space too large to list."""
        if self._listed is None:
            return False
        seen = tried(study, self._space, self._texts)
        return all(canonical(point) in seen for point in self._listed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every knob: this sampler always draws whole points."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw a point that is new and allowed. Raises SearchSpaceError where none is found."""
        seen = tried(study, self._space, self._texts)
        drawn: set[str] = set()
        viewed = self._view(study)
        for _ in range(DRAWS):
            point = self._draw(viewed, trial)
            key = canonical(point)
            if key not in seen and self._allowed(point) and not self._blocked(point):
                return to_params(self._space, point)
            if key in drawn and key in seen:
                break
            drawn.add(key)
        return to_params(self._space, self._unseen(seen))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Leave it to the inner sampler."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Pass on."""
        self._inner.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Pass on."""
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Pass on."""
        self._inner.reseed_rng()

    def _draw(self, study: Study, trial: FrozenTrial) -> dict[str, Json]:
        known = self._inner.infer_relative_search_space(study, trial)
        params = dict(self._inner.sample_relative(study, trial, known))
        point: dict[str, Json] = {}
        for knob in self._space.knobs:
            if not knob.active(point):
                continue
            single = self._distributions[knob.name]
            if knob.name not in params:
                params[knob.name] = (
                    _only(single)
                    if single.single()
                    else self._inner.sample_independent(study, trial, knob.name, single)
                )
            point |= to_point(self._space, {knob.name: params[knob.name]})
        return point

    def _unseen(self, seen: set[str]) -> dict[str, Json]:
        if self._listed is not None:
            left = [point for point in self._listed if canonical(point) not in seen]
        else:
            left = [p for p in self._uniform() if canonical(p) not in seen and self._allowed(p)]
        if not left:
            raise SearchSpaceError(Problem("", "rules", "no untried point keeps the rules"))
        left = [point for point in left if not self._blocked(point)] or left
        return left[int(self._random.integers(len(left)))]

    def _uniform(self) -> list[dict[str, Json]]:
        return uniform_points(self._space, UNIFORM_DRAWS, self._random)


def uniform_points(
    space: SearchSpace, n: int, random: np.random.Generator
) -> list[dict[str, Json]]:
    """Return ``n`` points drawn evenly over every knob's domain, rules and repeats aside."""
    uniform = optuna.samplers.RandomSampler(seed=int(random.integers(2**31)))
    study = optuna.create_study(sampler=uniform)
    distributions = {name: distribution(space, name) for name in space.names}
    draws = (study.ask(distributions).params for _ in range(n))
    return [space.normalised(to_point(space, params)) for params in draws]


def listed(space: SearchSpace, allowed: Callable[[Point], bool]) -> list[dict[str, Json]] | None:
    """Return every allowed point, None for a space that is too large or continuous."""
    bound = space.size_bound
    if bound is None or bound > LISTABLE:
        return None
    return [point for point in space.points() if allowed(point)]


def tried(study: Study, space: SearchSpace, known: dict[int, str] | None = None) -> set[str]:
    """Return the canonical text of every point that was tried, runs, or waits in the queue.

    A trial that failed for reasons of weather does not count: its point may come again, unless its
    retries broke too. ``known`` keeps the texts of finished trials, by number, from one call to the
    next.
    """
    known = {} if known is None else known
    points = set()
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.FAIL and not _given_up(trial):
            continue
        text = known.get(trial.number)
        if text is None:
            params = trial.params or trial.system_attrs.get("fixed_params", {})
            text = canonical(space.normalised(to_point(space, params)))
            if trial.state.is_finished():
                known[trial.number] = text
        points.add(text)
    return points


def _given_up(trial: FrozenTrial) -> bool:
    attrs = trial.user_attrs
    return attrs.get("outcome") == "faulted" and attrs.get("retries", 0) >= RETRIES


def _only(single: BaseDistribution) -> Any:
    if isinstance(single, optuna.distributions.CategoricalDistribution):
        return single.choices[0]
    return getattr(single, "low")  # noqa: B009 - int and float distributions both have it
