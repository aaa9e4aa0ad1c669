"""The report of a study: one HTML file that opens offline, for a colleague to be convinced by."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from tuner import report_content as content
from tuner.config import Json
from tuner.demotion import notice
from tuner.presets import Preset, Provenance, default_baseline
from tuner.report_agreement import agreement_text, agreements
from tuner.report_extras import Extras, gather
from tuner.report_failures import failures
from tuner.report_figures import Figure, Shown, beyond, front_figure
from tuner.report_knobs import set_back, set_back_text
from tuner.report_markdown import conditions, front_text, settings_block, verdict_lines
from tuner.report_memory import memory_rows, memory_text, starts
from tuner.report_parallel import parallel_figure
from tuner.report_table import in_common
from tuner.report_text import title
from tuner.report_timeline import (
    hypervolume_figure,
    idle_text,
    placed,
    time_split,
    timeline_figure,
)
from tuner.report_verdict import Verdict, decide
from tuner.results import StudyResults


def write_report(
    path: Path, results: StudyResults, presets: Sequence[Preset], provenance: Provenance
) -> Path:
    """Write the report and return its path. It needs no network and no other file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tuner", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["codes"] = _codes
    context = _context(results, presets, provenance)
    text = str(environment.get_template("report.html.j2").render(context))
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
    return path


def verdict_of(results: StudyResults, presets: Sequence[Preset]) -> Verdict:
    """Return what a study's results say to do."""
    default = default_baseline(results.settled)
    return decide(presets, results.objectives, default, results.records, results.proof)


def verdict_note(results: StudyResults, presets: Sequence[Preset]) -> str:
    """Return the verdict in Markdown, for the dashboard's note."""
    return "\n\n".join(verdict_lines(verdict_of(results, presets)))


def markdown(results: StudyResults, presets: Sequence[Preset], provenance: Provenance) -> str:
    """Return the report for a pull request: verdict, front, settings, conditions."""
    shown, default = shown_of(results, presets), default_baseline(results.settled)
    verdict = verdict_of(results, presets)
    rows = content.front_rows(shown, default) if shown.measured else []
    caption = content.front_caption(shown, default) if rows else ""
    model = results.records[0].config.model if results.records else ""
    parts = [
        *(f"> {banner}" for banner in content.banners(provenance, results.records)),
        *verdict_lines(verdict),
        *front_text(rows, _heads(results), caption),
        set_back_text(results.attribution),
        *settings_block(verdict.preset if verdict.launch else None),
        memory_text(memory_rows(starts(results.records, results.repeats))),
        conditions(content.origin(provenance, model)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heads(results: StudyResults) -> list[tuple[str, str]]:
    return [(title(o.metric), "↑" if o.maximize else "↓") for o in results.objectives]


def shown_of(results: StudyResults, presets: Sequence[Preset]) -> Shown:
    """Return what tables and pictures show: means where trials were confirmed."""
    default = results.proof.default
    unproven = {
        (one.trial, found.metric)
        for one in results.confirmed
        for found in one.comparisons
        if default is not None and found.baseline == default.trial and found.verdict == "not shown"
    }
    return Shown(
        results.settled,
        results.deployable,
        results.objectives,
        presets,
        results.intervals,
        frozenset(unproven),
    )


def _context(
    results: StudyResults, presets: Sequence[Preset], provenance: Provenance
) -> dict[str, Json]:
    shown, default = shown_of(results, presets), default_baseline(results.settled)
    raw = Shown(
        sorted(results.records, key=lambda r: r.number),
        results.front,
        results.objectives,
        presets,
    )
    verdict = verdict_of(results, presets)
    recommended = verdict.preset or (presets[0] if presets else None)
    model = raw.records[0].config.model if raw.records else ""
    common = in_common(raw.measured, None) if default is None else {}
    agreed = agreements(results.confirmed, raw.records, results.objectives, presets)
    extras = gather(results, shown, verdict)
    return {
        "study": results.name,
        "subtitle": _subtitle(provenance, model),
        "banners": content.banners(provenance, raw.records),
        "verdict": verdict,
        "cards": content.cards(presets, shown, default),
        "objectives": _heads(results),
        "caption": content.front_caption(shown, default) if shown.measured else "",
        "front": content.front_rows(shown, default) if shown.measured else [],
        "agreements": agreed,
        "agreement": agreement_text(agreed, results.objectives),
        "demoted": notice(results.demoted) if results.demoted else "",
        "extras": extras,
        "set_back": set_back(results.attribution, results.objectives),
        "set_back_text": set_back_text(results.attribution),
        "summary": content.summary(raw.records),
        "times": time_split(raw.records),
        "idle": idle_text(placed(raw.records, results.repeats)),
        "failures": failures(raw.records),
        "mismatches": content.mismatches(raw.records),
        "memory": memory_rows(starts(raw.records, results.repeats)),
        "warnings": content.warnings(raw.records),
        "workload": content.workload_facts(recommended) if recommended else [],
        "trials": [content.row(record, raw, default, common) for record in raw.records],
        "origin": content.origin(provenance, model),
        "beyond": beyond(shown) if shown.measured else 0,
        "figures": _figures(shown, raw, results, extras),
        "plotly": _plotly(),
    }


def _subtitle(provenance: Provenance, model: str) -> str:
    hardware = provenance.hardware
    gpus = hardware.get("gpus") or []
    place = (
        (f"{len(gpus)} x {gpus[0]}" if len(gpus) > 1 else gpus[0])
        if gpus
        else hardware.get("device")
    )
    version = provenance.versions.get("vllm")
    parts = [
        Path(model).name,
        place,
        f"vLLM {version}" if version else "",
        f"workload {provenance.workload}" if provenance.workload else "",
        provenance.date[:10],
    ]
    return " · ".join(str(part) for part in parts if part)


def _figures(shown: Shown, raw: Shown, results: StudyResults, extras: Extras) -> dict[str, Markup]:
    if not shown.records:
        return {}
    trials = placed(raw.records, results.repeats)
    figures: dict[str, Figure | None] = {"timeline": timeline_figure(trials) if trials else None}
    if shown.measured:
        figures |= {
            "front": front_figure(shown),
            "hypervolume": hypervolume_figure(raw),
            "parallel": parallel_figure(raw),
        }
    figures |= extras.figures
    return {name: _script(figure) for name, figure in figures.items() if figure is not None}


def _codes(text: str) -> Markup:
    """Markdown's backquotes as HTML; everything else is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return Markup(escape(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else escape(part)
        for at, part in enumerate(parts)
    )


def _script(value: Json) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())
