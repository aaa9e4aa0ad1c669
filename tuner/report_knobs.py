"""Which knobs matter, as bars per objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.objectives import Objective
from tuner.report_figures import Figure, layout
from tuner.report_text import short

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
