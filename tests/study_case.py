"""A small valid study, of which a test changes one section."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import StudyError
from tuner.study import StudySpec, load_study

SECTIONS = {
    "model": "{name: org/model}",
    "engine": "{kind: simulated}",
    "space": "{knobs: {max-num-seqs: {int: [4, 64], log: true}}}",
    "workload": "{synthetic: {requests: 20}}",
    "budget": "{trials: 3}",
}


def study_text(**sections: str | None) -> str:
    """Return a study file. A section that is None is left out."""
    merged = {**SECTIONS, **sections}
    return "".join(f"{key}: {text}\n" for key, text in merged.items() if text is not None)


def write(folder: Path, text: str, name: str = "case.yaml") -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(folder: Path, *overrides: str, **sections: str | None) -> StudySpec:
    """Load the study with these sections changed."""
    return load_study(write(folder, study_text(**sections)), overrides)


def problems_of(path: Path, *overrides: str) -> list[str]:
    """Return every problem of a study file, the folder's name left out."""
    with pytest.raises(StudyError) as caught:
        load_study(path, overrides)
    return [str(problem).replace(f"{path.parent}/", "") for problem in caught.value.problems]


def problems(folder: Path, *overrides: str, **sections: str | None) -> list[str]:
    """Return every problem of the study with these sections changed."""
    return problems_of(write(folder, study_text(**sections)), *overrides)
