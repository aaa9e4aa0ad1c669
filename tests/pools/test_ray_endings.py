"""Whatever dies, no process of ours stays, strangers live on, and the study goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import MARK, Family, until

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parent.parent.parent
#: Ctrl-C reaches the driver's process group: it must be one of its own here.
OWN_GROUP = {"start_new_session": True}


class Driver:
    """The driver script as a child process."""

    def __init__(self, directory: Path) -> None:
        self.family = Family()
        self.directory = directory
        self.errors = directory / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pools.driver", str(directory)],
                cwd=ROOT,
                env={**os.environ, MARK: self.family.mark},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **OWN_GROUP,
            )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, **command: object) -> dict[str, Any]:
        self.tell(**command)
        return self.answer()

    def collect(self) -> dict[str, Any]:
        return self.ask(command="collect", timeout_s=120)

    def hang(self, number: int) -> None:
        """Start a job that hangs, and wait for its engine processes."""
        self.ask(command="submit", number=number, do="hang")
        until((self.directory / str(number) / "engine.pid").exists, 120)
        until(lambda: len(self.family.named("time.sleep(600)")) >= 3)

    def ends(self) -> int:
        return self.process.wait(60)


@pytest.fixture(scope="module")
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else that looks much like one of ours."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "tuner.pools.host"]
    with subprocess.Popen(command) as process:
        yield process
        process.kill()


@pytest.fixture
def driver(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    try:
        assert driver.answer() == {"ready": True}
        yield driver
        assert bystander.poll() is None
    finally:
        driver.process.kill()
        for stream in (driver.process.stdin, driver.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        driver.process.wait()
        driver.family.gone()


def worker(driver: Driver) -> None:
    (actor,) = driver.family.named("ray::SlotWorker")
    actor.kill()


def host(driver: Driver) -> None:
    driver.family.module("tuner.pools.host").kill()


def supervisor(driver: Driver) -> None:
    driver.family.module("tuner.pools.supervisor").kill()


@pytest.mark.timeout(300)
def test_kills_and_ctrl_c_cost_at_most_the_job_and_a_normal_end_is_silent(driver: Driver) -> None:
    victims: list[tuple[Callable[[Driver], None], str]] = [
        (worker, "worker_lost"),
        (host, "engine_died"),
        (supervisor, "engine_died"),
    ]
    for number, (kill, reason) in enumerate(victims):
        driver.hang(number)
        kill(driver)
        done = driver.collect()
        assert (done["number"], done["reason"]) == (number, reason)
        until(lambda: not driver.family.named("time.sleep(600)"), 15, "the engine is gone")
        driver.ask(command="submit", number=number + 10, do="measure")
        assert driver.collect()["measured"]

    file = driver.directory / "go on"
    driver.ask(command="submit", number=20, do="until", file=str(file))
    assert driver.ask(command="collect", timeout_s=1)["number"] is None
    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.ask(command="collect", timeout_s=2) == {"number": None, "interrupts": 1}
    file.touch()
    assert driver.collect()["measured"]

    driver.family.look()
    assert driver.process.stdin is not None
    driver.process.stdin.close()
    assert driver.ends() == 0
    driver.family.gone(5)
    assert driver.errors.read_text() == ""


def raises(driver: Driver) -> int:
    driver.tell(command="raise")
    return 1


def is_terminated(driver: Driver) -> int:
    driver.tell(command="collect", timeout_s=100)
    driver.process.terminate()
    return 128 + signal.SIGTERM


def is_killed(driver: Driver) -> int:
    driver.process.kill()
    return -signal.SIGKILL


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ending", [raises, is_terminated, is_killed])
def test_nothing_is_left_when_the_driver(driver: Driver, ending: Callable[[Driver], int]) -> None:
    driver.hang(1)
    code = ending(driver)
    assert driver.ends() == code, driver.errors.read_text()
    driver.family.gone()
