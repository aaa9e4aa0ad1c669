"""``tuner check`` and the search beside it: what is known before a start costs none."""

import json
from pathlib import Path

import pytest

from tests.study_case import load
from tuner import machine
from tuner.beforehand import checking, predicting, refusing
from tuner.config import EngineConfig
from tuner.engines.simulated import SimulatedCosts, SimulatedLauncher
from tuner.evaluate import evaluate
from tuner.job import Job
from tuner.pools.inline import InlinePool
from tuner.preview import Preview, preview
from tuner.records import Infeasible, Measured
from tuner.store import Store, sqlite_url
from tuner.strategies.plain import Plain
from tuner.study import StudySpec
from tuner.tune import Loop

MODELS = Path(__file__).parents[1] / "studies" / "models"

WORKLOAD = (
    "{synthetic: {requests: 20, prompt_tokens: {lognormal: {median: 60, p99: 200}}, "
    "output_tokens: 20}}"
)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)


def study(folder: Path, model: str, space: str, **sections: str) -> StudySpec:
    return load(
        folder,
        model=f"{{path: {MODELS / model}, load_format: dummy, skip_tokenizer_init: true}}",
        engine="{kind: vllm, args: {max-model-len: 4096}}",
        workload=WORKLOAD,
        space=space,
        **sections,
    )


@pytest.fixture
def checked(tmp_path: Path, no_gpus: None) -> tuple[StudySpec, Preview]:
    space = (
        "{knobs: {gpu-memory-utilization: {choice: [0.05, 0.1, 0.5, 0.9]}, "
        "block-size: {choice: [16, 17, 32]}, quantization: {choice: [null, fp8]}}}"
    )
    spec = study(tmp_path, "qwen3-8b", space, hardware="h200")
    return spec, preview(spec, tmp_path)


@pytest.mark.vllm
def test_a_study_for_a_gpu_that_is_not_here_is_checked_for_that_gpu(
    checked: tuple[StudySpec, Preview],
) -> None:
    pytest.importorskip("vllm")
    spec, found = checked
    said = json.loads(json.dumps(found.to_json(spec)))
    assert said["checked_for"] == "NVIDIA H200"
    assert (said["points"], len(said["rejected"])) == (24, 8 + 6)
    # 8.8 GiB of fp8 weights fit into a tenth of 139.8 GiB, 15.3 do not.
    dead = {
        (item["reason"], item["config"]["args"]["gpu_memory_utilization"])
        for item in said["rejected"]
        if item["config"]["args"]["block_size"] != 17
    }
    assert dead == {("out_of_memory", 0.05), ("out_of_memory", 0.1)}
    assert sum(why["share"] for why in said["reasons"]) == pytest.approx(14 / 24)
    assert [line.partition(":")[0] for line in said["suggestions"]] == [
        "gpu_memory_utilization 0.05",
        "block_size 17",
    ]
    defaults = said["memory"]["configurations"][0]
    assert (defaults["fit"], defaults["gpu_bytes"]) == ("fits", 150_109_106_995)
    assert defaults["kv_cache_tokens"] > 780_000
    longest, mean = (said["memory"]["request_tokens"][key] for key in ("longest", "mean"))
    assert longest >= mean > 0
    assert defaults["requests_at_once"]["mean"] >= defaults["requests_at_once"]["p99"] > 1
    low, high = said["memory"]["space"]["kv_cache_tokens"]
    assert low < high


class Recording(InlinePool):
    """Keeps what it was given to start."""

    submitted: list[EngineConfig]

    def submit(self, job: Job) -> None:
        self.submitted.append(job.config)
        super().submit(job)


@pytest.mark.vllm
def test_no_start_is_spent_on_what_the_static_check_can_know(tmp_path: Path, no_gpus: None) -> None:
    pytest.importorskip("vllm")
    space = (
        "{knobs: {block-size: {choice: [8, 16, 32, 64]}, max-num-seqs: {choice: [4, 64]}, "
        "max-num-batched-tokens: {choice: [32, 256]}, "
        "num-gpu-blocks-override: {choice: [8, 512]}}}"
    )
    spec = study(tmp_path, "tiny", space)
    workload = spec.workload()
    store = Store.open(sqlite_url(tmp_path), "s", spec.objectives, [], {})
    with checking(spec) as checker:
        check = refusing(checker, workload, predicting(spec, checker, {}))
        dead = [point for point in spec.space.points() if check(spec.config(point))]
        strategy = Plain(store, spec.space, spec.base, "random")
        pool = Recording(SimulatedLauncher(SimulatedCosts()), evaluate, 1)
        pool.submitted = []
        loop = Loop(
            "s", store, strategy, pool, check, workload, spec.engine.deadlines, spec.budget,
            tmp_path,
        )  # fmt: skip
        assert loop.run() == "budget of 3 trials spent"
        assert len(dead) / 32 >= 0.25
        assert len(pool.submitted) == 3
        assert not any(check(config) for config in pool.submitted)
    refused = [r for r in store.records() if isinstance(r.outcome, Infeasible)]
    assert all(record.cost.total_s == 0 for record in refused)
    assert sum(isinstance(r.outcome, Measured) for r in store.records()) == 3
