"""How a study's time went: the slots' timeline, shares by phase, and the front over the hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner import pareto
from tuner.records import TrialRecord
from tuner.report_figures import Figure, Shown, Trace, layout
from tuner.report_text import seconds

#: Part of a trial's cost -> its words and colour.
PHASES: dict[str, tuple[str, str]] = {
    "start_s": ("engine start", "@start"),
    "reconfigure_s": ("live reconfiguration", "@reconfigure"),
    "replay_s": ("replay", "@front"),
    "other_s": ("warm-up, stop and the rest", "@muted"),
}


def time_split(records: Sequence[TrialRecord]) -> list[tuple[str, str, float, str]]:
    """Return each phase's words, total duration, share of all trials' time, and colour."""
    total = sum(record.cost.total_s for record in records) or 1.0
    spent = {phase: sum(getattr(r.cost, phase) for r in records) for phase in PHASES}
    return [
        (PHASES[p][0], seconds(s), s / total, PHASES[p][1].lstrip("@"))
        for p, s in spent.items()
        if s > 0
    ]


def hypervolume_figure(shown: Shown) -> Figure:
    """How much of the final front was found after each trial, over the GPU hours that it took.

    Without GPUs it is over the time of all trials.
    """
    shares = hypervolume_shares(shown)
    on_gpus = any(record.cost.gpus for record in shown.records)
    costs = [r.cost.gpu_s if on_gpus else r.cost.total_s for r in shown.records]
    long = sum(costs) >= 2 * 3600 or on_gpus
    unit_name = "GPU hours" if on_gpus else "hours" if long else "minutes"
    clock = np.cumsum(np.array(costs) / (3600 if long else 60)).tolist()
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "line": {"shape": "hv", "color": "@front", "width": 2},
                "marker": {"size": 5, "color": "@front"},
                "x": clock,
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
            xaxis={"title": {"text": f"{unit_name} spent on trials"}, "rangemode": "tozero"},
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


@dataclass(frozen=True, slots=True)
class Placed:
    """One trial on the timeline: its slot, and when it began and ended, in seconds from the first.

    ``words``: "trial 3", or "repeat of trial 3" in the confirmation.
    """

    record: TrialRecord
    words: str
    slot: int
    began_s: float
    ended_s: float


#: Trials of one slot follow each other with less than this between them.
_HANDOVER_S = 0.05
#: A pause in which nothing ran is cut out when it is longer than this and than any trial.
_PAUSE_S = 120.0


def placed(records: Sequence[TrialRecord], repeats: Sequence[TrialRecord]) -> list[Placed]:
    """Return all trials that took time, each in the first slot that was free when it began.

    Storage has when a trial began and ended, not on which slot; slots are told apart by overlap. In
    virtual time, or without times, trials follow each other as long as they took. Between runs
    (stopped, resumed later) the pause is left out.
    """
    ran = [(r, f"trial {r.number}") for r in records if r.cost.total_s > 0]
    ran += [(r, f"repeat of trial {r.point.get('member')}") for r in repeats if r.cost.total_s > 0]
    spans = _real([record for record, _ in ran]) or _laid([record for record, _ in ran])
    out: list[Placed] = []
    free: list[float] = []
    for at in sorted(range(len(ran)), key=lambda i: spans[i]):
        began, ended = spans[at]
        slot = next((i for i, t in enumerate(free) if t <= began + _HANDOVER_S), len(free))
        free[slot : slot + 1] = [ended]
        out.append(Placed(*ran[at], slot, began, ended))
    return out


def _real(records: Sequence[TrialRecord]) -> list[tuple[float, float]]:
    """Return the stored times without long pauses; empty where they do not cover the costs."""
    spans = [record.span_s for record in records if record.span_s is not None]
    took = sum(record.cost.total_s for record in records)
    if len(spans) < len(records) or sum(end - begin for begin, end in spans) < 0.9 * took:
        return []
    longest = max((end - begin for begin, end in spans), default=0.0)
    shift, latest = (min(spans)[0], min(spans)[0]) if spans else (0.0, 0.0)
    moved: dict[tuple[float, float], tuple[float, float]] = {}
    for begin, end in sorted(spans):
        if begin - latest > max(_PAUSE_S, longest):
            shift += begin - latest
        latest = max(latest, end)
        moved[begin, end] = (begin - shift, end - shift)
    return [moved[span] for span in spans]


def _laid(records: Sequence[TrialRecord]) -> list[tuple[float, float]]:
    ends = np.cumsum([record.cost.total_s for record in records]).tolist()
    return [(end - record.cost.total_s, end) for record, end in zip(records, ends, strict=True)]


#: Phases in the order in which a trial goes through them.
_ORDER = ("start_s", "reconfigure_s", "other_s", "replay_s")


def timeline_figure(trials: Sequence[Placed]) -> Figure:
    """One bar per slot: starts, live changes, replays and the rest, with gaps where it was idle."""
    scale, unit_name = (60.0, "minutes") if _end(trials) < 2 * 3600 else (3600.0, "hours")
    slots = sorted({trial.slot for trial in trials})
    idle: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "idle",
        "x": [_end(trials) / scale] * len(slots),
        "y": [_lane(slot) for slot in slots],
        "marker": {"color": "@tint"},
        "hoverinfo": "skip",
    }
    traces = [idle, *(t for phase in _ORDER if (t := _bars(trials, phase, scale))["x"])]
    arranged = layout(
        height=max(150, 96 + 38 * len(slots)),
        barmode="overlay",
        bargap=0.25,
        hovermode="closest",
        showlegend=False,
        margin={"l": 64, "r": 16, "t": 8, "b": 48},
        xaxis={"title": {"text": unit_name}},
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False},
    )
    return {"data": traces, "layout": arranged}


def _bars(trials: Sequence[Placed], phase: str, scale: float) -> Trace:
    words, colour = PHASES[phase]
    before = _ORDER[: _ORDER.index(phase)]
    having = [t for t in trials if getattr(t.record.cost, phase) > 0]
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": [_lane(t.slot) for t in having],
        "x": [getattr(t.record.cost, phase) / scale for t in having],
        "base": [
            (t.began_s + sum(getattr(t.record.cost, b) for b in before)) / scale for t in having
        ],
        "marker": {"color": colour, "line": {"color": "@paper", "width": 0.5}},
        "hovertext": [
            f"{t.words}: {words} {seconds(getattr(t.record.cost, phase))}" for t in having
        ],
        "hoverinfo": "text",
    }


def _lane(slot: int) -> str:
    return f"slot {slot + 1}"


def _end(trials: Sequence[Placed]) -> float:
    return max((trial.ended_s for trial in trials), default=0.0)


def idle_text(trials: Sequence[Placed]) -> str:
    """Say which share of all slots' time, from the first trial to the last, nothing ran."""
    slots = len({trial.slot for trial in trials})
    whole = slots * _end(trials)
    busy = sum(min(t.record.cost.total_s, t.ended_s - t.began_s) for t in trials)
    share = max(0.0, 1 - busy / whole) if whole else 0.0
    return f"Idle: {share * 100:.0f} %." if whole else ""
