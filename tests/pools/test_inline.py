"""The pool of this process: the contract, and virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.pool import PoolContract, Watching
from tests.pools import fakes
from tuner.engines.simulated import SimulatedLauncher
from tuner.evaluate import evaluate
from tuner.pools.inline import InlinePool
from tuner.records import Measured


class TestInlinePool(PoolContract):
    @pytest.fixture
    def watching(self) -> Watching:
        return Watching()

    @pytest.fixture
    def pool(self, watching: Watching) -> Iterator[InlinePool]:
        launcher = fakes.FakeLauncher()
        with InlinePool(launcher, fakes.evaluate, slots=2, gpus=2, observer=watching) as pool:
            yield pool


def test_a_simulated_engine_is_measured_in_virtual_time(tmp_path: Path) -> None:
    with InlinePool(SimulatedLauncher(), evaluate) as pool:
        pool.submit(fakes.a_job(1, tmp_path))
        done = pool.collect(0.0)
    assert done is not None
    _, outcome, cost = done
    assert isinstance(outcome, Measured), outcome
    assert cost.start_s > 1.0
    assert outcome.measurement.values["saturated.output_tokens_per_s"] > 0


def test_leaving_forgets_what_was_not_collected(tmp_path: Path) -> None:
    with InlinePool(SimulatedLauncher(), evaluate) as pool:
        pool.submit(fakes.a_job(1, tmp_path))
    assert pool.busy == 0
