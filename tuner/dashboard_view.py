"""A study as the dashboard needs to see it: a view of its storage, to which nothing is written.

The dashboard reads constraints from an unnamed list only, where Optuna 5 stores them by name: a
trial that breaks one would look best there. The view adds the list. Stored, it would count every
constraint twice for the samplers. Files of the study's folder appear as artifacts of their trials.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from optuna.artifacts import FileSystemArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from tuner.confirm import study_name as confirming

#: Files of a trial's folder that are shown, with their types.
SHOWN = {
    "latency.png": "image/png",
    "engine.log": "text/plain",
    "measurement.json": "application/json",
}
_CONSTRAINTS = "constraints"
_ARTIFACTS = "artifacts:"


@dataclass(frozen=True, slots=True)
class Files:
    """An artifact store over a study's folder: each shown file has an id made from its place.

    What people add in the dashboard lies in ``artifacts/``. The study's own files stay.
    """

    folder: Path

    def of(self, study: str, number: int) -> dict[str, str]:
        """Return the shown files of a trial as Optuna's attributes: key -> JSON."""
        repeats = study.endswith(confirming(""))
        trials = self.folder / "confirm" / "trials" if repeats else self.folder / "trials"
        return {
            _ARTIFACTS + identity: json.dumps(
                {
                    "artifact_id": identity,
                    "filename": name,
                    "mimetype": kind,
                    "encoding": None,
                }
            )
            for name, kind in SHOWN.items()
            if (path := trials / str(number) / name).is_file()
            for identity in [self._id(path)]
        }

    def _id(self, path: Path) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, path.relative_to(self.folder).as_posix()))

    def _own(self) -> dict[str, Path]:
        places = (self.folder / "trials", self.folder / "confirm" / "trials")
        paths = (path for place in places for name in SHOWN for path in place.glob(f"*/{name}"))
        return {self._id(path): path for path in paths}

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Open a file by its id. Raises ArtifactNotFound for an id of no shown file."""
        path = self._own().get(artifact_id)
        return self._added.open_reader(artifact_id) if path is None else path.open("rb")

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Keep a file that someone adds in the dashboard."""
        (self.folder / "artifacts").mkdir(exist_ok=True)
        self._added.write(artifact_id, content_body)

    def remove(self, artifact_id: str) -> None:
        """Remove an added file. Raises ArtifactNotFound for the study's own."""
        if artifact_id in self._own():
            raise ArtifactNotFound("the study's own files are not removed from here")
        self._added.remove(artifact_id)

    @property
    def _added(self) -> FileSystemArtifactStore:
        return FileSystemArtifactStore(self.folder / "artifacts")


def viewed(storage: BaseStorage, files: Files | None = None) -> BaseStorage:
    """Return a storage that reads as ``storage`` does, with what the dashboard looks for added.

    Writes (notes, say) go to the storage itself; what was added is never written.
    """
    view = copy.copy(storage)

    def trials(study_id: int, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        name = storage.get_study_name_from_id(study_id)
        found = storage.get_all_trials(study_id, deepcopy=deepcopy, states=states)
        return [_seen(trial, name, files) for trial in found]

    def trial(trial_id: int) -> FrozenTrial:
        # A trial does not know its study; the caller wants its attributes, not its files' names.
        found = storage.get_trial(trial_id)
        return _seen(found, _study_of(storage, trial_id), files)

    added: dict[str, Callable[..., Any]] = {
        "get_all_trials": trials,
        "get_trial": trial,
        "get_trial_system_attrs": lambda trial_id: trial(trial_id)._system_attrs,
    }
    for name, method in added.items():
        setattr(view, name, method)
    return view


def _study_of(storage: BaseStorage, trial_id: int) -> str:
    for study in storage.get_all_studies():
        found = storage.get_all_trials(study._study_id, deepcopy=False)
        if any(trial._trial_id == trial_id for trial in found):
            return study.study_name
    return ""


def _seen(trial: FrozenTrial, study: str, files: Files | None) -> FrozenTrial:
    seen = copy.copy(trial)
    attrs = dict(trial._system_attrs)
    if trial.constraints and _CONSTRAINTS not in attrs:
        attrs[_CONSTRAINTS] = list(trial.constraints.values())
    if files is not None and trial.state.is_finished():
        attrs |= files.of(study, trial.number)
    seen._system_attrs = attrs
    return seen
