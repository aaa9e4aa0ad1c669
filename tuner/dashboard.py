"""Optuna's dashboard on a study's storage: annotated, and on this machine only by default."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
from optuna.storages import BaseStorage

from tuner.dashboard_view import Files, viewed
from tuner.errors import StoreError
from tuner.objectives import Objective
from tuner.records import TrialRecord
from tuner.report_failures import advice, ran_otherwise, why
from tuner.report_text import unit

HOST = "127.0.0.1"
PORT = 8080
#: How the note of a trial begins that is a preset.
_PRESET = "**preset:"

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # Two servers on one port would share its requests.
    allow_reuse_port = False


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing for each request."""


def app(storage: BaseStorage, read_only: bool = False, folder: Path | None = None) -> Wsgi:
    """Return the dashboard on a storage as a WSGI application.

    ``read_only`` refuses every request that could change or delete something. With a study's
    ``folder``, logs and pictures are there as artifacts of their trials.
    """
    import optuna_dashboard

    files = None if folder is None else Files(folder)
    full: Wsgi = optuna_dashboard.wsgi(viewed(storage, files), files)
    return _reading(full) if read_only else full


def _reading(full: Wsgi) -> Wsgi:
    def reading(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in {"GET", "HEAD", "OPTIONS"}:
            return full(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "application/json")])
        return [b'{"reason": "This dashboard is shared for reading only."}']

    return reading


@contextmanager
def serving(
    storage: BaseStorage,
    host: str = HOST,
    port: int = PORT,
    *,
    read_only: bool = False,
    folder: Path | None = None,
) -> Iterator[WSGIServer]:
    """Hold the dashboard's port; call ``serve_forever`` on the server within.

    Port 0 takes a free one (``server.server_port``). Raises StoreError where the port is taken.
    """
    try:
        server = make_server(host, port, app(storage, read_only, folder), _Server, _Quiet)
    except OSError as error:
        reason = (
            "is taken" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
        )
        raise StoreError(
            f"port {port} on {host} {reason}", f"choose another one with --port {port + 1}"
        ) from error
    with server:
        yield server


def serve(
    study: optuna.Study,
    host: str = HOST,
    port: int = PORT,
    *,
    read_only: bool = False,
    folder: Path | None = None,
    announce: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve the dashboard until Ctrl-C; ``announce`` gets the study's address once it is open."""
    with serving(study._storage, host, port, read_only=read_only, folder=folder) as server:
        announce(f"http://{host}:{server.server_port}/dashboard/studies/{study._study_id}")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@dataclass(frozen=True, slots=True)
class Notes:
    """What is written beside a study in the dashboard, in Markdown."""

    verdict: str = ""
    #: Folder of a trial's log, by trial number; '' for none.
    log: Callable[[int], str] = lambda number: ""
    #: Names of presets, by trial number.
    names: Mapping[int, str] = field(default_factory=dict)


def annotate(
    study: optuna.Study,
    records: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    notes: Notes | None = None,
) -> None:
    """Name the objectives with their units, and note on trials why they gave no result.

    May be called again at any time; a note that says the same already is not written again.
    """
    notes = notes or Notes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([_base_unit(objective.metric) for objective in objectives])
    if notes.verdict:
        _note(study, None, notes.verdict)
    ids = {trial.number: trial._trial_id for trial in study.get_trials(deepcopy=False)}
    for record in records:
        name = notes.names.get(record.number, "")
        text = trial_note(record, notes.log(record.number), name)
        if record.number in ids:
            _note(study, ids[record.number], text)


def _base_unit(metric: str) -> str:
    """The storage holds base units: seconds where people read milliseconds."""
    return f"{metric} (s)" if unit(metric).symbol == "ms" else metric


def trial_note(record: TrialRecord, log: str = "", name: str = "") -> str:
    """Return a trial's note in Markdown, '' for a plain good trial without a ``name``."""
    heads = [f"**{record.config.label}**" if record.config.label else ""]
    heads += [f"{_PRESET} {name}**"] if name else []
    head = "\n\n".join(filter(None, heads))
    found = why(record)
    if found is None:
        replaced = [f"{n}: asked {asked}, ran {ran}" for n, asked, ran in ran_otherwise(record)]
        return "\n\n".join(filter(None, [head, *replaced]))
    reason, kind, detail = found
    parts = [head, f"**{reason}**: {kind}."]
    parts += ["```\n" + detail.replace("```", "'''") + "\n```"] if detail else []
    parts += [f"What to do: {advice(reason, [detail])}", f"Log: `{log}`" if log else ""]
    return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Addressed:
    """What ``save_note`` needs of a trial; a real ``Trial`` would wake the sampler."""

    study: optuna.Study
    storage: Any
    _trial_id: int


def _note(study: optuna.Study, trial_id: int | None, text: str) -> None:
    import optuna_dashboard

    target: Any = study
    if trial_id is not None:
        target = _Addressed(study, study._storage, trial_id)
    old = optuna_dashboard.get_note(target)
    # What people wrote on a good trial stays; the name of a preset goes with the preset.
    if old != text and (text or old.startswith(_PRESET)):
        optuna_dashboard.save_note(target, text)
