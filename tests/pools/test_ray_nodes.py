"""A cluster that was there before, and a node of it that dies."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.pool import WAIT_S
from tests.pools.fakes import a_job, a_spec
from tests.processes import MARK, Family, until
from tuner.errors import TunerError
from tuner.pools.ray import RayPool
from tuner.pools.slots import Capacity
from tuner.records import Faulted, Measured

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(280),
    # Ray's test cluster kills its processes and does not wait for them.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without GPUs; tests add nodes."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    try:
        yield cluster
    finally:
        cluster.shutdown()
        del cluster
        gc.collect()  # here, where its warnings are expected


def test_a_lost_node_costs_the_job_and_the_study_goes_on_elsewhere(
    cluster: Any, tmp_path: Path
) -> None:
    family = Family()
    doomed = cluster.add_node(num_cpus=0, num_gpus=1)
    with RayPool(a_spec(**{MARK: family.mark}), Capacity(), cluster.address) as pool:
        pool.submit(a_job(1, tmp_path, do="hang"))
        until((tmp_path / "1" / "engine.pid").exists)
        cluster.add_node(num_cpus=0, num_gpus=1)
        cluster.remove_node(doomed, allow_graceful=False)
        lost = pool.collect(WAIT_S)
        assert lost is not None
        assert isinstance(lost[1], Faulted)
        assert lost[1].reason == "worker_lost"
        family.gone()
        until(lambda: pool.has_room(1))
        pool.submit(a_job(2, tmp_path))
        done = pool.collect(WAIT_S)
        assert done is not None
        assert isinstance(done[1], Measured), done[1]
    family.gone()


def test_a_cluster_that_is_not_there_is_said_so() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        pool = RayPool(a_spec(), Capacity(), address)
        with pytest.raises(TunerError, match=r"cannot use Ray .*refused"), pool:
            pass


def test_no_node_left_is_an_error_and_not_a_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayPool, "_nodes", lambda pool: {"head": 0})
    with pytest.raises(TunerError, match="lost every node"):
        RayPool(a_spec()).has_room(1)
