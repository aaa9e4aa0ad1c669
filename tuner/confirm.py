"""Confirmation: the front against the baselines, each started as it is deployed, several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.config import EngineConfig
from tuner.intervals import (
    Interval,
    Verdict,
    front_probability,
    mean_interval,
    ratio_interval,
    surely_dominated,
    verdict,
)
from tuner.objectives import Objective
from tuner.presets import DEFAULT_BASELINE, is_baseline
from tuner.records import TrialRecord


def study_name(name: str) -> str:
    """Return the name, in the same storage, of the study that holds the repeats."""
    return f"{name}-confirm"


def finalists(
    front: Sequence[TrialRecord], baselines: Sequence[TrialRecord], members: int
) -> list[tuple[int, EngineConfig]]:
    """Return what to confirm, by trial number: baselines, then members spread over the front.

    Of a front with more than ``members`` both ends stay, and the rest is taken evenly between.
    """
    candidates = [record for record in front if not is_baseline(record)]
    if members == 0:
        return []
    picked = np.unique(np.linspace(0, len(candidates) - 1, members).round().astype(int))
    chosen = [candidates[i] for i in picked] if candidates else []
    return [(record.number, record.config) for record in [*baselines, *chosen]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A member against a baseline in one objective: ours / theirs."""

    baseline: int
    metric: str
    ratio: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What the repeats of one configuration say."""

    trial: int
    config: EngineConfig
    #: Shape (repeats, objectives), in order of repeat.
    scores: NDArray[np.float64]
    #: One per objective; empty below two repeats.
    intervals: tuple[Interval, ...]
    front_probability: float
    #: Whether another one is better in everything beyond both intervals.
    dominated: bool
    #: Mean of the repeats divided by the search's single measurement, per objective.
    ratio_to_search: tuple[float, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    @property
    def is_baseline(self) -> bool:
        """Whether others are held against this one."""
        return self.config.label.startswith("baseline:")


def confirmed(
    repeats: Sequence[TrialRecord],
    search: Sequence[TrialRecord],
    objectives: Sequence[Objective],
) -> list[Confirmed]:
    """Return what the repeats of each member say together; fewer than two say nothing.

    ``repeats`` are the records of the confirming study, whose points name member and repeat. Until
    vLLM's defaults have two, where they are among them, nothing is said: the confirmation may have
    another workload than the search, so that one's repeats and the other's search do not compare.
    """
    configs = {int(record.point["member"]): record.config for record in repeats}
    scores = _by_member(repeats)
    scores = {member: rows for member, rows in scores.items() if len(rows) > 1}
    waits = any(c.label == DEFAULT_BASELINE and m not in scores for m, c in configs.items())
    if not scores or waits:
        return []
    maximize = [objective.maximize for objective in objectives]
    intervals = {member: _intervals(rows) for member, rows in scores.items()}
    probability = front_probability(list(scores.values()), maximize)
    dominated = surely_dominated(list(intervals.values()), maximize)
    first = {record.number: record for record in search}
    return [
        Confirmed(
            member,
            configs[member],
            rows,
            intervals[member],
            float(probability[at]),
            bool(dominated[at]),
            _to_search(rows, first.get(member)),
            _comparisons(member, scores, configs, objectives),
        )
        for at, (member, rows) in enumerate(scores.items())
    ]


def _by_member(repeats: Sequence[TrialRecord]) -> dict[int, NDArray[np.float64]]:
    rows: dict[int, dict[int, tuple[float, ...]]] = {}
    for record in repeats:
        if record.scores is not None:
            member, repeat = int(record.point["member"]), int(record.point["repeat"])
            rows.setdefault(member, {})[repeat] = record.scores
    return {
        member: np.array([by_repeat[repeat] for repeat in sorted(by_repeat)])
        for member, by_repeat in rows.items()
    }


def _intervals(rows: NDArray[np.float64]) -> tuple[Interval, ...]:
    found = (mean_interval(column.tolist()) for column in rows.T)
    return tuple(interval for interval in found if interval is not None)


def _to_search(rows: NDArray[np.float64], found: TrialRecord | None) -> tuple[float, ...]:
    if found is None or found.scores is None or 0 in found.scores:
        return ()
    return tuple((rows.mean(axis=0) / np.array(found.scores)).tolist())


def _comparisons(
    member: int,
    scores: dict[int, NDArray[np.float64]],
    configs: dict[int, EngineConfig],
    objectives: Sequence[Objective],
) -> tuple[Comparison, ...]:
    found = []
    for other, config in configs.items():
        if other == member or other not in scores or not config.label.startswith("baseline:"):
            continue
        for column, objective in enumerate(objectives):
            ratio = ratio_interval(
                scores[member][:, column].tolist(), scores[other][:, column].tolist()
            )
            shown = verdict(ratio, objective.maximize)
            found.append(Comparison(other, objective.metric, ratio, shown))
    return tuple(found)
