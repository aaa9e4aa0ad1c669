"""What one study learned about configurations that can never start serves the next one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.study_case import load as load_study
from tests.test_tune import answering, good, loop
from tests.vllm_words import CPU_FREE, FREE, KV_LEN
from tuner import knowledge
from tuner.cli import app
from tuner.config import EngineConfig
from tuner.events import TrialFinished
from tuner.job import Job
from tuner.knowledge import (
    Knowledge,
    Scope,
    Verdict,
    config_key,
    forget,
    keep,
    knowing,
    lasts,
    load,
)
from tuner.records import Cost, Faulted, Infeasible, Measured, Measurement, Outcome, TrialRecord

SCOPE = Scope("0.32.0", "a device", "0123456789abcdef")
BLOCK = "ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)])"
TODAY = datetime(2026, 3, 4, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "of the user" / "knowledge.json"
    monkeypatch.setenv(knowledge.VARIABLE, str(path))
    return path


def known_at(path: Path, scope: Scope = SCOPE, said: list[str] | None = None) -> Knowledge:
    found = Knowledge.read(path, scope, "first", (said if said is not None else []).append)
    found.now = lambda: TODAY
    return found


def ended(outcome: Outcome, start_s: float = 60.0, **args: object) -> TrialFinished:
    record = TrialRecord(0, EngineConfig("m", args), {}, outcome, cost=Cost(start_s=start_s))
    return TrialFinished(record, [])


def test_what_one_study_learned_the_next_one_does_not_start(tmp_path: Path, file: Path) -> None:
    started: set[str] = set()
    vain: set[str] = set()

    def picky(job: Job) -> Outcome:
        key = config_key(job.config)
        started.add(key)
        if job.config.args["max_num_seqs"] <= 8:
            return good(job)
        vain.add(key)
        return Infeasible("unsupported_by_hardware", "no kernel")

    def study(name: str) -> list[TrialRecord]:
        memory = known_at(file)
        running = loop(tmp_path / name, answering(picky), check=memory.check, observers=[memory])
        running.run()
        return running.store.records()

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    study("one")
    before = set(vain)
    assert before
    started.clear()
    records = study("two")
    assert not started & before
    again = [r.outcome for r in records if config_key(r.config) in before]
    assert again
    assert isinstance(again[0], Infeasible)
    assert "known from study first of 2026-03-04, not started again" in again[0].detail


def test_a_blamed_value_blocks_its_region_once(file: Path) -> None:
    memory = known_at(file)
    memory.on_event(ended(Infeasible("unsupported_by_hardware", BLOCK), block_size=8, a=1))
    assert memory.check(EngineConfig("m", {"block_size": 8, "a": 2})) is not None
    assert memory.check(EngineConfig("m", {"block_size": 32, "a": 1})) is None
    memory.on_event(ended(Infeasible("unsupported_by_hardware", BLOCK), block_size=8, a=3))
    assert len(load(file)[0]) == 1


def test_without_a_blamed_value_only_the_configuration_is_known(file: Path) -> None:
    memory = known_at(file)
    memory.on_event(ended(Infeasible("out_of_memory", KV_LEN), max_model_len=8192, a=1))
    assert memory.check(EngineConfig("elsewhere/m", {"max_model_len": 8192, "a": 1})) is not None
    assert memory.check(EngineConfig("m", {"max_model_len": 8192, "a": 2})) is None


@pytest.mark.parametrize(
    ("reason", "detail", "kept"),
    [
        ("out_of_memory", KV_LEN, True),
        ("out_of_memory", "CUDA out of memory.\nwhen: capturing CUDA graphs", True),
        ("out_of_memory", "CUDA out of memory.\nwhen: answering requests", False),
        ("out_of_memory", CPU_FREE, False),
        ("out_of_memory", "CUDA out of memory.", False),
        ("unsupported_by_hardware", BLOCK, True),
        ("invalid_arguments", "no", True),
        ("model_too_long", "the longest request needs 9 tokens, max_model_len is 8", False),
        ("too_few_gpus", "needs 8 GPUs at once", False),
    ],
)
def test_only_what_follows_from_the_configuration_is_kept(
    reason: str, detail: str, kept: bool, file: Path
) -> None:
    assert lasts(Infeasible(reason, detail)) is kept
    known_at(file).on_event(ended(Infeasible(reason, detail), block_size=8))
    assert bool(load(file)[0]) is kept


def test_weather_and_what_was_never_started_are_not_kept(file: Path) -> None:
    memory = known_at(file)
    memory.on_event(ended(Faulted("gpu_busy", FREE)))
    memory.on_event(ended(Infeasible("invalid_arguments", "static"), start_s=0.0))
    assert not file.exists()


@pytest.mark.parametrize("change", ["vllm", "device", "model"])
def test_nothing_is_known_elsewhere(file: Path, change: str) -> None:
    known_at(file).on_event(ended(Infeasible("invalid_arguments", "x"), a=1))
    assert known_at(file).check(EngineConfig("m", {"a": 1})) is not None
    other = replace(SCOPE, **{change: "another"})
    assert known_at(file, other).check(EngineConfig("m", {"a": 1})) is None


@pytest.mark.parametrize("text", ["", "{", '{"format": 99, "verdicts": []}', '{"format": 1}', "[]"])
def test_a_file_that_cannot_be_read_is_told_and_set_aside(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    said: list[str] = []
    memory = known_at(file, said=said)
    assert "cannot be read and is not used" in said[0]
    assert memory.check(EngineConfig("m")) is None
    memory.on_event(ended(Infeasible("invalid_arguments", "x")))
    assert len(load(file)[0]) == 1
    assert Path(f"{file}.broken").read_text() == text


def test_a_file_that_cannot_be_written_does_not_end_the_study(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    said: list[str] = []
    memory = known_at(blocked / "knowledge.json", said=said)
    memory.on_event(ended(Infeasible("invalid_arguments", "x"), a=1))
    assert "cannot be written" in said[-1]
    assert memory.check(EngineConfig("m", {"a": 1})) is not None


def verdict(number: int) -> Verdict:
    return Verdict(SCOPE, f"{number}", "invalid_arguments", "x", args={"a": number})


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tuner.knowledge import *\n"
        "path, first = Path(sys.argv[1]), int(sys.argv[2])\n"
        "for n in range(first, first + 10):\n"
        "    keep(path, [Verdict(Scope('v', 'd', 'm'), str(n), 'r', 'd')])\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(file), str(first)], env=os.environ)
        for first in (0, 100)
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    assert len(load(file)[0]) == 20


def test_it_is_listed_and_forgotten(file: Path) -> None:
    run = CliRunner().invoke
    assert "nothing is known" in run(app, ["knowledge", "list"]).output
    keep(file, [verdict(1), verdict(2), verdict(3)])
    listed = json.loads(run(app, ["knowledge", "list", "--json"]).output)
    assert [one["args"] for one in listed] == [{"a": 1}, {"a": 2}, {"a": 3}]
    table = run(app, ["knowledge", "list"]).output
    assert listed[0]["key"] in table
    assert "a=1" in table
    gone = run(app, ["knowledge", "forget", listed[0]["key"], "--json"])
    assert json.loads(gone.output) == {"forgotten": [listed[0]["key"]]}
    assert len(load(file)[0]) == 2
    unknown = run(app, ["knowledge", "forget", "nonsense"])
    assert unknown.exit_code == 2
    assert run(app, ["knowledge", "forget"]).exit_code == 2
    assert "forgotten: 2" in run(app, ["knowledge", "forget", "--all"]).output
    assert load(file) == ([], "")
    assert forget(file) == []


def test_a_simulated_engine_and_a_cluster_elsewhere_are_not_known(
    tmp_path: Path, file: Path
) -> None:
    say: list[str] = []
    assert knowing(load_study(tmp_path), "0.32.0", say.append) is None
    there = load_study(tmp_path, engine="{kind: vllm}", ray="{address: auto}")
    assert knowing(there, "0.32.0", say.append) is None
    here = knowing(load_study(tmp_path, engine="{kind: vllm}"), "0.32.0", say.append)
    assert here is not None
    assert (here.path, here.scope.vllm) == (file, "0.32.0")
    assert here.scope.device


def test_the_measured_are_not_verdicts(file: Path) -> None:
    known_at(file).on_event(ended(Measured(Measurement({}))))
    assert not file.exists()


def test_a_machine_with_more_gpus_is_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(count: int) -> str:
        found = {"gpus": ["H200"] * count, "gpu_memory_bytes": [141 << 30] * count}
        monkeypatch.setattr("tuner.machine.hardware", lambda: found)
        return knowledge._device()

    assert here(4) != here(8)


def test_a_file_that_cannot_be_changed_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(knowledge.VARIABLE, str(tmp_path / "file" / "knowledge.json"))
    done = CliRunner().invoke(app, ["knowledge", "forget", "--all"])
    assert done.exit_code == 1
    assert "knowledge.json cannot be written: " in done.stderr
