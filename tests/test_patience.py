"""A start is waited for while it shows progress, and no longer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.test_tune import trace
from tuner.config import EngineConfig
from tuner.engines.simulated import SimulatedLauncher
from tuner.evaluate import evaluate
from tuner.job import Deadlines, Job, Workload
from tuner.records import Faulted, Outcome

DEADLINES = Deadlines(start_s=1000.0)


class Slow(SimulatedLauncher):
    """Takes ``needs_s`` to start, and writes to its log every ten seconds for ``talks_s``."""

    needs_s = 0.0
    talks_s = 0.0

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[object]:
        for second in range(0, int(self.needs_s), 10):
            if second < self.talks_s:
                with open(log, "a") as file:  # noqa: ASYNC230 - virtual time
                    file.write(f"tuned {second} kernels\n")
            await asyncio.sleep(10.0)
        async with super().launch(config, log) as engine:
            yield engine


def started(folder: Path, needs_s: float, talks_s: float) -> Outcome:
    launcher = type("Slower", (Slow,), {"needs_s": needs_s, "talks_s": talks_s})()
    job = Job(0, EngineConfig("m"), Workload("w", trace(20)), str(folder), DEADLINES)
    return SimulatedLauncher.run(evaluate(job, launcher, lambda phase: None))[0]


def test_a_start_that_shows_progress_may_take_longer_than_its_deadline(tmp_path: Path) -> None:
    assert not isinstance(started(tmp_path, needs_s=1100, talks_s=1100), Faulted)


def test_a_silent_start_ends_at_its_deadline(tmp_path: Path) -> None:
    outcome = started(tmp_path, needs_s=5000, talks_s=295)
    assert isinstance(outcome, Faulted)
    assert outcome.reason == "launch_timeout"
    assert outcome.detail.startswith("no token within 1000 s; the engine said nothing for 700 s")
    assert outcome.detail.endswith("its last line: tuned 290 kernels")


def test_an_engine_that_falls_silent_after_its_deadline_is_given_up_soon(tmp_path: Path) -> None:
    outcome = started(tmp_path, needs_s=5000, talks_s=1195)
    assert isinstance(outcome, Faulted)
    assert "no token within 1300 s" in outcome.detail


def test_progress_is_no_excuse_for_ever(tmp_path: Path) -> None:
    outcome = started(tmp_path, needs_s=5000, talks_s=5000)
    assert isinstance(outcome, Faulted)
    assert "no token within 2000 s; the engine was still at work" in outcome.detail


@pytest.mark.parametrize("start_s", [1.0, 900.0])
def test_the_longest_start_is_a_multiple_of_the_deadline(start_s: float) -> None:
    assert Deadlines(start_s=start_s).start_at_most_s == 2 * start_s
