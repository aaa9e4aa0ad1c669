"""Which knobs matter: importances over the search, and the winner with single knobs set back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.attribution import Attribution, Ratio
from tuner.objectives import Objective
from tuner.report_figures import Figure, layout
from tuner.report_text import change, short, value_text

_COLOURS = ("@front", "@base", "@start", "@reconfigure")
_MOST = 12


def importance_figure(
    shares: Mapping[str, Mapping[str, float]], objectives: Sequence[Objective]
) -> Figure | None:
    """Return bars of each knob's importance, one colour per objective; None without any."""
    if not shares:
        return None
    total: dict[str, float] = {}
    for of_one in shares.values():
        for name, share in of_one.items():
            total[name] = total.get(name, 0.0) + share
    names = sorted(total, key=lambda name: total[name])[-_MOST:]
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": short(objective.metric),
            "y": names,
            "x": [shares.get(objective.metric, {}).get(name, 0.0) * 100 for name in names],
            "marker": {"color": _COLOURS[at % len(_COLOURS)]},
            "hovertemplate": "%{y}: %{x:.3~r} %<extra></extra>",
        }
        for at, objective in enumerate(objectives)
    ]
    arranged = layout(
        height=110 + 34 * len(names),
        barmode="group",
        bargap=0.3,
        margin={"l": 16, "r": 16, "t": 12, "b": 52},
        xaxis={"title": {"text": "share of importance, %"}, "rangemode": "tozero"},
        yaxis={"automargin": True, "showgrid": False},
    )
    return {"data": bars, "layout": arranged}


@dataclass(frozen=True, slots=True)
class SetBack:
    """A knob of the winner set back to vLLM's default: what became of each objective."""

    knob: str
    value: str
    default: str
    #: Per objective: the change of the score, and its interval or ''.
    scores: tuple[tuple[str, str], ...]
    standing: str


def set_back(found: Attribution | None, objectives: Sequence[Objective]) -> list[SetBack]:
    """Return one row per knob, the most harmful to lose first; none where it was not measured."""
    if found is None:
        return []
    return [
        SetBack(
            effect.changed.knob,
            value_text(effect.changed.value),
            value_text(effect.changed.default),
            tuple(_ratio(effect.ratios.get(o.metric)) for o in objectives),
            f"{effect.standing}: {effect.why}" if effect.why else effect.standing,
        )
        for effect in found.effects
    ]


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return "–", ""
    if ratio.low is None or ratio.high is None:
        return change(ratio.value), ""
    return change(ratio.value), f"{change(ratio.low)} to {change(ratio.high)}"


def set_back_text(found: Attribution | None) -> str:
    """Say in one sentence which knobs the gain comes from, and which may go."""
    if found is None:
        return ""
    parts = [f"The gain of {found.preset} comes from {_listed(found.matters)}."]
    if not found.matters:
        parts = [f"No single knob of {found.preset} was shown to matter by itself."]
    if found.may_go:
        parts.append(
            f"{_listed(found.may_go)} may go: `tuner export --minimal` leaves out what may."
        )
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
