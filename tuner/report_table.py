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
    quantity,
    settings_text,
    shared,
    title,
    unit,
    value_text,
)


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
) -> Table:
    """Return the front as a table: scores with their ratio to the default, and what differs.

    Baselines come first, marked where they are members themselves; ``presets`` give members names.
    """
    default = default_baseline([*baselines, *front])
    members = {record.number for record in front}
    both = {r.number: r for r in [*baselines, *front]}
    above, below = ordered(list(both.values()), objectives)
    common = {} if default else shared([record.config for record in both.values()])
    table = Table(box=SIMPLE_HEAD, caption=_caption(default, common), caption_justify="left")
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("name", no_wrap=True)
    for objective in objectives:
        head = f"{'↑' if objective.maximize else '↓'} {title(objective.metric)}"
        table.add_column(textwrap.fill(head, 16), justify="right", min_width=11)
    table.add_column("set otherwise" if default else "settings", overflow="fold")
    for record in [*above, *below]:
        settings = {} if record is default else _otherwise(record, default, common)
        names = _names(record, members, presets)
        table.add_row(*_cells(record, objectives, default, names), "\n".join(settings))
        if above and record is above[-1]:
            table.add_section()
    return table


def _caption(default: TrialRecord | None, common: Mapping[str, Json]) -> str:
    if default is not None:
        return f"Changes are against trial {default.number}, vLLM's defaults."
    text = "vLLM's defaults were not measured: nothing to compare with."
    return f"{text}\nThe same in all: {settings_text(common)}." if common else text


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
    names: Sequence[str],
) -> list[str | Text]:
    gains = {} if record is default else ratios(record, default, objectives)
    scores: list[str | Text] = []
    for objective, score in zip(objectives, record.scores or (), strict=True):
        cell = Text(quantity(score, objective.metric))
        if (ratio := gains.get(objective.metric)) is not None:
            cell.append(f"\n{change(ratio)}", "green" if better(ratio, objective) else "red")
        scores.append(cell)
    return [str(record.number), "\n".join(names), *scores]


def _otherwise(
    record: TrialRecord, default: TrialRecord | None, common: Mapping[str, Json]
) -> list[str]:
    base = default.config if default else None
    differing = differences(record.config, base, common)
    return [f"{name} {value_text(value)}" for name, value in differing.items()]


def front_rows(
    front: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    baselines: Sequence[TrialRecord] = (),
    presets: Sequence[Preset] = (),
) -> list[dict[str, Json]]:
    """Return one flat row per baseline and member, all with the same columns, times in ms.

    Columns: trial, kind, name, one per objective, its ratio to the default, gpus, one per argument.
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
            row[metric + shown.suffix] = score * (shown.scale if shown.suffix else 1.0)
            row[f"{metric}.ratio_to_default"] = gains.get(metric)
        args = flat(record.config.args)
        row |= {"gpus": record.cost.gpus, "model": record.config.model}
        rows.append(row | {n: value_text(args[n]) if n in args else None for n in names})
    return rows
