"""Ride along: after each full proposal, a few hot variants while its engine is live."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from tuner.store import Store
from tuner.strategies import Proposal, Search
from tuner.strategies.plain import Choice
from tuner.strategies.riding import Riding

#: Hot variants per full proposal.
RIDES = 2


class RideAlong(Riding):
    """The sampler chooses whole configurations; ``RIDES`` variants of their hot knobs follow each.

    Variants are chosen by a model of all trials, on the live key. The sampler does not see them:
    many variants of one key would teach it that this key is the world, and it would never leave.
    """

    def __init__(self, store: Store, search: Search, rides: int = RIDES) -> None:
        self._most = rides
        self._rides: dict[str, int] = {}
        super().__init__(store, search)

    def _remember(self, proposal: Proposal) -> None:
        super()._remember(proposal)
        key = proposal.config.cold_key(self._search.hot)
        trial = self._study.get_trials(deepcopy=False)[proposal.number]
        self._rides[key] = self._rides.get(key, 0) + 1 if "rides" in trial.user_attrs else 0

    def _choose(self, live: Collection[str]) -> Choice | None:
        if self._search.all_hot:  # the sampler's own proposals are all variants of one key
            return super()._choose(live)
        for key, origin in self._origins_of(live).items():
            if self._rides[key] < self._most:
                riders = self._riders(origin, self._good(), self._seen())
                if riders:
                    return self._ride(origin, self._best(riders))
        return super()._choose(live)

    def _view(self, study: Study) -> Study:
        return _WithoutRiders.of(study)


class _WithoutRiders(Study):
    """A study in which the trials that rode along do not show. Writes go to the real one."""

    @classmethod
    def of(cls, study: Study) -> Study:
        view = cls.__new__(cls)
        view.__dict__.update(study.__dict__)
        return view

    def _get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        trials = super()._get_trials(*args, **options)
        return [trial for trial in trials if "rides" not in trial.user_attrs]
