"""The report's figures as plain data for plotly.js.

A colour "@front" becomes the page's CSS variable ``--front``, light or dark as the reader has it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.config import Json
from tuner.objectives import Objective
from tuner.presets import Interval, Preset, is_baseline
from tuner.records import TrialRecord
from tuner.report_text import axis, flat, half_width, quantity, title, unit, value_text

Figure = dict[str, Json]
Trace = dict[str, Json]

#: The picture leaves far-off trials out where they would make it so many times as large.
_FOCUS_FROM = 1.3


_OTHERS = {True: "other trials, measured once", False: "other trials"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What the figures are about."""

    records: Sequence[TrialRecord]
    front: Sequence[TrialRecord]
    objectives: Sequence[Objective]
    presets: Sequence[Preset]
    #: Bounds of confirmed means, by trial and metric.
    intervals: Mapping[int, Mapping[str, Interval]] = field(default_factory=dict)
    #: Trials and metrics in which repeats show no difference to the default.
    unproven: frozenset[tuple[int, str]] = frozenset()

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


def hover(
    record: TrialRecord,
    objectives: Sequence[Objective],
    names: str = "",
    bounds: Mapping[str, Interval] | None = None,
) -> str:
    """Return a trial's whole configuration as hover text, with the bounds of confirmed means."""
    head = f"<b>trial {record.number}{f': {names}' if names else ''}</b>"
    spread = {metric: half_width(pair, metric) for metric, pair in (bounds or {}).items()}
    scores = [
        f"{title(o.metric)}: <b>{quantity(s, o.metric)}</b> {spread.get(o.metric, '')}".rstrip()
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
    beaten = [r for r in plain if r.number in shown.intervals]
    single = [r for r in plain if r.number not in shown.intervals]
    good, missed = [r for r in single if r.feasible], [r for r in single if not r.feasible]
    line = sorted(shown.front, key=lambda r: r.scores or ())
    traces = [
        _points(shown, good, _OTHERS[bool(shown.intervals)], {"color": "@muted", "size": 7}),
        _points(shown, beaten, "confirmed, not on the front", {"color": "@soft", "size": 9}),
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
            hover(r, shown.objectives, label, shown.intervals.get(r.number))
            for r, label in zip(records, named, strict=True)
        ],
        "hoverinfo": "text",
        "cliponaxis": False,
        **dict(zip("xy", _coordinates(shown, records), strict=True)),
    }
    if line:
        trace["line"] = {"color": "@front", "width": 2}
    letters = "xy" if len(shown.objectives) > 1 else "y"
    for letter, objective in zip(letters, shown.objectives, strict=False):
        trace[f"error_{letter}"] = _errors(shown, records, objective, marker["color"])
    return trace


def _positions(shown: Shown, records: Sequence[TrialRecord], side: str) -> list[str]:
    """Where a point's name goes: towards the middle, so that the picture's edge does not cut it."""
    everywhere = _coordinates(shown, shown.measured)[0]
    low, width = min(everywhere, default=0.0), np.ptp(everywhere or [0.0]) or 1.0
    shares = [(x - low) / width for x in _coordinates(shown, records)[0]]
    # Error bars go through a point's middle: names stand beside them.
    near, far = (0.5, 0.5) if shown.intervals else (0.15, 0.85)
    words = ["right" if s < near else "left" if s > far else "center" for s in shares]
    other = {"top": "bottom", "bottom": "top"}[side]
    # Neighbours on the front are often close: every other name goes to the other side.
    sides = [other if side == "top" and at % 2 else side for at in range(len(words))]
    return [f"{s} {word}" for s, word in zip(sides, words, strict=True)]


def _coordinates(shown: Shown, records: Sequence[TrialRecord]) -> tuple[list[float], list[float]]:
    scales = [unit(objective.metric).scale for objective in shown.objectives[:2]]
    rows = [
        [score * scale for score, scale in zip(r.scores or (), scales, strict=False)]
        for r in records
    ]
    if len(scales) == 1:
        return [float(r.number) for r in records], [row[0] for row in rows]
    return [row[0] for row in rows], [row[1] for row in rows]


def _errors(
    shown: Shown, records: Sequence[TrialRecord], objective: Objective, colour: str
) -> Json:
    """Error bars from confirmed intervals; hidden where there are none."""
    pairs = [shown.intervals.get(r.number, {}).get(objective.metric) for r in records]
    if not any(pairs):
        return {"visible": False}
    index, scale = list(shown.objectives).index(objective), unit(objective.metric).scale
    scores = [(record.scores or ())[index] for record in records]
    return {
        "type": "data",
        "symmetric": False,
        "color": colour,
        "thickness": 1.5,
        "width": 5,
        "array": [(p[1] - s) * scale if p else 0 for p, s in zip(pairs, scores, strict=True)],
        "arrayminus": [(s - p[0]) * scale if p else 0 for p, s in zip(pairs, scores, strict=True)],
    }


def _front_layout(shown: Shown) -> dict[str, Json]:
    corner = [objective.maximize for objective in shown.objectives[:2]]
    single = len(corner) == 1
    names = ["trial"] * single + [axis(objective.metric) for objective in shown.objectives[:2]]
    keys = [r for r in shown.measured if is_baseline(r)] + list(shown.front)
    columns = zip(_coordinates(shown, keys), _coordinates(shown, shown.measured), strict=True)
    metrics = [""] * single + [objective.metric for objective in shown.objectives[:2]]
    axes = [
        _axis(name, [*near, *(bars := _reaches(shown, metric))], everything, bool(bars))
        for name, metric, (near, everything) in zip(names, metrics, columns, strict=True)
    ]
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


def _reaches(shown: Shown, metric: str) -> list[float]:
    """Return where error bars end, at most half the mean away: a wild one is cut by the picture."""
    scale, out = unit(metric).scale, []
    for bounds in shown.intervals.values():
        if metric in bounds:
            low, high = bounds[metric]
            half = min((high - low) / 2, abs(high + low) / 4)
            out += [((low + high) / 2 + side * half) * scale for side in (-1, 1)]
    return out


def _axis(
    text: str, keys: Sequence[float], everything: Sequence[float], barred: bool = False
) -> dict[str, Json]:
    """An axis that shows the front and the baselines well; a double click shows everything.

    ``barred``: the keys hold the ends of error bars, to which the picture is cut.
    """
    out: dict[str, Json] = {"title": {"text": text}, "automargin": True, "tickformat": ",~r"}
    if not keys:
        return out
    low, high = min(keys), max(keys)
    # A front of nearly equal values is not blown up: what is within noise shall look so.
    margin = max(0.3 * (high - low), 0.1 * abs(high)) or 1.0
    if barred:
        margin /= 4
    reach = max(everything) - min(everything)
    if barred or (text != "trial" and reach > _FOCUS_FROM * (high - low + 2 * margin)):
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
