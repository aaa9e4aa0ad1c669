"""What the report takes from a study's folder beside its storage: requests, trace, SLO, knobs.

A folder may have been moved without its trials, and a trace may be gone: what is not there is left
out of the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.errors import TunerError
from tuner.job import Slo, Workload
from tuner.presets import default_baseline, is_baseline
from tuner.report_figures import Figure, Shown
from tuner.report_knobs import importance_figure
from tuner.report_latency import (
    LATENCIES,
    Sampled,
    attainment,
    latency_figure,
    legend,
    percentiles,
    sampled,
)
from tuner.report_verdict import Verdict
from tuner.report_workload import workload_figures, workload_text
from tuner.results import StudyResults
from tuner.study import load_study


@dataclass(frozen=True, slots=True)
class Extras:
    """Figures by name, and the tables that stand beside them."""

    figures: dict[str, Figure | None] = field(default_factory=dict)
    #: Names of the latency figures that there are, with their words.
    latencies: tuple[tuple[str, str], ...] = ()
    #: "paced", 3 replays: which requests the latencies are of.
    latencies_of: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    percentiles: tuple[tuple[str, list[str]], ...] = ()
    slo_classes: tuple[str, ...] = ()
    attained: tuple[tuple[str, list[tuple[str, bool]]], ...] = ()
    wanted: str = ""
    workload: str = ""


def gather(results: StudyResults, shown: Shown, verdict: Verdict) -> Extras:
    """Read what there is in the study's folder."""
    if not (results.folder / "study.yaml").is_file():
        return Extras()
    workload = _workload(results)
    slo = workload.slo if workload else Slo()
    samples = sampled(shown, results.folder, results.repeats, _of_interest(shown, verdict))
    bound = slo.of("default")
    latency = {
        f"latency-{which}": latency_figure(samples, which, bound.get(which)) for which in LATENCIES
    }
    figures = latency | {"importances": importance_figure(results.importances(), shown.objectives)}
    figures |= workload_figures(workload) if workload else {}
    classes, attained = attainment(samples, slo)
    return Extras(
        figures,
        tuple((name, LATENCIES[name.removeprefix("latency-")]) for name, f in latency.items() if f),
        _of(samples),
        tuple(legend(samples)),
        tuple(percentiles(samples)),
        tuple(classes),
        tuple(attained),
        f"{slo.attainment * 100:g} %",
        workload_text(workload) if workload else "",
    )


def _workload(results: StudyResults) -> Workload | None:
    try:
        return load_study(results.folder / "study.yaml").workload()
    except (TunerError, OSError):
        return None


def _of_interest(shown: Shown, verdict: Verdict) -> list[int]:
    """The recommended trial, the defaults, the user's own configuration, then the other presets."""
    default = default_baseline(shown.measured)
    own = [
        r.number for r in shown.measured if is_baseline(r) and not r.config.label.count("--perf")
    ]
    first = [verdict.preset.trial] if verdict.preset else []
    first += [default.number] if default else []
    return [*first, *own, *(preset.trial for preset in shown.presets)]


def _of(samples: Sequence[Sampled]) -> str:
    if not samples:
        return ""
    replays = sorted({sample.replays for sample in samples})
    times = f"{replays[0]}" if len(replays) == 1 else f"{replays[0]} to {replays[-1]}"
    kind = f"the {samples[0].measure} replays"
    return f"{kind} of {times} cold starts each" if replays[-1] > 1 else f"one of {kind} each"
