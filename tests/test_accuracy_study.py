"""The accuracy guard over an engine whose drift is known: who is scored, who leaves the front."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.study_case import load
from tests.test_tune import Watcher, trace
from tuner.accuracy import Drift, Scored
from tuner.accuracy_job import PROMPT_TOKENS, ScoringJob, score_job
from tuner.accuracy_study import Guard, guard, wanted
from tuner.config import EngineConfig
from tuner.engines.simulated import SimulatedLauncher
from tuner.errors import ConfigRejected, RequestRejected
from tuner.events import Notice
from tuner.job import Deadlines, Workload
from tuner.pools.inline import InlinePool
from tuner.records import Faulted, Measured, Measurement, TrialRecord
from tuner.results import load_results
from tuner.runner import make_store
from tuner.study import StudySpec
from tuner.surroundings import Surroundings

#: kv_cache_dtype -> how far a token's logprob is off on this engine.
OFF = {"auto": 0.0, "fp8": 0.04, "fp8_e5m2": 0.5}


class KnownDrift:
    """An engine that answers by arithmetic; its logprobs are off by what its KV cache costs."""

    def __init__(self, config: EngineConfig) -> None:
        self.dtype = str(config.args.get("kv_cache_dtype", "auto"))
        self.facts = {"vocab_size": 1000}

    async def score(
        self, prompt: Sequence[int], tokens: int, answer: Sequence[int] | None
    ) -> Scored:
        if self.dtype == "refused":
            raise RequestRejected("prompt_logprobs are not supported with this")
        own = [(sum(prompt) + place) % 1000 for place in range(tokens)]
        if OFF[self.dtype] > 0.1:
            own[-1] += 1
        given = list(answer or own)
        return Scored(
            tuple(own), tuple(-1.0 - OFF[self.dtype] * (t % 2) for t in given), tuple(own)
        )


class Launcher:
    """Launches engines of known drift; notes how often and what."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[KnownDrift]:
        engine = KnownDrift(config)
        self.launched.append(engine.dtype)
        if engine.dtype == "impossible":
            raise ConfigRejected("unsupported_by_hardware", "no")
        yield engine


class Study:
    """A study with stored trials, each better than the last by its number."""

    def __init__(self, folder: Path, dtypes: Sequence[str], section: str) -> None:
        self.spec: StudySpec = load(folder, engine="{kind: vllm}", accuracy=section)
        self.launcher, self.watcher = Launcher(), Watcher()
        self.around = Surroundings(folder, [self.watcher])
        store = make_store(self.spec, folder, self.spec.name)
        (folder / "study.yaml").write_text(self.spec.resolved())
        for number, dtype in enumerate(dtypes):
            config = EngineConfig("m", {"kv_cache_dtype": dtype})
            scores = (float(number), 10.0 - number)
            measured = Measured(Measurement({}))
            assert store.study.ask().number == number
            store.finish(TrialRecord(number, config, {}, measured, scores))

    def run(self) -> str:
        with InlinePool(self.launcher, score_job) as pool:
            return guard(Guard(self.spec, self.around, pool, self.spec.workload()))

    @property
    def said(self) -> list[str]:
        return [one.message for one in self.watcher.events if isinstance(one, Notice)]

    @property
    def front(self) -> list[int]:
        return [record.number for record in load_results(self.around.folder).front]


def test_who_drifts_beyond_the_bound_leaves_the_front_and_who_comes_up_is_scored(
    tmp_path: Path,
) -> None:
    study = Study(tmp_path, ["auto", "fp8", "fp8_e5m2"], "{max_logprob_drift: 0.1, prompts: 4}")
    assert study.front == [2]
    assert study.run() == "2 members of the front scored"
    assert study.launcher.launched == ["auto", "fp8_e5m2", "fp8"]
    found = load_results(tmp_path)
    assert [record.number for record in found.front] == [1]
    assert found.drifts[2].misses
    assert found.drifts[1].worst == pytest.approx(0.04)
    assert found.drifts[2].exact_match == 0.0
    assert found.drifts[1].exact_match == 1.0
    assert [text for text in study.said if text.endswith("it leaves the front")]
    with InlinePool(study.launcher, score_job) as pool:
        again = Guard(study.spec, study.around, pool, study.spec.workload())
        assert guard(again) == "0 members of the front scored"


def test_without_a_bound_drift_is_measured_and_nobody_leaves(tmp_path: Path) -> None:
    study = Study(tmp_path, ["auto", "fp8_e5m2"], "{prompts: 2}")
    assert study.run() == "1 members of the front scored"
    assert study.front == [1]
    assert load_results(tmp_path).drifts[1].bound is None


@pytest.mark.parametrize("dtype", ["refused", "impossible"])
def test_who_cannot_be_scored_is_told_and_tried_once(tmp_path: Path, dtype: str) -> None:
    study = Study(tmp_path, ["auto", dtype], "{max_logprob_drift: 0.1}")
    assert study.run() == "0 members of the front scored"
    assert study.launcher.launched == ["auto", dtype]
    why = {
        "refused": "not_scored: prompt_logprobs are not supported with this",
        "impossible": "unsupported_by_hardware: no",
    }
    assert study.said[0] == f"accuracy of trial 1 was not measured: {why[dtype]}"
    assert study.front == [1]


def test_it_is_done_where_a_bound_or_a_confirmation_asks_for_it(tmp_path: Path) -> None:
    vllm = "{kind: vllm}"
    assert wanted(load(tmp_path, engine=vllm))
    assert wanted(load(tmp_path, engine=vllm, accuracy="{max_logprob_drift: 0.1}"))
    assert not wanted(load(tmp_path, engine=vllm, confirm="{members: 0}"))
    assert not wanted(load(tmp_path, engine=vllm, accuracy="{prompts: 0}"))
    assert not wanted(load(tmp_path, accuracy="{max_logprob_drift: 0.1}"))  # simulated


def test_whatever_runs_the_workload_can_be_scored(tmp_path: Path) -> None:
    workload = Workload("w", trace(20))
    job = ScoringJob(0, EngineConfig("m"), workload, str(tmp_path))
    prompt, answer = job.lengths
    assert (prompt, answer) == (PROMPT_TOKENS, 32)
    assert prompt + answer + 1 <= workload.longest_tokens


def test_an_engine_without_logprobs_is_a_fault(tmp_path: Path) -> None:
    job = ScoringJob(0, EngineConfig("m"), Workload("w", trace(20)), str(tmp_path))
    outcome, _ = SimulatedLauncher.run(score_job(job, SimulatedLauncher(), lambda phase: None))
    assert isinstance(outcome, Faulted)
    assert outcome.reason == "not_scored"


def test_a_bound_in_the_study_is_read_and_kept(tmp_path: Path) -> None:
    spec = load(tmp_path, accuracy="{max_logprob_drift: 0.25, prompts: 3}")
    assert spec.accuracy.max_logprob_drift == 0.25
    assert "max_logprob_drift: 0.25" in spec.resolved()
    assert Drift(0, 0.3, 1, 1, 1, spec.accuracy.max_logprob_drift).misses


def test_a_score_that_takes_too_long_is_named_as_such(tmp_path: Path) -> None:
    class Slow(KnownDrift):
        async def score(self, *parts: object) -> Scored:  # type: ignore[override]
            await asyncio.sleep(3600)
            raise AssertionError("waited for ever")

    class SlowLauncher:
        @contextlib.asynccontextmanager
        async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Slow]:
            yield Slow(config)

    deadlines = Deadlines(request_s=5.0)
    job = ScoringJob(0, EngineConfig("m"), Workload("w", trace(20)), str(tmp_path), deadlines)
    outcome, _ = SimulatedLauncher.run(score_job(job, SlowLauncher(), lambda phase: None))
    assert outcome == Faulted("not_scored", "no answer to prompt 0 within 5 s")
