"""Importances: what the objectives depend on stands first, and few trials say nothing."""

from __future__ import annotations

import random

import optuna

from tuner.objectives import Objective
from tuner.store import Store
from tuner.store_importances import ENOUGH, importances

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))


def searched(trials: int) -> Store:
    """Throughput depends on ``strong``, latency on ``other``; nothing on ``idle``."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    draw = random.Random(1)
    span = optuna.distributions.FloatDistribution(0.0, 1.0)
    study.add_trial(optuna.trial.create_trial(values=[5.0, 5.0]))
    for _ in range(trials):
        params = {name: draw.random() for name in ("strong", "other", "idle")}
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=dict.fromkeys(params, span),
                values=[10 * params["strong"], 10 * params["other"]],
            )
        )
    return Store(study, OBJECTIVES, ())


def test_each_objective_names_the_knob_that_it_depends_on() -> None:
    found = importances(searched(40))
    assert next(iter(found[OBJECTIVES[0].metric])) == "strong"
    assert next(iter(found[OBJECTIVES[1].metric])) == "other"
    assert found[OBJECTIVES[0].metric]["strong"] > 3 * found[OBJECTIVES[0].metric]["idle"]


def test_few_trials_and_trials_without_knobs_say_nothing() -> None:
    assert importances(searched(ENOUGH - 1)) == {}
    assert importances(searched(0)) == {}
