"""A knob that measures otherwise live than from a start is found, named, and no longer hot."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.study_case import load
from tuner import again
from tuner.config import EngineConfig, Json
from tuner.confirm import confirmed
from tuner.demotion import cooled, demoted, notice
from tuner.engines import Engine
from tuner.engines.keeping import KeepingLauncher
from tuner.engines.simulated import SimulatedEngine, SimulatedLauncher
from tuner.evaluate import evaluate
from tuner.events import Notice
from tuner.job import Deadlines, Job, Workload
from tuner.objectives import Objective, scores
from tuner.records import Measured, TrialRecord
from tuner.results import load_results
from tuner.runner import run_study
from tuner.surroundings import Surroundings
from tuner.trace import Trace

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))
HOT = frozenset({"max_num_seqs", "long_prefill_token_threshold"})
MAXIMA = {"max_num_seqs": 64}
BASE = EngineConfig("m", {"max_num_seqs": 64, "long_prefill_token_threshold": 0})


class Skewed(SimulatedEngine):
    """Takes live changes of ``deaf`` without acting on them."""

    deaf: frozenset[str] = frozenset()

    @property
    def facts(self) -> Mapping[str, Json]:
        return {**super().facts, "started": dict(self._config.args)}

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        await super().reconfigure({n: v for n, v in hot.items() if n not in self.deaf})
        return dict(hot)


class SkewedLauncher:
    def __init__(self, deaf: frozenset[str]) -> None:
        self._deaf = deaf
        self._inner = SimulatedLauncher()

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Engine]:
        async with self._inner.launch(config, log) as engine:
            engine.__class__ = Skewed
            engine.deaf = self._deaf  # type: ignore[attr-defined]
            yield engine


def trace() -> Trace:
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(0.02, 80)) * 1e6
    return Trace.build(arrivals, random.integers(50, 900, 80), random.integers(5, 60, 80))


def measured(
    folder: Path, configs: list[EngineConfig], deaf: frozenset[str], live: bool, repeat: int = 0
) -> list[TrialRecord]:
    """Measure one after another, all on one live engine or each from a start."""
    workload = Workload("w", trace())
    random = np.random.default_rng([repeat, live])

    async def main() -> list[TrialRecord]:
        records = []
        keeping = KeepingLauncher(SkewedLauncher(deaf), HOT if live else frozenset(), MAXIMA)
        for number, config in enumerate(configs):
            job = Job(number, config, workload, str(folder / str(number)), Deadlines())
            outcome, cost = await evaluate(job, keeping, lambda phase: None)
            assert isinstance(outcome, Measured)
            found = scores(outcome.measurement, OBJECTIVES)
            assert found is not None
            noisy = tuple(float(v) for v in np.array(found) * random.lognormal(0, 0.005, 2))
            point = {} if live else {"member": number, "repeat": repeat}
            records.append(TrialRecord(number, config, point, outcome, noisy, (), cost))
        await keeping.aclose()
        return records

    return SimulatedLauncher.run(main())


def found(folder: Path, deaf: frozenset[str]) -> dict[str, float]:
    configs = [
        replace(BASE, label="baseline: x"),
        BASE.with_args({"max_num_seqs": 4}),
        BASE.with_args({"long_prefill_token_threshold": 128}),
        BASE.with_args({"max_num_seqs": 8, "long_prefill_token_threshold": 256}),
    ]
    search = measured(folder, configs, deaf, live=True)
    repeats = [r for n in range(3) for r in measured(folder, configs, deaf, live=False, repeat=n)]
    return demoted(confirmed(repeats, search, OBJECTIVES), search, repeats)


def test_a_knob_that_a_live_engine_ignores_is_named(tmp_path: Path) -> None:
    knobs = found(tmp_path, frozenset({"max_num_seqs"}))
    assert set(knobs) == {"max_num_seqs"}
    assert knobs["max_num_seqs"] > 1.1 or knobs["max_num_seqs"] < 0.9
    assert "max_num_seqs (live / cold" in notice(knobs)


def test_knobs_that_agree_stay_hot(tmp_path: Path) -> None:
    assert found(tmp_path, frozenset()) == {}


@pytest.mark.parametrize("label", ["", "baseline: x"])
def test_nothing_is_said_without_something_to_compare_with(tmp_path: Path, label: str) -> None:
    configs = [replace(BASE, label=label)]
    search = measured(tmp_path, configs, frozenset(), live=True)
    repeats = [r for n in (0, 1) for r in measured(tmp_path, configs, frozenset(), False, n)]
    assert demoted(confirmed(repeats, search, OBJECTIVES), search, repeats) == {}


def test_a_demoted_knob_is_hot_no_more() -> None:
    said: list[str] = []
    warmth = {"max_num_seqs": "hot", "max_num_batched_tokens": "hot", "quantization": "cold"}
    assert cooled(warmth, {"max_num_seqs": 1.2}, said.append) == {**warmth, "max_num_seqs": "warm"}
    assert said == [notice({"max_num_seqs": 1.2})]
    assert cooled(warmth, {}, said.append) == warmth
    assert len(said) == 1


def test_what_the_confirmation_finds_is_stored_named_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load(tmp_path, confirm="{members: 1, repeats: 2}")
    heard: list[object] = []
    around = Surroundings(tmp_path / "out", [SimpleNamespace(on_event=heard.append)])
    run_study(spec, around)
    monkeypatch.setattr(again, "demoted", lambda *parts: {"max_num_seqs": 1.25})
    again.confirm_study(spec, around)
    assert load_results(around.folder).demoted == {"max_num_seqs": 1.25}
    assert Notice(notice({"max_num_seqs": 1.25})) in heard
