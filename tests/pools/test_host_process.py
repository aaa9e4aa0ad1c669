"""A host and its supervisor, without Ray: jobs, deadlines, and every way to die."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.pools.fakes import a_job, a_spec
from tests.processes import MARK, Family, runs, until
from tuner.job import Deadlines
from tuner.pools.host_process import HostProcess, Limits, log_tail
from tuner.pools.spec import HostSpec
from tuner.pools.worker import Place, host_environment
from tuner.records import Faulted, Measured

SHORT = Deadlines(start_s=0.1, trial_s=0.1)


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    family.gone()


@contextmanager
def a_host(family: Family, directory: Path, spec: HostSpec | None = None) -> Iterator[HostProcess]:
    spec = spec or a_spec()
    env = host_environment(spec, {MARK: family.mark}, Place(0))
    host = HostProcess.start(spec, env, directory)
    try:
        yield host
    finally:
        host.end()
        host.close()


def no_phase(phase: str) -> None:
    pass


def started_engine(family: Family, directory: Path) -> list[psutil.Process]:
    """Wait until the hanging job's processes are there; return those with a long sleep."""
    until((directory / "engine.pid").exists)
    until(lambda: len(family.named("time.sleep(600)")) >= 3)
    return family.named("time.sleep(600)")


@contextmanager
def hanging_job(host: HostProcess, directory: Path) -> Iterator[list[object]]:
    """Run a job that hangs, in a thread; its result is in the list after the body."""
    results: list[object] = []
    job = a_job(1, directory, do="hang")
    thread = threading.Thread(target=lambda: results.append(host.run(job, Limits(), no_phase)))
    thread.start()
    yield results
    thread.join(30)
    assert not thread.is_alive()


def test_one_host_serves_many_jobs_and_logs_into_each_ones_directory(
    family: Family, tmp_path: Path
) -> None:
    phases: list[str] = []
    with a_host(family, tmp_path / "1") as host:
        first = host.run(a_job(1, tmp_path), Limits(), phases.append)
        second = host.run(a_job(2, tmp_path), Limits(), phases.append)
    assert first is not None
    assert second is not None
    assert isinstance(first[0], Measured)
    assert isinstance(second[0], Measured)
    facts = [first[0].measurement.facts, second[0].measurement.facts]
    assert facts[0]["pid"] == facts[1]["pid"]
    assert [fact["jobs"] for fact in facts] == [1, 2]
    assert phases == ["starting engine", "paced"] * 2
    assert all((tmp_path / number / "host.log").exists() for number in ("1", "2"))


def test_the_simulated_engine_runs_in_a_host_in_virtual_time(
    family: Family, tmp_path: Path
) -> None:
    with a_host(family, tmp_path, HostSpec("simulated")) as host:
        result = host.run(a_job(1, tmp_path), Limits(), no_phase)
    assert result is not None
    assert isinstance(result[0], Measured), result[0]


def test_a_host_that_exits_says_how_and_its_last_words_are_kept(
    family: Family, tmp_path: Path
) -> None:
    with a_host(family, tmp_path / "1") as host:
        assert host.run(a_job(1, tmp_path, do="exit"), Limits(), no_phase) is None
        assert host.end(wait_s=15) == "the engine host exited with code 7"
    assert log_tail(tmp_path / "1") == ["host.log ends with:", "the last words of a host"]


def test_a_host_that_cannot_load_its_launcher_says_so(family: Family, tmp_path: Path) -> None:
    with a_host(family, tmp_path / "1", HostSpec("no.such:Launcher")) as host:
        assert host.run(a_job(1, tmp_path), Limits(), no_phase) is None
    assert any("cannot load 'no.such:Launcher'" in line for line in log_tail(tmp_path / "1"))


@pytest.mark.parametrize(
    ("do", "reason"), [("stuck start", "launch_timeout"), ("stuck", "deadline")]
)
def test_a_host_that_no_longer_answers_is_ended(
    family: Family, tmp_path: Path, do: str, reason: str
) -> None:
    with a_host(family, tmp_path) as host:
        job = replace(a_job(1, tmp_path, do=do), deadlines=SHORT)
        result = host.run(job, Limits(slack_s=0.2), no_phase)
        assert result is not None
        assert isinstance(result[0], Faulted)
        assert result[0].reason == reason
        assert not host.alive
    family.gone(1.0)


def test_a_stop_breaks_off_the_job_and_ends_its_processes(family: Family, tmp_path: Path) -> None:
    with a_host(family, tmp_path) as host, hanging_job(host, tmp_path) as results:
        started_engine(family, tmp_path / "1")
        host.stop(10.0)
    assert isinstance(results[0], tuple)
    assert results[0][0] == Faulted("cancelled", "stopped before it was done")


@pytest.mark.parametrize("victim", ["supervisor", "host"])
def test_a_killed_half_takes_the_other_and_the_engine_with_it(
    family: Family, tmp_path: Path, victim: str
) -> None:
    with a_host(family, tmp_path) as host, hanging_job(host, tmp_path) as results:
        engine = started_engine(family, tmp_path / "1")
        family.module(f"tuner.pools.{victim}").send_signal(signal.SIGKILL)
        family.gone()
        assert not any(map(runs, engine))
    assert results == [None]


def test_a_worker_that_is_gone_ends_everything(family: Family, tmp_path: Path) -> None:
    with a_host(family, tmp_path) as host, hanging_job(host, tmp_path):
        started_engine(family, tmp_path / "1")
        host._link.shutdown(socket.SHUT_RDWR)  # what the supervisor sees of a killed worker
        family.gone()


def test_ctrl_c_is_not_the_hosts_to_handle(family: Family, tmp_path: Path) -> None:
    with a_host(family, tmp_path) as host:
        assert host.run(a_job(1, tmp_path), Limits(), no_phase) is not None
        for process in family.named("tuner.pools"):
            process.send_signal(signal.SIGINT)
        second = host.run(a_job(2, tmp_path), Limits(), no_phase)
        assert second is not None
        assert isinstance(second[0], Measured)
        assert os.getsid(host.id.pid) == host.id.pid
