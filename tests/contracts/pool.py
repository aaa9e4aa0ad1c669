"""What every pool does, whatever it runs jobs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pools.fakes import a_job
from tuner.errors import TunerError
from tuner.events import Event, SlotPhase
from tuner.pools import Pool
from tuner.records import Faulted, Infeasible, Measured

WAIT_S = 120.0


class Watching:
    """An observer that keeps what it saw."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def phases(self, trial: int) -> list[str]:
        return [e.phase for e in self.events if isinstance(e, SlotPhase) and e.trial == trial]


class PoolContract:
    """Subclasses give ``pool``: entered, idle, two slots, two GPUs, running ``tests.pools.fakes``
    and telling ``watching``."""

    @pytest.fixture
    def pool(self) -> Pool:
        raise NotImplementedError

    @pytest.fixture
    def watching(self) -> Watching:
        raise NotImplementedError

    def test_a_measured_job_comes_back_with_its_outcome_and_cost(
        self, pool: Pool, tmp_path: Path
    ) -> None:
        pool.submit(a_job(11, tmp_path))
        assert pool.busy == 1
        done = pool.collect(WAIT_S)
        assert done is not None
        job, outcome, cost = done
        assert (job.number, cost.replay_s, pool.busy) == (11, 2.0, 0)
        assert isinstance(outcome, Measured)
        assert outcome.measurement.values == {"paced.e2e.p99": 1.0}

    def test_a_rejected_configuration_is_infeasible(self, pool: Pool, tmp_path: Path) -> None:
        pool.submit(a_job(12, tmp_path, do="reject"))
        done = pool.collect(WAIT_S)
        assert done is not None
        assert done[1] == Infeasible("out_of_memory", "too big")

    def test_an_exception_is_a_fault_that_names_it(self, pool: Pool, tmp_path: Path) -> None:
        pool.submit(a_job(13, tmp_path, do="raise"))
        done = pool.collect(WAIT_S)
        assert done is not None
        assert isinstance(done[1], Faulted)
        assert done[1].reason == "host_error"
        assert "LookupError: a bug" in done[1].detail

    def test_nothing_to_collect_is_none(self, pool: Pool) -> None:
        assert pool.busy == 0
        assert pool.collect(0.0) is None

    def test_every_job_of_a_full_pool_comes_back_once(self, pool: Pool, tmp_path: Path) -> None:
        for number in (14, 15):
            assert pool.has_room(1)
            pool.submit(a_job(number, tmp_path))
        assert not pool.has_room(1)
        done = [pool.collect(WAIT_S), pool.collect(WAIT_S)]
        assert sorted(result[0].number for result in done if result) == [14, 15]
        assert pool.has_room(1)

    def test_a_job_larger_than_the_pool_has_no_room(self, pool: Pool, tmp_path: Path) -> None:
        assert pool.has_room(2)
        assert not pool.has_room(3)
        with pytest.raises(TunerError, match="no room for 3 GPUs"):
            pool.submit(a_job(16, tmp_path, tensor_parallel_size=3))
        assert pool.busy == 0

    def test_gpus_in_use_are_not_given_twice(self, pool: Pool, tmp_path: Path) -> None:
        pool.submit(a_job(17, tmp_path, tensor_parallel_size=2))
        assert not pool.has_room(1)
        done = pool.collect(WAIT_S)
        assert done is not None
        assert isinstance(done[1], Measured)
        assert pool.has_room(2)

    def test_phases_are_told_and_end_idle(
        self, pool: Pool, watching: Watching, hold: Callable[[int, Path], None], tmp_path: Path
    ) -> None:
        hold(18, tmp_path)
        assert watching.phases(18)[-1] == "paced"
        last = watching.events[-1]
        assert isinstance(last, SlotPhase)
        assert (last.trial, last.phase) == (None, "idle")

    @pytest.fixture
    def hold(self, pool: Pool) -> Callable[[int, Path], None]:
        """Run a job until its phase has been told, then let it end."""

        def run(number: int, directory: Path) -> None:
            file = directory / "go on"
            pool.submit(a_job(number, directory, do="until", file=str(file)))
            assert self.collect_after(pool, file) is not None

        return run

    def collect_after(self, pool: Pool, file: Path) -> object:
        """Collect once the job may end; a pool that runs jobs meanwhile overrides this."""
        file.touch()
        return pool.collect(WAIT_S)
