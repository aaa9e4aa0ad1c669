"""The search's single measurements held against the repeats of the confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.confirm import Confirmed
from tuner.objectives import Objective
from tuner.presets import Preset
from tuner.records import TrialRecord
from tuner.report_figures import names_of
from tuner.report_text import change, half_width, quantity, short

#: A search score this far from the mean of the repeats, and outside of their interval, is named.
_FAR = 0.05


@dataclass(frozen=True, slots=True)
class Agreed:
    """One objective of one configuration: in the search, measured again, and again / search."""

    searched: str
    again: str
    change: str
    far: bool


@dataclass(frozen=True, slots=True)
class Agreement:
    """One configuration, as the search and as its repeats saw it."""

    trial: int
    name: str
    repeats: int
    #: Chance to be on the front, by bootstrap over the repeats.
    on_front: str
    live: bool
    scores: tuple[Agreed, ...]


def agreements(
    confirmed: Sequence[Confirmed],
    records: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    presets: Sequence[Preset],
) -> list[Agreement]:
    """Return one row per configuration that was measured again, in the order of trials."""
    by_trial = {record.number: record for record in records}
    rows = []
    for one in sorted(confirmed, key=lambda c: c.trial):
        record = by_trial.get(one.trial)
        if record is not None and record.scores is not None:
            rows.append(
                Agreement(
                    one.trial,
                    names_of(record, presets),
                    len(one.scores),
                    f"{one.front_probability * 100:.0f} %",
                    record.cost.reconfigure_s > 0,
                    tuple(_agreed(one, record.scores, i, o) for i, o in enumerate(objectives)),
                )
            )
    return rows


def _agreed(one: Confirmed, searched: Sequence[float], at: int, objective: Objective) -> Agreed:
    metric, mean = objective.metric, float(one.scores[:, at].mean())
    interval = one.intervals[at] if one.intervals else None
    ratio = mean / searched[at] if searched[at] else 1.0
    outside = interval is None or not interval.low <= searched[at] <= interval.high
    spread = half_width((interval.low, interval.high), metric) if interval else ""
    return Agreed(
        quantity(searched[at], metric),
        f"{quantity(mean, metric)} {spread}".rstrip(),
        change(ratio),
        outside and abs(ratio - 1) > _FAR,
    )


def agreement_text(rows: Sequence[Agreement], objectives: Sequence[Objective]) -> str:
    """Say in one sentence whether the search can be trusted, and which trials cannot."""
    far = [
        f"trial {row.trial} in {short(o.metric)} ({agreed.change})"
        for row in rows
        for o, agreed in zip(objectives, row.scores, strict=True)
        if agreed.far
    ]
    if not far:
        return (
            f"No score of the search lies more than {_FAR * 100:g} % from its repeats and "
            "outside of their interval."
        )
    return f"Measured again, the score is another one for {', '.join(far)}."
