"""The front as a table in the terminal, and as rows of a CSV file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tuner.config import Json
from tuner.objectives import Objective
from tuner.presets import BASELINE, Preset, default_baseline, is_baseline, ratios
from tuner.records import TrialRecord
from tuner.report_text import (
    better,
    change,
    differences,
    flat,
    half_width,
    quantity,
    settings_text,
    shared,
    title,
    unit,
    value_text,
)

#: Bounds of confirmed means, by trial and metric, in base units.
Intervals = Mapping[int, Mapping[str, tuple[float, float]]]


def ordered(
    records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> tuple[list[TrialRecord], list[TrialRecord]]:
    """Split measured records into baselines (by number) and others (best first objective first)."""
    scored = [record for record in records if record.scores is not None]
    sign = -1 if objectives[0].maximize else 1
    baselines = sorted((r for r in scored if is_baseline(r)), key=lambda r: r.number)
    others = [r for r in scored if not is_baseline(r)]
    return baselines, sorted(others, key=lambda r: (sign * (r.scores or (0.0,))[0], r.number))


def front_table(
    front: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    baselines: Sequence[TrialRecord] = (),
    presets: Sequence[Preset] = (),
    intervals: Intervals | None = None,
) -> Table:
    """Return the front as a table: scores with their ratio to the default, and what differs.

    Baselines come first, marked where they are members themselves; ``presets`` give members names,
    ``intervals`` confirmed means their spread. What all members set alike stands below.
    """
    default = default_baseline([*baselines, *front])
    members = {record.number for record in front}
    both = {r.number: r for r in [*baselines, *front]}
    above, below = ordered(list(both.values()), objectives)
    common = in_common([*above, *below], default)
    caption = caption_of(default, common, bool(intervals))
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("name", no_wrap=True)
    for objective in objectives:
        head = f"{'↑' if objective.maximize else '↓'} {title(objective.metric)}"
        table.add_column(textwrap.fill(head, 16), justify="right", min_width=11)
    table.add_column("set otherwise" if default else "settings", overflow="fold")
    for record in [*above, *below]:
        settings = settings_of(record, default, common)
        lines = [f"{name} {value_text(value)}" for name, value in settings.items()]
        names = _names(record, members, presets)
        cells = _cells(record, objectives, default, (intervals or {}).get(record.number, {}))
        table.add_row(str(record.number), "\n".join(names), *cells, "\n".join(lines))
        if above and record is above[-1]:
            table.add_section()
    return table


def same_trial(record: TrialRecord, other: TrialRecord | None) -> bool:
    """Whether both are of one trial, be it with the search's scores or with means of repeats."""
    return other is not None and record.number == other.number


def in_common(records: Sequence[TrialRecord], default: TrialRecord | None) -> dict[str, Json]:
    """Return what rows need not repeat: what all members change alike against the default.

    Without a default: what is set alike in all records. Of one record nothing is in common.
    """
    if default is None:
        return shared([record.config for record in records])
    changed = [
        differences(record.config, default.config) for record in records if not is_baseline(record)
    ]
    if len(changed) < 2:
        return {}
    every = changed[1:]
    return {n: v for n, v in changed[0].items() if all(n in e and e[n] == v for e in every)}


def settings_of(
    record: TrialRecord, default: TrialRecord | None, common: Mapping[str, Json]
) -> dict[str, Json]:
    """Return what a row shows of a configuration: how it differs, without what is in common."""
    if same_trial(record, default):
        return {}
    differing = differences(record.config, default.config if default else None)
    if default is not None and is_baseline(record):
        return differing
    return {name: value for name, value in differing.items() if name not in common}


def caption_of(
    default: TrialRecord | None, common: Mapping[str, Json], confirmed: bool = False
) -> str:
    """Return the lines below a table of the front."""
    if default is None:
        lines = ["vLLM's defaults were not measured: nothing to compare with."]
    else:
        lines = [f"Changes are against trial {default.number}, vLLM's defaults."]
    if confirmed:
        lines.append("± is half of the 95 % interval of a mean over repeats.")
    if common:
        whose = "all but the baselines" if default else "all"
        lines.append(f"The same in {whose}: {settings_text(common)}.")
    return "\n".join(lines)


def _names(record: TrialRecord, members: set[int], presets: Sequence[Preset]) -> list[str]:
    names = [preset.name for preset in presets if preset.trial == record.number]
    if record.config.label:
        names.insert(0, record.config.label.removeprefix(BASELINE).strip())
        names += ["on the front"] if record.number in members else []
    return names


def _cells(
    record: TrialRecord,
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    bounds: Mapping[str, tuple[float, float]],
) -> list[Text]:
    gains = {} if same_trial(record, default) else ratios(record, default, objectives)
    scores: list[Text] = []
    for objective, score in zip(objectives, record.scores or (), strict=True):
        cell = Text(quantity(score, objective.metric))
        if objective.metric in bounds:
            cell.append(f"\n{half_width(bounds[objective.metric], objective.metric)}", "dim")
        if (ratio := gains.get(objective.metric)) is not None:
            cell.append(f"\n{change(ratio)}", "green" if better(ratio, objective) else "red")
        scores.append(cell)
    return scores


def front_rows(
    front: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    baselines: Sequence[TrialRecord] = (),
    presets: Sequence[Preset] = (),
    intervals: Intervals | None = None,
) -> list[dict[str, Json]]:
    """Return one flat row per baseline and member, all with the same columns, times in ms.

    Columns: trial, kind, name, one per objective with the bounds of its mean (None where it was
    measured once), its ratio to the default, gpus, one per argument.
    """
    default = default_baseline([*baselines, *front])
    members = {record.number for record in front}
    both = {r.number: r for r in [*baselines, *front]}
    above, below = ordered(list(both.values()), objectives)
    names = sorted({name for r in both.values() for name in flat(r.config.args)})
    rows: list[dict[str, Json]] = []
    for record in [*above, *below]:
        row: dict[str, Json] = {
            "trial": record.number,
            "kind": "member" if record.number in members else "baseline",
            "name": ", ".join(_names(record, members, presets)),
        }
        gains = ratios(record, default, objectives)
        for objective, score in zip(objectives, record.scores or (), strict=True):
            metric, shown = objective.metric, unit(objective.metric)
            scale = shown.scale if shown.suffix else 1.0
            row[metric + shown.suffix] = score * scale
            bounds = (intervals or {}).get(record.number, {}).get(metric)
            for at, end in enumerate(("low", "high")):
                row[f"{metric}.{end}{shown.suffix}"] = bounds[at] * scale if bounds else None
            row[f"{metric}.ratio_to_default"] = gains.get(metric)
        args = flat(record.config.args)
        row |= {"gpus": record.cost.gpus, "model": record.config.model}
        rows.append(row | {n: value_text(args[n]) if n in args else None for n in names})
    return rows
