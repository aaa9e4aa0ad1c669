"""What a study's folder holds for readers: the report, its Markdown, pictures, and tables."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tuner.config import Json
from tuner.errors import Problem, StudyError
from tuner.presets import Preset, Provenance, default_baseline
from tuner.report import markdown, shown_of, verdict_of, write_report
from tuner.report_latency import sampled
from tuner.report_picture import front_picture, latency_picture
from tuner.results import StudyResults, load_results

#: What ``front_picture`` can write, by the file's suffix.
PICTURES = (".png", ".svg")


def write_study_report(folder: Path, to: Path | None = None) -> Path:
    """Write the report of a study's folder, into it unless told otherwise; return its path."""
    results, presets, provenance = _read(folder)
    return write_report(to or folder / "report.html", results, presets, provenance)


def study_markdown(folder: Path) -> str:
    """Return the report of a study's folder for a pull request."""
    return markdown(*_read(folder))


def report_json(folder: Path) -> dict[str, Json]:
    """Return the verdict and what it rests on, for machines."""
    results, presets, _ = _read(folder)
    verdict = verdict_of(results, presets)
    return {
        "study": results.name,
        "verdict": {
            "tone": verdict.tone,
            "headline": verdict.headline,
            "lead": verdict.lead,
            "preset": verdict.preset.name if verdict.preset else None,
            "trial": verdict.preset.trial if verdict.preset else None,
            "launch": verdict.launch or None,
            "sure": list(verdict.sure),
        },
        "confirmed": [
            {
                "trial": one.trial,
                "label": one.config.label or None,
                "repeats": len(one.scores),
                "front_probability": one.front_probability,
                "ratio_to_search": list(one.ratio_to_search),
                "comparisons": [asdict(comparison) for comparison in one.comparisons],
            }
            for one in results.confirmed
        ],
    }


def write_picture(folder: Path, path: Path) -> Path:
    """Write the front as a picture for slides; PNG or SVG by the file's name."""
    if path.suffix.lower() not in PICTURES:
        what = f"the name of a picture ends in {' or '.join(PICTURES)}, not {path.suffix!r}"
        raise StudyError(Problem(str(path), "", what))
    results, presets, _ = _read(folder)
    headline = f"{results.name}: {verdict_of(results, presets).headline}"
    try:
        return front_picture(shown_of(results, presets), headline, path)
    except OSError as error:
        raise StudyError(Problem(str(path), "", error.strerror or str(error))) from error


def write_tables(results: StudyResults) -> list[Path]:
    """Write trials.csv and trials.parquet: one row per trial, in base units."""
    frame = results.trials_frame()
    csv, parquet = (results.folder / f"trials.{kind}" for kind in ("csv", "parquet"))
    frame.to_csv(csv, index=False)
    # A knob may be a number in one trial and a word in another: Parquet wants one type a column.
    mixed = [c for c in frame if frame[c].dtype == object]
    frame.astype(dict.fromkeys(mixed, "string")).to_parquet(parquet, index=False)
    return [csv, parquet]


def write_latency_pictures(results: StudyResults, presets: list[Preset]) -> list[Path]:
    """Write latency.png into the folders of the presets' trials and of the defaults."""
    shown = shown_of(results, presets)
    default = default_baseline(shown.records)
    trials = [preset.trial for preset in presets] + ([default.number] if default else [])
    return [
        latency_picture(sample, results.folder / "trials" / str(sample.trial) / "latency.png")
        for sample in sampled(shown, results.folder, results.repeats, trials)
        if (results.folder / "trials" / str(sample.trial)).is_dir()
    ]


def _read(folder: Path) -> tuple[StudyResults, list[Preset], Provenance]:
    results = load_results(folder)
    provenance = results.provenance(date=now())
    return results, results.presets(provenance), provenance


def now() -> str:
    """Return the present time in ISO 8601, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
