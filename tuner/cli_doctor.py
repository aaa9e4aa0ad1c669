"""``tuner doctor``: what is installed, missing or broken, or what went wrong in a study."""

from __future__ import annotations

from pathlib import Path

from tuner.cli import out, print_json
from tuner.doctor import Targets, diagnose, render, to_json, worst
from tuner.doctor_results import diagnose_results


def doctor_command(study: Path | None, targets: Targets, as_json: bool) -> int:
    """Look at a study's results folder, at this machine without one; 1 where there is an error."""
    findings = diagnose_results(study) if study else diagnose(targets)
    if as_json:
        print_json(to_json(findings))
    else:
        out.print(render(findings))
    return 1 if worst(findings) == "error" else 0
