"""The environment that an engine host starts with."""

from __future__ import annotations

import pytest

from tuner.pools.spec import HostSpec
from tuner.pools.worker import Place, host_environment


def test_the_hosts_environment_is_the_users_without_rays_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_JOB_ID", "OMP_NUM_THREADS", "VLLM_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    env = host_environment(HostSpec("vllm"), {}, Place(3))
    assert not {"RAY_JOB_ID", "OMP_NUM_THREADS", "VLLM_PORT"} & set(env)
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert env["TUNER_SLOT"] == "3"


def test_the_configuration_wins_over_the_pool_and_the_slot_over_both() -> None:
    spec = HostSpec("vllm", env={"A": "pool", "B": "pool", "VLLM_PORT": "5000"})
    env = host_environment(spec, {"A": "config", "TUNER_SLOT": "9"}, Place(1, cores=(4, 5)))
    assert (env["A"], env["B"], env["TUNER_SLOT"]) == ("config", "pool", "1")
    assert env["TUNER_CORES"] == "4,5"
    assert "VLLM_PORT" not in env
