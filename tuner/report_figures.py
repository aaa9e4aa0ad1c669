"""The report's figures as plain data for plotly.js.

A colour "@front" becomes the page's CSS variable ``--front``, light or dark as the reader has it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner import pareto
from tuner.config import Json
from tuner.objectives import Objective
from tuner.presets import Interval, Preset, is_baseline
from tuner.records import TrialRecord
from tuner.report_text import axis, flat, quantity, title, unit, value_text

Figure = dict[str, Json]
Trace = dict[str, Json]

#: The picture leaves far-off trials out where they would make it so many times as large.
_FOCUS_FROM = 1.3


@dataclass(frozen=True, slots=True)
class Shown:
    """What the figures are about."""

    records: Sequence[TrialRecord]
    front: Sequence[TrialRecord]
    objectives: Sequence[Objective]
    presets: Sequence[Preset]

    @property
    def measured(self) -> list[TrialRecord]:
        """Trials with scores."""
        return [record for record in self.records if record.scores is not None]


def layout(**more: Json) -> dict[str, Json]:
    return {
        "height": 420,
        "margin": {"l": 64, "r": 16, "t": 12, "b": 52},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"align": "left", "namelength": 0},
        **more,
    }


def hover(record: TrialRecord, objectives: Sequence[Objective], names: str = "") -> str:
    """Return a trial's whole configuration as hover text."""
    head = f"<b>trial {record.number}{f': {names}' if names else ''}</b>"
    scores = [
        f"{title(o.metric)}: <b>{quantity(s, o.metric)}</b>"
        for o, s in zip(objectives, record.scores or (), strict=True)
    ]
    settings = flat(record.config.args) | {f"${k}": v for k, v in record.config.env.items()}
    lines = [f"{name} = {html.escape(value_text(v))[:60]}" for name, v in settings.items()]
    return "<br>".join([head, *scores, "", *(lines or ["vLLM's defaults"])])


def names_of(record: TrialRecord, presets: Sequence[Preset]) -> str:
    """Return a trial's preset names, or its label."""
    names = [preset.name for preset in presets if preset.trial == record.number]
    label = record.config.label.partition(":")[2].strip()
    return ", ".join([*([label] if label else []), *names])


def front_figure(shown: Shown) -> Figure:
    """Every measured trial by its first two objectives (or the trial number and the only one)."""
    members = {record.number for record in shown.front}
    plain = [r for r in shown.measured if r.number not in members and not is_baseline(r)]
    good, missed = [r for r in plain if r.feasible], [r for r in plain if not r.feasible]
    line = sorted(shown.front, key=lambda r: r.scores or ())
    traces = [
        _points(shown, good, "other trials", {"color": "@muted", "size": 7}),
        _points(shown, missed, "misses a constraint", {"color": "@muted", "symbol": "x-thin-open"}),
        _points(
            shown, line, "front", {"color": "@front", "size": 11}, line=len(shown.objectives) > 1
        ),
        _points(
            shown,
            [r for r in shown.measured if is_baseline(r)],
            "baselines",
            {"color": "@base", "size": 13, "symbol": "diamond"},
        ),
    ]
    return {"data": [t for t in traces if t["x"]], "layout": _front_layout(shown)}


def _points(
    shown: Shown, records: list[TrialRecord], name: str, marker: Json, line: bool = False
) -> Trace:
    named = [names_of(record, shown.presets) for record in records]
    # A baseline on the front has its name at its diamond.
    labels = ["" if line and is_baseline(r) else n for r, n in zip(records, named, strict=True)]
    trace: Trace = {
        "type": "scatter",
        "name": name,
        "mode": "lines+markers+text" if line else "markers+text",
        "marker": {"line": {"width": 1, "color": "@paper"}, **marker},
        "text": [label.replace(", ", "<br>") for label in labels],
        "textposition": _positions(shown, records, "bottom" if name == "baselines" else "top"),
        "textfont": {"size": 11},
        "hovertext": [
            hover(r, shown.objectives, label) for r, label in zip(records, named, strict=True)
        ],
        "hoverinfo": "text",
        "cliponaxis": False,
        **dict(zip("xy", _coordinates(shown, records), strict=True)),
    }
    if line:
        trace["line"] = {"color": "@front", "width": 2}
        for letter, objective in zip("xy", shown.objectives, strict=False):
            trace[f"error_{letter}"] = _errors(shown, records, objective)
    return trace


def _positions(shown: Shown, records: Sequence[TrialRecord], side: str) -> list[str]:
    """Where a point's name goes: towards the middle, so that the picture's edge does not cut it."""
    everywhere = _coordinates(shown, shown.measured)[0]
    low, width = min(everywhere, default=0.0), np.ptp(everywhere or [0.0]) or 1.0
    shares = [(x - low) / width for x in _coordinates(shown, records)[0]]
    words = ["right" if s < 0.15 else "left" if s > 0.85 else "center" for s in shares]
    return [f"{side} {word}" for word in words]


def _coordinates(shown: Shown, records: Sequence[TrialRecord]) -> tuple[list[float], list[float]]:
    scales = [unit(objective.metric).scale for objective in shown.objectives[:2]]
    rows = [
        [score * scale for score, scale in zip(r.scores or (), scales, strict=False)]
        for r in records
    ]
    if len(scales) == 1:
        return [float(r.number) for r in records], [row[0] for row in rows]
    return [row[0] for row in rows], [row[1] for row in rows]


def _errors(shown: Shown, records: Sequence[TrialRecord], objective: Objective) -> Json:
    """Error bars from the presets' intervals; None hides them where there are none."""
    by_trial = {p.trial: p.intervals.get(objective.metric) for p in shown.presets}
    pairs: list[Interval | None] = [by_trial.get(record.number) for record in records]
    if not any(pairs):
        return {"visible": False}
    index, scale = list(shown.objectives).index(objective), unit(objective.metric).scale
    scores = [(record.scores or ())[index] for record in records]
    return {
        "type": "data",
        "symmetric": False,
        "color": "@front",
        "array": [(p[1] - s) * scale if p else 0 for p, s in zip(pairs, scores, strict=True)],
        "arrayminus": [(s - p[0]) * scale if p else 0 for p, s in zip(pairs, scores, strict=True)],
    }


def _front_layout(shown: Shown) -> dict[str, Json]:
    corner = [objective.maximize for objective in shown.objectives[:2]]
    single = len(corner) == 1
    names = ["trial"] * single + [axis(objective.metric) for objective in shown.objectives[:2]]
    keys = [r for r in shown.measured if is_baseline(r)] + list(shown.front)
    columns = zip(_coordinates(shown, keys), _coordinates(shown, shown.measured), strict=True)
    axes = [_axis(name, *pair) for name, pair in zip(names, columns, strict=True)]
    across, up = (True, corner[0]) if single else corner
    arrow = {(True, True): "↗", (True, False): "↘", (False, True): "↖", (False, False): "↙"}
    note = {
        "xref": "paper",
        "yref": "paper",
        "x": 1 if across else 0,
        "y": 1 if up else 0,
        "text": f"better {('↑' if up else '↓') if single else arrow[across, up]}",
        "showarrow": False,
        "font": {"color": "@muted"},
    }
    return layout(xaxis=axes[0], yaxis=axes[1], annotations=[note], height=480)


def _axis(text: str, keys: Sequence[float], everything: Sequence[float]) -> dict[str, Json]:
    """An axis that shows the front and the baselines well; a double click shows everything."""
    out: dict[str, Json] = {"title": {"text": text}, "automargin": True, "tickformat": ",~r"}
    if not keys:
        return out
    low, high = min(keys), max(keys)
    # A front of nearly equal values is not blown up: what is within noise shall look so.
    margin = max(0.3 * (high - low), 0.1 * abs(high)) or 1.0
    reach = max(everything) - min(everything)
    if text != "trial" and reach > _FOCUS_FROM * (high - low + 2 * margin):
        out["range"] = [low - margin, high + margin]
    return out


def beyond(shown: Shown) -> int:
    """Return how many measured trials lie outside the picture of the front at first."""
    arranged = _front_layout(shown)
    outside = set()
    for name, values in zip("xy", _coordinates(shown, shown.measured), strict=True):
        if (frame := arranged[f"{name}axis"].get("range")) is not None:
            outside |= {i for i, v in enumerate(values) if not frame[0] <= v <= frame[1]}
    return len(outside)


def hypervolume_figure(shown: Shown) -> Figure:
    """How much of the final front's box was covered after each trial, over the engine's minutes."""
    shares = hypervolume_shares(shown)
    minutes, clock = [], 0.0
    for record in shown.records:
        clock += record.cost.total_s / 60
        minutes.append(clock)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "line": {"shape": "hv", "color": "@front", "width": 2},
                "marker": {"size": 5, "color": "@front"},
                "x": minutes,
                "y": [share * 100 for share in shares],
                "hovertext": [
                    f"after trial {r.number}: {share:.0%}"
                    for r, share in zip(shown.records, shares, strict=True)
                ],
                "hoverinfo": "text",
            }
        ],
        "layout": layout(
            height=320,
            xaxis={"title": {"text": "time spent on trials, minutes"}, "rangemode": "tozero"},
            yaxis={"title": {"text": "of the final front, %"}, "range": [0, 105]},
            showlegend=False,
        ),
    }


def hypervolume_shares(shown: Shown) -> list[float]:
    """Return after each trial the hypervolume so far as a share of the final one.

    The reference point lies as far beyond the final front's worst values as the front is wide (at
    least a tenth of the value): what is far from the front counts nothing.
    """
    maximize = [objective.maximize for objective in shown.objectives]
    feasible = [record for record in shown.records if record.feasible]
    if not feasible:
        return [0.0] * len(shown.records)
    losses = pareto.oriented([r.scores or () for r in feasible], maximize)
    ends = losses[pareto.non_dominated(losses)]
    low, high = ends.min(axis=0), ends.max(axis=0)
    reference = high + np.maximum(high - low, 0.1 * np.maximum(np.abs(high), 1e-9))
    final = pareto.hypervolume(losses, list(reference))
    shares, seen = [], 0
    for record in shown.records:
        seen += record.feasible
        shares.append(pareto.hypervolume(losses[:seen], list(reference)) / final if seen else 0.0)
    return shares


#: Part of a trial's cost -> its words and colour.
PHASES: dict[str, tuple[str, str]] = {
    "start_s": ("engine start", "@start"),
    "reconfigure_s": ("live reconfiguration", "@reconfigure"),
    "replay_s": ("replay", "@front"),
    "other_s": ("the rest", "@muted"),
}


def time_figure(shown: Shown) -> Figure:
    """Where each trial's seconds went."""
    numbers = [record.number for record in shown.records]
    traces = [
        {
            "type": "bar",
            "name": words,
            "x": numbers,
            "y": [getattr(record.cost, phase) for record in shown.records],
            "marker": {"color": colour},
            "hovertemplate": f"trial %{{x}}: {words} %{{y:.3~r}} s",
        }
        for phase, (words, colour) in PHASES.items()
        if any(getattr(record.cost, phase) for record in shown.records)
    ]
    arranged = layout(
        height=320,
        barmode="stack",
        showlegend=False,
        bargap=0.15,
        xaxis={"title": {"text": "trial"}},
        yaxis={"title": {"text": "seconds"}, "automargin": True},
    )
    return {"data": traces, "layout": arranged}
