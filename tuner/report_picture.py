"""Pictures for slides and for the dashboard, as PNG or SVG: the front, latencies of one trial."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuner.presets import is_baseline
from tuner.records import TrialRecord
from tuner.report_figures import Shown, names_of
from tuner.report_latency import LATENCIES, Sampled
from tuner.report_text import axis, unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FRONT, _BASE, _MUTED = "#1d5fd1", "#c2570c", "#8a94a1"
#: Kinds of points: label, colour, marker, size, whether a line joins them.
_KINDS = {
    "other": ("other trials", _MUTED, "o", 4, False),
    "beaten": ("confirmed, not on the front", "#55616f", "o", 6, False),
    "front": ("front", _FRONT, "o", 8, True),
    "baseline": ("baselines", _BASE, "D", 8, False),
}


def front_picture(shown: Shown, headline: str, path: Path) -> Path:
    """Write the front over its first two objectives; the format is that of the file's name.

    A single objective is drawn over the trials' numbers. Raises OSError where the file cannot be.
    """
    from matplotlib.figure import Figure as Picture

    figure: Figure = Picture(figsize=(10, 6.2), dpi=160, layout="constrained")
    axes = figure.subplots()
    for kind, records in _grouped(shown).items():
        if records:
            _draw(axes, shown, kind, records)
    names = [axis(objective.metric) for objective in shown.objectives[:2]]
    across, up = names if len(names) > 1 else ["trial", names[0]]
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(headline, parse_math=False, wrap=True, fontsize=12, loc="left")
    axes.grid(color="#e3e7ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if shown.measured:
        axes.legend(frameon=False, loc="best")
    figure.savefig(path)
    return path


def _grouped(shown: Shown) -> dict[str, list[TrialRecord]]:
    members = {record.number for record in shown.front}
    out: dict[str, list[TrialRecord]] = {kind: [] for kind in _KINDS}
    for record in shown.measured:
        if is_baseline(record):
            out["baseline"].append(record)
        if record.number in members:
            out["front"].append(record)
        elif not is_baseline(record):
            out["beaten" if record.number in shown.intervals else "other"].append(record)
    out["front"].sort(key=lambda record: record.scores or ())
    return out


def _draw(axes: Axes, shown: Shown, kind: str, records: Sequence[TrialRecord]) -> None:
    label, colour, marker, size, joined = _KINDS[kind]
    points = np.array([_point(shown, record) for record in records])
    errors = [[_error(shown, record, i) for record in records] for i in range(2)]
    across, up = (np.array(pairs).T if np.any(pairs) else None for pairs in errors)
    axes.errorbar(
        points[:, 0], points[:, 1], xerr=across, yerr=up, label=label, color=colour, marker=marker,
        markersize=size, linestyle="-" if joined and len(shown.objectives) > 1 else "none",
        linewidth=1.6, elinewidth=1.2, capsize=3,
    )  # fmt: skip
    for record, (x, y) in zip(records, points, strict=True):
        name = names_of(record, shown.presets)
        if name and (kind == "baseline") == is_baseline(record):
            axes.annotate(
                name, (x, y), xytext=(7, 7), textcoords="offset points", fontsize=9,
                parse_math=False,
            )  # fmt: skip


def _point(shown: Shown, record: TrialRecord) -> tuple[float, float]:
    scaled = [
        score * unit(objective.metric).scale
        for score, objective in zip(record.scores or (), shown.objectives[:2], strict=False)
    ]
    return (scaled[0], scaled[1]) if len(scaled) > 1 else (float(record.number), scaled[0])


def _error(shown: Shown, record: TrialRecord, column: int) -> tuple[float, float]:
    """Return how far the interval reaches below and above the mean; 0, 0 for none."""
    at = column if len(shown.objectives) > 1 else column - 1
    if at < 0:
        return 0.0, 0.0
    metric = shown.objectives[at].metric
    bounds, scale = shown.intervals.get(record.number, {}).get(metric), unit(metric).scale
    score = (record.scores or ())[at]
    return ((score - bounds[0]) * scale, (bounds[1] - score) * scale) if bounds else (0.0, 0.0)


def latency_picture(sample: Sampled, path: Path) -> Path:
    """Write the cumulative distributions of one trial's latencies as a PNG."""
    from matplotlib.figure import Figure as Picture

    figure: Figure = Picture(figsize=(10, 3.2), dpi=100)
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.17, top=0.82, wspace=0.2)
    figure.suptitle(f"{sample.name}: {sample.measure}", parse_math=False, fontsize=11)
    for axes, (which, words) in zip(figure.subplots(1, 3), LATENCIES.items(), strict=True):
        values = np.sort(sample.values[which]) * 1e3
        axes.set(title=words, xlabel="ms", ylabel="%", ylim=(0, 101))
        axes.grid(color="#e3e7ec", linewidth=0.8)
        if len(values):
            thin = np.unique(np.linspace(0, len(values) - 1, 400).astype(int))
            axes.plot(values[thin], (thin + 1) / len(values) * 100, color=_FRONT)
            if values[0] > 0:
                axes.set_xscale("log")
    figure.savefig(path, format="png")
    return path
