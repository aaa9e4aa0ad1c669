"""Repeats: given configurations, each measured several times, interleaved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import optuna
from optuna.trial import TrialState

from tuner.config import EngineConfig
from tuner.records import TrialRecord
from tuner.store import Store
from tuner.strategies import Proposal

#: How often one repeat may break before its member is left with fewer.
ATTEMPTS = 2
#: Largest number of a member or repeat.
MOST = 1_000_000
_SETTLED = {TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING}


class Repeats:
    """Asks round after round for every member once; the order turns with each round (ABBA).

    So a drift of the machine falls on all members alike. Members are known by a number of their
    own (the trial that they come from). What was measured before a restart is not measured again.
    """

    def __init__(self, store: Store, members: Sequence[tuple[int, EngineConfig]], n: int) -> None:
        self._store = store
        self._study = store.study
        self._study.sampler = optuna.samplers.RandomSampler(seed=0)
        self._members = dict(members)
        self._n = n

    def ask(self, live: Collection[str] = ()) -> Proposal | None:
        """Return the next member to measure, None when every one has its repeats."""
        if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            wanted = next(self._wanted(), None)
            if wanted is None:
                return None
            self._study.enqueue_trial(wanted)
        trial = self._study.ask()
        point = {name: trial.suggest_int(name, 0, MOST) for name in ("member", "repeat")}
        config = self._members[point["member"]]
        self._store.begin(trial.number, config)
        return Proposal(trial.number, point, config)

    def tell(self, record: TrialRecord) -> None:
        """Store the outcome."""
        self._store.finish(record)

    def _wanted(self) -> Iterator[dict[str, int]]:
        trials = self._study.get_trials(deepcopy=False)
        for repeat in range(self._n):
            order = list(self._members)
            for member in order if repeat % 2 == 0 else reversed(order):
                point = {"member": member, "repeat": repeat}
                states = [trial.state for trial in trials if trial.params == point]
                if not _SETTLED & set(states) and len(states) < ATTEMPTS:
                    yield point
