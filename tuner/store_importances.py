"""Which knobs the objectives depend on most, as Optuna's PED-ANOVA sees it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState

from tuner.store import Store

#: Fewer measured trials say nothing about importance.
ENOUGH = 16
#: The best share of trials that is held against all of them.
_BEST = 0.25


def importances(store: Store) -> dict[str, dict[str, float]]:
    """Return knob -> share of importance, by objective metric, the most important first.

    Over measured trials that have values for the same knobs (most of them); {} below ``ENOUGH``.
    The shares say how the best quarter of the trials differs from all, knob by knob: a hint from
    few trials, not a proof.
    """
    trials = _alike(store.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if len(trials) < ENOUGH or len(trials[0].params) < 2:
        return {}
    directions = [objective.direction for objective in store.objectives]
    alike = optuna.create_study(directions=directions)
    alike.add_trials(trials)
    out = {}
    for column, objective in enumerate(store.objectives):
        sign = -1 if objective.maximize else 1

        def loss(trial: FrozenTrial, column: int = column, sign: int = sign) -> float:
            return float(sign * trial.values[column])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(
                alike,
                evaluator=optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST),
                target=loss,
            )
        out[objective.metric] = {name: round(float(share), 4) for name, share in found.items()}
    return out


def _alike(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the largest group of trials with the same knobs set."""
    groups: dict[frozenset[str], list[FrozenTrial]] = {}
    for trial in trials:
        if trial.params:
            groups.setdefault(frozenset(trial.params), []).append(trial)
    return max(groups.values(), key=len, default=[])
