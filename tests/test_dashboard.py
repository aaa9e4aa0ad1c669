"""The dashboard on a study that holds everything which has broken dashboards before (C77)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import optuna
import pytest
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.distributions import CategoricalDistribution, IntDistribution

from tuner.config import EngineConfig
from tuner.dashboard import Notes, annotate, serving, trial_note
from tuner.dashboard_view import Files
from tuner.errors import StoreError
from tuner.objectives import Constraint, Objective
from tuner.records import Cost, Faulted, Infeasible, Measured, Measurement, Outcome, TrialRecord
from tuner.store import Store

OBJECTIVES = [
    Objective("saturated.output_tokens_per_s", True),
    Objective("paced.e2e.p99", False),
]
OUTCOMES: list[Outcome] = [
    Measured(Measurement({}, {}, {})),
    Infeasible("out_of_memory", "CUDA out of memory"),
    Faulted("engine_died", "exit 1"),
    Measured(Measurement({}, {}, {})),
]
SPACE = {
    "max_num_seqs": IntDistribution(4, 64, log=True),
    "only_choice": CategoricalDistribution(["auto"]),
    "enable_prefix_caching": CategoricalDistribution([True, False, None]),
}


def record(number: int, outcome: Outcome) -> TrialRecord:
    label = "baseline: vllm serve defaults" if number == 0 else ""
    scores = (100.0 + number, 1.0 + number) if isinstance(outcome, Measured) else None
    violations = (0.5 if number == 3 else -1.0,) if scores else ()
    config = EngineConfig("m", {"max_num_seqs": 4}, label=label)
    return TrialRecord(number, config, {}, outcome, scores, violations, Cost(1.0))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    url = f"sqlite:///{tmp_path_factory.mktemp('study') / 'study.db'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        bound = [Constraint("paced.error_share", upper=0.01)]
        store = Store.open(url, "quickstart", OBJECTIVES, bound, {"model": "m"})
        for number, outcome in enumerate(OUTCOMES):
            store.study.ask(SPACE)
            store.finish(record(number, outcome))
        store.study.ask(SPACE)
    store.study.enqueue_trial({"max_num_seqs": 8})
    return store


def note_everything(store: Store) -> None:
    notes = Notes("**Deploy** `balanced`.", lambda number: f"trials/{number}/engine.log")
    annotate(store.study, store.records(), OBJECTIVES, notes)


@pytest.fixture(scope="module")
def address(store: Store) -> Iterator[str]:
    note_everything(store)
    with serving(store.study._storage, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def test_the_detail_api_shows_the_study_as_it_is(store: Store, address: str) -> None:
    [summary] = get(f"{address}/api/studies")["study_summaries"]
    assert summary["study_name"] == "quickstart"
    detail = get(f"{address}/api/studies/{store.study._study_id}")
    assert detail["directions"] == ["maximize", "minimize"]
    assert detail["objective_names"] == ["saturated.output_tokens_per_s", "paced.e2e.p99 (s)"]
    states = [trial["state"] for trial in detail["trials"]]
    assert states == ["Complete", "Pruned", "Fail", "Complete", "Running", "Waiting"]
    assert {"only_choice", "max_num_seqs"} <= {p["name"] for p in detail["union_search_space"]}
    reasons = {a["key"]: a["value"] for a in detail["trials"][1]["user_attrs"]}
    assert "out_of_memory" in reasons["reason"]


def test_notes_say_what_failed_and_what_to_do(store: Store, address: str) -> None:
    detail = get(f"{address}/api/studies/{store.study._study_id}")
    assert detail["note"]["body"] == "**Deploy** `balanced`."
    notes = [trial["note"]["body"] for trial in detail["trials"]]
    assert notes[0] == "**baseline: vllm serve defaults**"
    assert "out_of_memory" in notes[1]
    assert "trials/1/engine.log" in notes[1]
    assert "engine_died" in notes[2]
    assert "misses a constraint" in notes[3]


def test_importances_and_the_page_answer(store: Store, address: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert get(f"{address}/api/studies/{store.study._study_id}/param_importances")
    with urllib.request.urlopen(f"{address}/dashboard", timeout=20) as page:
        assert b"<html" in page.read().lower()


def test_annotating_twice_writes_nothing_new(store: Store) -> None:
    note_everything(store)
    storage, study_id = store.study._storage, store.study._study_id
    before = storage.get_study_system_attrs(study_id)
    note_everything(store)
    assert storage.get_study_system_attrs(study_id) == before


def test_read_only_refuses_what_would_change_something(store: Store) -> None:
    with serving(store.study._storage, port=0, read_only=True) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/api/studies/{store.study._study_id}"
        try:
            assert get(url)["name"] == "quickstart"
            with pytest.raises(HTTPError, match="403") as refused:
                urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=20)
            refused.value.close()
        finally:
            server.shutdown()
            thread.join()
    assert len(store.study.trials) == len(OUTCOMES) + 2


def test_a_taken_port_is_an_error_with_a_way_out(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(StoreError, match=f"port {port} on 127.0.0.1 is taken") as error,
            serving(store.study._storage, port=port),
        ):
            pass
        assert f"--port {port + 1}" in error.value.hint


def test_a_good_trial_needs_no_note() -> None:
    assert trial_note(record(7, OUTCOMES[0])) == ""
    assert trial_note(record(7, OUTCOMES[0]), name="balanced") == "**preset: balanced**"


def test_a_trial_that_breaks_a_constraint_is_shown_as_infeasible(
    store: Store, address: str
) -> None:
    trials = get(f"{address}/api/studies/{store.study._study_id}")["trials"]
    # As stored: can an engine run, then the study's bounds.
    assert trials[0]["constraints"] == [0.0, -1.0]
    assert trials[3]["constraints"] == [0.0, 0.5]
    assert trials[1]["constraints"] == [1.0]


def test_samplers_do_not_see_what_the_dashboard_does(store: Store, address: str) -> None:
    get(f"{address}/api/studies/{store.study._study_id}")
    names = [set(trial.constraints) for trial in store.study.get_trials()]
    assert names[0] == {"can_run", "paced.error_share"}
    assert names[1] == {"can_run"}
    for trial in store.study.get_trials():
        assert "constraints" not in trial._system_attrs


def test_logs_and_pictures_are_artifacts_of_their_trials(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "trials" / "1"
    place.mkdir(parents=True)
    (place / "engine.log").write_text("CUDA out of memory")
    (place / "secret.txt").write_text("not shown")
    with serving(store.study._storage, port=0, folder=tmp_path, read_only=True) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            base, study_id = f"http://127.0.0.1:{server.server_port}", store.study._study_id
            trial = get(f"{base}/api/studies/{study_id}")["trials"][1]
            [artifact] = trial["artifacts"]
            assert (artifact["filename"], artifact["mimetype"]) == ("engine.log", "text/plain")
            url = f"{base}/artifacts/{study_id}/{trial['trial_id']}/{artifact['artifact_id']}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.read() == b"CUDA out of memory"
            with pytest.raises(HTTPError) as unknown:
                urllib.request.urlopen(url[:-4] + "0000", timeout=20)
            unknown.value.close()
        finally:
            server.shutdown()
            thread.join()


def test_the_study_s_own_files_are_not_removed(tmp_path: Path) -> None:
    place = tmp_path / "trials" / "0"
    place.mkdir(parents=True)
    (place / "engine.log").write_text("x")
    [key] = Files(tmp_path).of("s", 0)
    with pytest.raises(ArtifactNotFound):
        Files(tmp_path).remove(key.removeprefix("artifacts:"))
    assert (place / "engine.log").is_file()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the page is not drawn")
def test_the_study_s_page_is_not_blank(store: Store, address: str, tmp_path: Path) -> None:
    url = f"{address}/dashboard/studies/{store.study._study_id}/trials"
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [str(CHROMIUM), *flags, url], capture_output=True, text=True, timeout=120, check=True
    )
    text = re.sub(r"<[^>]*>", " ", done.stdout)
    assert "Trial 0" in text
    assert "Trial 2" in text
