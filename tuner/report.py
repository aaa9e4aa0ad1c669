"""The report of a study: one HTML file that opens offline, for a colleague to be convinced by."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from tuner import report_content as content
from tuner.config import Json
from tuner.presets import Preset, Provenance, default_baseline
from tuner.report_failures import failures
from tuner.report_figures import Shown, beyond, front_figure, hypervolume_figure, time_figure
from tuner.report_parallel import parallel_figure
from tuner.report_text import title
from tuner.report_verdict import decide, markdown
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
    text = environment.get_template("report.html.j2").render(_context(results, presets, provenance))
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
    return path


def verdict_note(results: StudyResults, presets: Sequence[Preset]) -> str:
    """Return the verdict in Markdown, for the dashboard's note or a pull request."""
    default = default_baseline(results.records)
    return markdown(decide(presets, results.objectives, default, results.records))


def _context(
    results: StudyResults, presets: Sequence[Preset], provenance: Provenance
) -> dict[str, Json]:
    records = sorted(results.records, key=lambda record: record.number)
    shown = Shown(records, results.front, results.objectives, presets)
    default = default_baseline(records)
    verdict = decide(presets, results.objectives, default, records)
    by_trial = {record.number: record for record in records}
    recommended = verdict.preset or (presets[0] if presets else None)
    model = records[0].config.model if records else ""
    return {
        "study": results.name,
        "subtitle": _subtitle(provenance, model),
        "banners": content.banners(provenance, records),
        "verdict": verdict,
        "cards": [
            (preset, content.scores(by_trial[preset.trial], results.objectives, default))
            for preset in presets
        ],
        "objectives": [(title(o.metric), "↑" if o.maximize else "↓") for o in results.objectives],
        "default": default,
        "common": content.front_common(shown, default),
        "front": content.front_rows(shown, default) if shown.measured else [],
        "summary": content.summary(records),
        "times": content.time_split(records),
        "failures": failures(records),
        "mismatches": content.mismatches(records),
        "warnings": content.warnings(records),
        "workload": content.workload_facts(recommended) if recommended else [],
        "trials": [
            content.row(record, shown, default, content.common_settings(records, default))
            for record in records
        ],
        "origin": content.origin(provenance, model),
        "beyond": beyond(shown) if shown.measured else 0,
        "figures": _figures(shown),
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


def _figures(shown: Shown) -> dict[str, Markup]:
    if not shown.records:
        return {}
    figures = {"times": time_figure(shown)}
    if shown.measured:
        figures |= {"front": front_figure(shown), "hypervolume": hypervolume_figure(shown)}
        parallel = parallel_figure(shown)
        figures |= {"parallel": parallel} if parallel else {}
    return {name: _script(figure) for name, figure in figures.items()}


def _script(value: Json) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())
