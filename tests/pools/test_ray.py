"""The Ray pool on a Ray of its own: the contract, reuse, devices, and a second cluster's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.pool import WAIT_S, PoolContract, Watching
from tests.pools.fakes import a_job, a_spec
from tuner.errors import TunerError
from tuner.pools.ray import RayPool
from tuner.pools.slots import Capacity
from tuner.records import Measured

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]

_WATCHING = Watching()


@pytest.fixture(scope="module")
def ray_pool() -> Iterator[RayPool]:
    with RayPool(a_spec(), Capacity(gpus=2, slots=2), observer=_WATCHING) as pool:
        yield pool


def facts(pool: RayPool, directory: Path, number: int, **args: Any) -> dict[str, Any]:
    """Measure a job; return what its host saw."""
    pool.submit(a_job(number, directory, **args))
    done = pool.collect(WAIT_S)
    assert done is not None
    assert isinstance(done[1], Measured), done[1]
    return dict(done[1].measurement.facts)


class TestRayPool(PoolContract):
    @pytest.fixture
    def watching(self) -> Watching:
        return _WATCHING

    @pytest.fixture
    def pool(self, ray_pool: RayPool) -> RayPool:
        assert ray_pool.busy == 0
        return ray_pool

    def collect_after(self, pool: RayPool, file: Path) -> object:  # type: ignore[override]
        for _ in range(int(WAIT_S)):
            assert pool.collect(1.0) is None
            if _WATCHING.phases(18)[-1:] == ["paced"]:
                break
        file.touch()
        return pool.collect(WAIT_S)


def test_a_host_is_kept_for_the_next_job_and_replaced_for_another_environment(
    ray_pool: RayPool, tmp_path: Path
) -> None:
    first, second = (facts(ray_pool, tmp_path, n, tensor_parallel_size=2) for n in (1, 2))
    assert (first["pid"], second["jobs"]) == (second["pid"], first["jobs"] + 1)
    other = facts(ray_pool, tmp_path, 3, tensor_parallel_size=2, env={"VLLM_X": "1"})
    assert other["pid"] != first["pid"]
    assert other["env"]["VLLM_X"] == "1"


def test_an_engine_sees_its_own_devices_and_nothing_of_ray(
    ray_pool: RayPool, tmp_path: Path
) -> None:
    env = facts(ray_pool, tmp_path, 1, tensor_parallel_size=2)["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert not [name for name in env if name.startswith("RAY_")]
    ray_pool.submit(a_job(2, tmp_path))
    ray_pool.submit(a_job(3, tmp_path))
    done = [ray_pool.collect(WAIT_S), ray_pool.collect(WAIT_S)]
    seen = [d[1].measurement.facts["env"] for d in done if d and isinstance(d[1], Measured)]
    assert sorted(env["CUDA_VISIBLE_DEVICES"] for env in seen) == ["0", "1"]
    assert len({env["TUNER_SLOT"] for env in seen}) == 2


def test_a_second_ray_of_ours_in_one_process_is_refused_with_a_reason(ray_pool: RayPool) -> None:
    with pytest.raises(TunerError, match="uses Ray already"), RayPool(a_spec(), Capacity()):
        pass
    assert ray_pool.has_room(1)
