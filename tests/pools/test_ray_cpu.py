"""Engines on the CPU: a stated number of cores each, no two on the same ones."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.contracts.pool import WAIT_S
from tests.pools.fakes import a_job, a_spec
from tuner.errors import TunerError
from tuner.pools.ray import RayPool
from tuner.pools.slots import Capacity
from tuner.records import Measured

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_engines_on_the_cpu_get_cores_of_their_own(tmp_path: Path) -> None:
    with RayPool(a_spec(), Capacity(cpus_per_engine=1, slots=2)) as pool:
        pool.submit(a_job(1, tmp_path, tensor_parallel_size=2))
        pool.submit(a_job(2, tmp_path))
        assert not pool.has_room(1)
        done = [pool.collect(WAIT_S), pool.collect(WAIT_S)]
    facts = [d[1].measurement.facts for d in done if d and isinstance(d[1], Measured)]
    assert [len(fact["cores"]) for fact in facts] == [1, 1]
    assert facts[0]["cores"] != facts[1]["cores"]


def test_a_machine_without_gpus_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tuner.pools.ray.connected", lambda *_: nullcontext())
    monkeypatch.setattr(RayPool, "_nodes", lambda pool: {"here": 0})
    pool = RayPool(a_spec())
    with pytest.raises(TunerError, match="no GPUs for one engine") as caught, pool:
        pass
    assert "cpus" in caught.value.hint
