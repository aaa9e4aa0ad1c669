"""``tuner front`` and ``tuner report``: what came out, as table, page, Markdown, picture, JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tuner import report_files as files
from tuner.cli import NO_FRONT, out, print_json
from tuner.errors import Problem, StudyError
from tuner.finish import front_json
from tuner.report_table import front_table
from tuner.results import load_results

FORMATS = ("html", "markdown")


def front_command(folder: Path, as_json: bool) -> int:
    """Print the front, with the intervals of what was confirmed."""
    results = load_results(folder)
    if as_json:
        print_json(front_json(results))
    else:
        presets = results.presets(results.provenance())
        best, bounds = results.deployable, results.intervals
        out.print(front_table(best, results.objectives, results.baselines, presets, bounds))
    return 0 if results.front else NO_FRONT


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write: the format, where to (None: its usual place), and pictures."""

    kind: str = "html"
    to: Path | None = None
    pictures: tuple[Path, ...] = ()


def report_command(folder: Path, wanted: Wanted, as_json: bool) -> int:
    """Write what is wanted; Markdown goes to standard output unless a file is named."""
    if wanted.kind not in FORMATS:
        there = f"there is no {wanted.kind!r}; there is: {', '.join(FORMATS)}"
        raise StudyError(Problem("", "--format", there))
    written = [files.write_picture(folder, picture) for picture in wanted.pictures]
    if wanted.kind == "html":
        written.insert(0, files.write_study_report(folder, wanted.to))
    elif wanted.to is not None:
        wanted.to.write_text(files.study_markdown(folder), encoding="utf-8")
        written.insert(0, wanted.to)
    elif not as_json:
        sys.stdout.write(files.study_markdown(folder))
    if as_json:
        told = {**files.report_json(folder), "written": [str(path) for path in written]}
        print_json(told)
    elif wanted.kind == "html" or wanted.to is not None:
        for path in written:
            out.print(str(path), soft_wrap=True)
    return 0
