"""Parallel coordinates: one line per trial through its knobs to its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.config import Json
from tuner.objectives import Objective
from tuner.records import TrialRecord
from tuner.report_figures import Figure, Shown, Trace, hover, layout, names_of
from tuner.report_text import quantity, settings_text, title, value_text

_MOST_LINES = 300


@dataclass(frozen=True, slots=True)
class _Column:
    """One upright of the parallel coordinates: where a record lies on it, and its ticks."""

    name: str
    place: Callable[[TrialRecord], float | None]
    bottom: str
    top: str


def parallel_figure(shown: Shown) -> Figure | None:
    """One line per measured trial, members on top; None with fewer than two knobs that vary."""
    records = [r for r in shown.measured if r.point][-_MOST_LINES:]
    knobs = sorted({name for r in records for name in r.point})
    columns = [c for name in knobs if (c := _knob_column(name, records)) is not None]
    if len(columns) < 2 or len(records) < 3:
        return None
    columns += [_score_column(i, o, records) for i, o in enumerate(shown.objectives)]
    members = {record.number for record in shown.front}
    ordered = sorted(records, key=lambda r: r.number in members)
    traces = [_line(shown, record, columns, record.number in members) for record in ordered]
    return {"data": traces, "layout": _parallel_layout(columns)}


def _line(shown: Shown, record: TrialRecord, columns: Sequence[_Column], member: bool) -> Trace:
    text = hover(record, shown.objectives, names_of(record, shown.presets))
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(len(columns))),
        "y": [column.place(record) for column in columns],
        "line": {"color": "@front" if member else "@muted", "width": 2.5 if member else 1},
        "marker": {"size": 6 if member else 4},
        "opacity": 1.0 if member else 0.35,
        "hovertext": text,
        "hoverinfo": "text",
        "connectgaps": True,
        "showlegend": False,
    }


def _knob_column(name: str, records: Sequence[TrialRecord]) -> _Column | None:
    """Numbers by rank, so that 8, 16, ... 1024 spread evenly; other values in a fixed order."""
    values = {
        settings_text({name: r.point[name]}): r.point[name] for r in records if name in r.point
    }
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values.values())
    order = sorted(values.values()) if numeric else [values[key] for key in sorted(values)]
    if len(order) < 2:
        return None
    ranks = {settings_text({name: v}): i / (len(order) - 1) for i, v in enumerate(order)}

    def place(record: TrialRecord) -> float | None:
        if name not in record.point:
            return None
        return ranks[settings_text({name: record.point[name]})]

    return _Column(name, place, value_text(order[0]), value_text(order[-1]))


def _score_column(index: int, objective: Objective, records: Sequence[TrialRecord]) -> _Column:
    scores = [(record.scores or ())[index] for record in records]
    worst, best = (min(scores), max(scores)) if objective.maximize else (max(scores), min(scores))

    def place(record: TrialRecord) -> float | None:
        return ((record.scores or ())[index] - worst) / ((best - worst) or 1.0)

    texts = [quantity(value, objective.metric) for value in (worst, best)]
    return _Column(title(objective.metric), place, *texts)


def _parallel_layout(columns: Sequence[_Column]) -> dict[str, Json]:
    ends = [
        {
            "x": i,
            "y": place,
            "text": text[:24],
            "showarrow": False,
            "yshift": shift,
            "font": {"size": 11},
        }
        for i, column in enumerate(columns)
        for place, text, shift in ((0, column.bottom, -14), (1, column.top, 14))
    ]
    uprights = [
        {
            "type": "line",
            "x0": i,
            "x1": i,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "line": {"color": "@line", "width": 1},
        }
        for i in range(len(columns))
    ]
    names = [column.name.replace("_", " ").replace(" (", "<br>(") for column in columns]
    ticks = ["<br>".join(_broken(name)) for name in names]
    return layout(
        height=400,
        margin={"l": 48, "r": 48, "t": 40, "b": 76},
        xaxis={
            "tickvals": list(range(len(columns))),
            "ticktext": ticks,
            "showgrid": False,
            "zeroline": False,
            "tickangle": 0,
            "tickfont": {"size": 11},
        },
        yaxis={"visible": False, "range": [-0.08, 1.08]},
        annotations=ends,
        shapes=uprights,
        hovermode="closest",
        minwidth=90 * len(columns),
    )


def _broken(text: str, width: int = 14) -> list[str]:
    """Break a name at spaces and dots into short lines."""
    lines = [""]
    for word in text.replace(".", ". ").split(" "):
        joined = f"{lines[-1]} {word}".strip()
        if len(joined) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = joined
    return lines
