"""From stored results to what people take away: front.csv, presets, the report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import exports
from tuner.config import Json
from tuner.dashboard import Notes, annotate
from tuner.errors import Problem, StudyError
from tuner.exports import Parse
from tuner.minimal import minimal_forms
from tuner.presets import Preset, Provenance
from tuner.records import TrialRecord
from tuner.report import verdict_note, write_report
from tuner.report_files import now, write_latency_pictures, write_tables
from tuner.results import StudyResults, load_results, open_store
from tuner.validity import Checked, check, here, presets_at

if TYPE_CHECKING:
    from tuner.engines.vllm_check import Checker


@dataclass(frozen=True, slots=True)
class Taken:
    """What a finished study wrote."""

    front: Path | None
    presets: Sequence[Path]
    report: Path


def write_all(folder: Path, command: str) -> Taken:
    """Write front.csv, the presets and the report of a study's folder.

    Without a front there are no presets and no front.csv; the report says why.
    """
    results = load_results(folder)
    provenance = results.provenance(command, now())
    presets = results.presets(provenance)
    front: Path | None = None
    written: list[Path] = []
    if presets:
        front = folder / "front.csv"
        results.front_frame().to_csv(front, index=False)
        with _checker(provenance) as checker:
            forms = minimal_forms(results, presets, checker) if results.attribution else []
            written = exports.write([*presets, *forms], folder / "presets", _parse(checker))
    write_tables(results)
    write_latency_pictures(results, presets)
    study = open_store(folder).study
    study.set_user_attr("command", command)
    annotate(study, results.records, results.objectives, _notes(results, presets))
    report = write_report(folder / "report.html", results, presets, provenance)
    return Taken(front, written, report)


def _notes(results: StudyResults, presets: Sequence[Preset]) -> Notes:
    names: dict[int, list[str]] = {}
    for preset in presets:
        names.setdefault(preset.trial, []).append(preset.name)

    def log(number: int) -> str:
        path = results.folder / "trials" / str(number) / "engine.log"
        return str(path) if path.is_file() else ""

    return Notes(
        verdict_note(results, presets),
        log,
        {trial: ", ".join(those) for trial, those in names.items()},
    )


@dataclass(frozen=True, slots=True)
class Export:
    """What to write: one preset (None: all), in which format, for which machine, where."""

    preset: str | None = None
    kind: str = "vllm"
    profile: str = "local"
    #: In the form without knobs that make no difference, where there is one.
    minimal: bool = False
    to: Path | None = None


def export_presets(folder: Path, wanted: Export) -> list[Path]:
    """Write one or all presets of a study's folder in a format; return the files.

    Raises StudyError for a name, format or profile that there is not.
    """
    results = load_results(folder)
    provenance = results.provenance(date=now())
    presets = results.presets(provenance)
    _known("--format", wanted.kind, list(exports.EXPORTERS))
    _known("--profile", wanted.profile, list(exports.PROFILES))
    if wanted.preset is not None:
        _known("--preset", wanted.preset, [preset.name for preset in presets])
        presets = [preset for preset in presets if preset.name == wanted.preset]
    if not presets:
        raise StudyError(Problem(str(folder), "", "the study has no front yet, so no presets."))
    to, profile = wanted.to or folder / "presets", exports.PROFILES[wanted.profile]
    asks = wanted.kind == "vllm" or wanted.minimal
    with _checker(provenance) if asks else contextlib.nullcontext() as checker:
        if wanted.minimal:
            presets = minimal_forms(results, presets, checker)
        return exports.write(presets, to, _parse(checker), wanted.kind, profile)


def check_presets(place: Path, name: str | None = None) -> list[Checked]:
    """Hold the presets of a folder (or one preset's file) against this machine.

    Raises StudyError where there are none. A ``vllm`` file beside a preset that the installed vLLM
    reads to other values than were measured is a broken condition too.
    """
    files = presets_at(place)
    if name is not None:
        _known("--preset", name, [file.stem for file in files])
        files = [file for file in files if file.stem == name]
    at, checked = here(), []
    with _checker(Provenance("")) if at.vllm else contextlib.nullcontext() as checker:
        parse = _parse(checker)
        for file in files:
            preset = Preset.from_json(json.loads(file.read_text(encoding="utf-8")))
            found = check(preset, at)
            exported = file.with_suffix(".yaml")
            if parse is not None and exported.is_file():
                found.broken.extend(exports.verify(exported, preset, parse))
            checked.append(found)
    return checked


def front_json(results: StudyResults) -> dict[str, Json]:
    """Return the front and the baselines for machines, as confirmed where they were.

    ``interval``: the bounds of each mean by metric; None for a single measurement.
    """
    presets = results.presets(results.provenance())
    names = {preset.trial: preset.name for preset in reversed(presets)}
    metrics = [objective.metric for objective in results.objectives]

    def rows(records: Sequence[TrialRecord]) -> list[dict[str, Json]]:
        return [
            {
                "trial": record.number,
                "name": names.get(record.number) or record.config.label,
                "config": record.config.to_json(),
                "scores": dict(zip(metrics, record.scores or (), strict=True)),
                "interval": results.intervals.get(record.number),
            }
            for record in records
        ]

    return {
        "study": results.name,
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in results.objectives],
        "members": rows(results.deployable),
        "baselines": rows(results.baselines),
    }


@contextlib.contextmanager
def _checker(provenance: Provenance) -> Iterator[Checker | None]:
    """Give what asks the installed vLLM, None for a simulated study."""
    if provenance.simulated:
        yield None
        return
    from tuner.engines.vllm_check import Checker

    with Checker() as checker:
        yield checker


def _parse(checker: Checker | None) -> Parse | None:
    return None if checker is None else checker.parse_config_file


def _known(field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        there = ", ".join(known) or "none"
        raise StudyError(Problem("", field, f"there is no {value!r}; there is: {there}"))
