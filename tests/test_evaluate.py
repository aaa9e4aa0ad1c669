"""One job: what voids a replay, what ends a trial, and what stands in its measurement."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from tests.queueing import Queueing, QueueingLauncher
from tuner import measures
from tuner.config import EngineConfig
from tuner.engines import Completion
from tuner.engines.compilations import compiled_since
from tuner.evaluate import WARM_UP_TOKENS, evaluate
from tuner.intervals import mean_interval
from tuner.job import MEASURES, Deadlines, Job, Slo, Workload
from tuner.records import Cost, Faulted, Measured, Measurement, Outcome
from tuner.remedies import REMEDIES
from tuner.trace import Request, Trace

JIT = (
    "(EngineCore pid=7) WARNING 11-30 12:00:00 [jit_monitor.py:103] Triton kernel JIT compilation "
    "during inference: _topk_topp_kernel. This causes a latency spike; consider extending warmup\n"
)


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time needs no care for memory, and a collection takes longer than a replay."""
    monkeypatch.setattr("gc.collect", lambda: 0)


@dataclass
class Logged(Queueing):
    """Writes a line to the log when the n-th request of its life comes, for each n of ``at``."""

    log: str = ""
    at: Sequence[int] = ()
    line: str = JIT
    asked: list[Request] = field(default_factory=list)

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        self.asked.append(request)
        if len(self.asked) in self.at:
            self.compile()
        return await super().generate(request, prompt)

    def compile(self) -> None:
        with open(self.log, "a") as log:
            log.write(self.line)


@dataclass
class LoggedLauncher(QueueingLauncher):
    at: Sequence[int] = ()
    line: str = JIT
    live: bool = False

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Queueing]:
        await asyncio.sleep(self.start_s)
        own = log
        if self.live:
            own = str(Path(log).with_name("first.log"))
            Path(log).write_text("a live engine; its log is elsewhere\n")
        engine = Logged(**config.args, log=own, at=self.at, line=self.line)
        if self.live:
            engine.facts = {**engine.facts, "live": {"reused": True, "log": own}}
        Path(own).write_text(f"an earlier life: {JIT}")
        self.engines.append(engine)
        yield engine


def job(folder: Path, **changes: object) -> Job:
    """120 requests of two tokens, 0.2 s apart, for an engine that keeps up."""
    trace = Trace.build(np.arange(120) * 200_000, np.full(120, 4), np.full(120, 2))
    workload = Workload("w", trace, slo=Slo({"default": {"e2e": 1.0}}), warmup_requests=3)
    config = EngineConfig("queue", {"servers": 4, "token_s": 0.1})
    return Job(0, config, workload, str(folder), **changes)  # type: ignore[arg-type]


def run(job: Job, launcher: QueueingLauncher) -> tuple[Outcome, Cost]:
    return launcher.run(evaluate(job, launcher, lambda phase: None))


def measurement(outcome: Outcome) -> Measurement:
    assert isinstance(outcome, Measured), outcome
    return outcome.measurement


def test_the_warm_up_is_cut_short_and_the_replays_are_not(tmp_path: Path) -> None:
    launcher = LoggedLauncher(at=[])
    trace = Trace.build(np.arange(4) * 200_000, np.full(4, 4), np.array([8, 500, 8, 500]))
    workload = Workload("w", trace, ("saturated",), warmup_requests=3)
    run(replace(job(tmp_path), workload=workload), launcher)
    asked = [r.output_tokens for r in launcher.engines[0].asked]  # type: ignore[attr-defined]
    assert asked == [8, WARM_UP_TOKENS, 8, *trace.output_tokens]


def test_every_measure_is_in_the_table() -> None:
    assert tuple(measures.MEASURES) == MEASURES


@pytest.mark.parametrize("live", [False, True])
def test_a_replay_that_compiles_a_kernel_is_void_and_made_again(tmp_path: Path, live: bool) -> None:
    # 3 requests of warm-up, 120 saturated, then paced: the 200th is one of the first paced replay.
    launcher = LoggedLauncher(at=[200], live=live)
    found = measurement(run(job(tmp_path), launcher)[0])
    assert found.warnings == ("paced: a replay was void, it compiled _topk_topp_kernel",)
    assert len(launcher.engines[0].asked) == 3 + 120 + 2 * 120  # type: ignore[attr-defined]
    assert found.counts["paced.requests"] == 120


def test_a_kernel_compiled_in_the_warm_up_voids_nothing(tmp_path: Path) -> None:
    launcher = LoggedLauncher(at=[2])
    assert measurement(run(job(tmp_path), launcher)[0]).warnings == ()
    assert len(launcher.engines[0].asked) == 3 + 120 + 120  # type: ignore[attr-defined]


def test_kernels_compiled_again_and_again_make_the_measurement_invalid(tmp_path: Path) -> None:
    line = "Triton autotuning for function matmul_kernel,\nwith key as (1, 2)\n"
    outcome, _ = run(job(tmp_path), LoggedLauncher(at=[50, 150], line=line))
    assert outcome == Faulted(
        "kernel_compiled", "saturated: compiled matmul_kernel during a second replay too"
    )
    assert isinstance(outcome, Faulted)
    assert outcome.engine_ok  # the engine stays; the trial is tried once more


def test_a_live_engine_is_warmed_up_for_each_job_too(tmp_path: Path) -> None:
    launcher = LoggedLauncher(live=True)
    outcome, cost = run(job(tmp_path), launcher)
    asked = [request.id for request in launcher.engines[0].asked]  # type: ignore[attr-defined]
    assert asked[:6] == [0, 1, 2, 0, 1, 2]
    assert (cost.start_s, cost.reconfigure_s) == (0.0, 1.0)
    assert isinstance(outcome, Measured)


@pytest.mark.parametrize(("trial_s", "at"), [(0.5, "starting engine"), (3.0, "saturated")])
def test_a_trial_ends_at_its_deadline_and_says_where_it_was(
    tmp_path: Path, trial_s: float, at: str
) -> None:
    outcome, cost = run(job(tmp_path, deadlines=Deadlines(trial_s=trial_s)), QueueingLauncher())
    assert outcome == Faulted(
        "trial_deadline", f"not measured within {trial_s:g} s; it was at: {at}"
    )
    assert cost.total_s == pytest.approx(trial_s, abs=0.01)


def test_a_replay_that_ends_by_its_deadline_says_so(tmp_path: Path) -> None:
    # 120 requests of 0.2 s on four servers take 6 s at once; those after 2 s are lost.
    cut = job(tmp_path, deadlines=Deadlines(replay_s=2.05))
    cut = replace(cut, workload=replace(cut.workload, measures=("saturated",)))
    found = measurement(run(cut, QueueingLauncher())[0])
    assert found.values["saturated.error_share"] == pytest.approx(80 / 120)
    assert found.warnings == ("saturated: ended at its deadline of 2.05 s, 80 requests unanswered",)


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        (JIT, ["_topk_topp_kernel"]),
        (JIT + JIT, ["_topk_topp_kernel"]),
        ("CuTeDSL JIT compilation during inference: <unknown>. This causes a spike", ["<unknown>"]),
        ("TileLang JIT compilation during inference: mhc (cache_key=1). This", ["mhc"]),
        ("monitored JIT compilations during inference will use mode=warn.", []),
        ("Compiling a graph for compile range (1, 2048) takes 3 s", []),
    ],
)
def test_the_words_of_vllm_s_monitor_are_known(
    tmp_path: Path, text: str, kernels: list[str]
) -> None:
    (tmp_path / "log").write_text(text)
    assert compiled_since(tmp_path / "log", 0) == kernels
    assert compiled_since(tmp_path / "log", len(text)) == []
    assert compiled_since(tmp_path / "none", 0) == []


@pytest.mark.parametrize("reason", ["trial_deadline", "kernel_compiled", "slo_out_of_reach"])
def test_every_reason_has_a_remedy(reason: str) -> None:
    assert reason in REMEDIES


def test_a_single_replay_has_intervals_over_its_requests(tmp_path: Path) -> None:
    found = measurement(run(job(tmp_path), QueueingLauncher())[0])
    low, high = found.intervals["saturated.e2e.p50"]
    assert low < found.values["saturated.e2e.p50"] < high
    # Every paced request takes 0.2 s: there is nothing to be unsure of.
    assert found.intervals["paced.e2e.p99"] == pytest.approx((0.2, 0.2))
    assert "saturated.output_tokens_per_s" not in found.intervals
    stored = json.loads((tmp_path / "measurement.json").read_text())
    assert stored["intervals"]["saturated.e2e.p50"] == [low, high]


@dataclass
class Tiring(Queueing):
    """Gets slower with every replay."""

    async def reset(self) -> None:
        self.token_s += 0.01


@dataclass
class TiringLauncher(QueueingLauncher):
    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Queueing]:
        yield Tiring(**config.args)


def test_repeats_have_intervals_over_replays(tmp_path: Path) -> None:
    once = job(tmp_path, repeats=3)
    once = replace(once, workload=replace(once.workload, measures=("paced",)))
    found = measurement(run(once, TiringLauncher())[0])
    expected = mean_interval([0.22, 0.24, 0.26])
    assert expected is not None
    assert found.values["paced.e2e.p50"] == pytest.approx(0.24)
    assert found.intervals["paced.e2e.p50"] == pytest.approx((expected.low, expected.high))
    assert "paced.requests_per_s" in found.intervals
