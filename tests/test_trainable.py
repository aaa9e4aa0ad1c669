"""A study as a Ray Tune job: results, failures with their reasons, and engines that live on."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.processes import MARK, Family
from tests.study_case import load
from tuner.errors import EngineFault
from tuner.job import Job
from tuner.pools.spec import HostSpec
from tuner.records import Cost, Faulted, Infeasible, Measured, Measurement
from tuner.study import StudySpec
from tuner.trainable import _Measuring, tried

SPACE = """{
  knobs: {
    max-num-seqs: {int: [2, 64], log: true},
    block-size: {choice: [16, 32]},
    long-prefill-token-threshold: {choice: [64, 128], when: {block-size: 16}},
  },
  rules: [max_num_seqs * block_size <= 1024],
}"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import ray

    family = Family()
    monkeypatch.setenv(MARK, family.mark)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    family.gone()


def study(folder: Path, **sections: str) -> StudySpec:
    return load(folder, **{"space": SPACE, **sections})


def test_import_of_the_package_needs_no_ray() -> None:
    code = "import sys, tuner; sys.exit('ray' in sys.modules or 'optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.ray
@pytest.mark.timeout(200)
@pytest.mark.filterwarnings("ignore")  # Tune's own
def test_a_small_tune_run(tmp_path: Path, cluster: None) -> None:
    from ray import tune

    import tuner

    spec = study(tmp_path)
    first = [
        {"max_num_seqs": 8, "block_size": 32},
        {"max_num_seqs": 16, "block_size": 32},
        {"max_num_seqs": 64, "block_size": 32},
        {"max_num_seqs": 4, "block_size": 16, "long_prefill_token_threshold": 64},
    ]
    searcher = tuner.as_searcher(spec, points_to_evaluate=first)
    results = tune.Tuner(
        tuner.as_trainable(spec),
        tune_config=tune.TuneConfig(
            search_alg=searcher, num_samples=5, reuse_actors=True, max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not results.errors
    found = [result.metrics for result in results]
    asked = [{name: one["config"].get(name) for name in spec.space.names} for one in found]
    # Tune gives the first points in the order of the table above.
    assert [one["max_num_seqs"] for one in asked[:4]] == [8, 16, 64, 4]
    assert all((one["long_prefill_token_threshold"] is None) is (one["block_size"] == 32)
               for one in asked)  # fmt: skip
    # What differs in hot arguments only costs no start: the second lives on the first's engine.
    assert [one["outcome"] for one in found[:4]] == ["measured"] * 2 + ["infeasible", "measured"]
    assert [one["live"] for one in found if one["outcome"] == "measured"][:3] == [
        False,
        True,
        False,
    ]
    assert found[1]["start_s"] == 0 < found[1]["reconfigure_s"] < found[0]["start_s"]
    objectives = [objective.metric for objective in spec.objectives]
    assert all(found[0][metric] > 0 for metric in objectives)
    assert all(math.isnan(found[2][metric]) for metric in objectives)
    assert "max_num_seqs * block_size <= 1024" in found[2]["detail"]
    states = [trial.state.name for trial in searcher._ot_study.trials]
    assert states[:4] == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


def measuring(folder: Path) -> _Measuring:
    return _Measuring(study(folder), HostSpec("simulated"))


def test_a_run_that_breaks_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineFault, match="stalled: no token for 120 s"):
        measuring(tmp_path).result(Faulted("stalled", "no token for 120 s"), Cost())
    half = Measured(Measurement({"saturated.output_tokens_per_s": 1.0}))
    with pytest.raises(EngineFault, match=r"no_result: no value for paced\.e2e\.p99"):
        measuring(tmp_path).result(half, Cost())


def test_a_configuration_that_cannot_run_has_no_scores_and_a_reason(tmp_path: Path) -> None:
    found = measuring(tmp_path).result(Infeasible("out_of_memory", "no room"), Cost(start_s=3))
    assert (found["outcome"], found["reason"], found["detail"]) == (
        "infeasible",
        "out_of_memory",
        "no room",
    )
    assert math.isnan(found["paced.e2e.p99"])
    assert found["start_s"] == 3
    assert found["done"] is True


def test_a_second_try_costs_what_both_took(tmp_path: Path) -> None:
    """The first one started the engine; without it the start would seem to be free."""
    found = Measured(Measurement({"saturated.output_tokens_per_s": 1.0, "paced.e2e.p99": 1.0}))
    answers = [
        (Faulted("late", "fell behind", engine_ok=True), Cost(start_s=20, replay_s=5, gpus=2)),
        (found, Cost(reconfigure_s=1, replay_s=6, gpus=2)),
    ]
    outcome, cost = tried(lambda job: answers.pop(0), cast("Job", None))
    assert outcome == found
    assert cost == Cost(start_s=20, reconfigure_s=1, replay_s=11, gpus=2)
    gone = (Faulted("engine_died", "x"), Cost(start_s=3))
    assert tried(lambda job: gone, cast("Job", None)) == gone
