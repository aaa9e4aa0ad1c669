"""A finished study on the simulated engine: searched, confirmed, with noise and a failure.

Virtual time makes repeats identical, so measured values get a seeded noise of some percent here.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.study_case import load
from tuner import machine
from tuner.confirm import finalists
from tuner.confirm import study_name as confirming
from tuner.engines import Launcher
from tuner.engines.simulated import SimulatedLauncher
from tuner.engines.simulated_costs import HOT
from tuner.evaluate import OnPhase, evaluate
from tuner.job import Job
from tuner.pools.inline import InlinePool
from tuner.presets import DEFAULT_BASELINE
from tuner.records import Cost, Infeasible, Measured, Outcome
from tuner.results import load_results
from tuner.store import Store, sqlite_url
from tuner.strategies import Search, Strategy
from tuner.strategies.plain import KnownGood
from tuner.strategies.repeats import Repeats
from tuner.strategies.table import STRATEGIES
from tuner.study import StudySpec
from tuner.study_sections import Budget
from tuner.tune import Loop

Evaluate = Callable[[Job, Launcher, OnPhase], Awaitable[tuple[Outcome, Cost]]]

SPACE = """{knobs: {
  max-num-seqs: {int: [4, 128], log: true},
  max-num-batched-tokens: {choice: [256, 512, 1024, 2048, 4096]},
  enable-prefix-caching: {choice: [true, false]},
  quantization: {choice: [null, fp8]}},
  rules: [max_num_batched_tokens >= max_num_seqs]}"""
OBJECTIVES = """
  - {metric: saturated.output_tokens_per_s, direction: maximize}
  - {metric: paced.e2e.p99, direction: minimize}"""
SLO = """{attainment: 0.9, ttft_ms: 250, classes: {
  interactive: {ttft_ms: 120, e2e_ms: 2000}, batch: {e2e_ms: 8000}}}"""


def write_trace(path: Path, requests: int) -> None:
    """Write a trace of two classes in our own format."""
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(0.04, requests)) * 1e6
    rows = [
        {
            "t_us": int(t),
            "in_tok": int(random.integers(100, 1500)),
            "out_tok": int(random.integers(8, 120)),
            "cls": "batch" if i % 3 == 0 else "interactive",
        }
        for i, t in enumerate(arrivals)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def noisy(share: float) -> Evaluate:
    """Return ``evaluate`` with lognormal noise; eight sequences in bfloat16 never fit."""

    async def run(job: Job, launcher: Launcher, on_phase: OnPhase) -> tuple[Outcome, Cost]:
        if job.config.args.get("max_num_seqs", 64) < 8:
            detail = "needs 12.4 GiB for the KV cache, 9.1 GiB are left"
            return Infeasible("out_of_memory", detail), Cost(start_s=12.0)
        outcome, cost = await evaluate(job, launcher, on_phase)
        if isinstance(outcome, Measured):
            random = np.random.default_rng([job.number, len(job.directory)])
            measured = outcome.measurement
            values = {n: v * random.lognormal(0, share) for n, v in measured.values.items()}
            outcome = Measured(replace(measured, values=values))
        return outcome, cost

    return run


def study(
    folder: Path,
    trials: int = 12,
    repeats: int = 3,
    *,
    members: int = 3,
    requests: int = 60,
    share: float = 0.02,
) -> Path:
    """Search and confirm; return the results folder. No repeats: nothing is confirmed."""
    write_trace(folder / "trace.jsonl", requests)
    workload = f"{{trace: {{path: trace.jsonl}}, name: two-classes, slo: {SLO}}}"
    spec = load(
        folder, name="chat-h200", space=SPACE, workload=workload, objectives=OBJECTIVES,
        constraints="[{metric: paced.attainment, min: 0.2}]", budget=f"{{trials: {trials}}}",
        engine="{kind: simulated, args: {max-model-len: 8192}}",
    )  # fmt: skip
    out = folder / "results"
    out.mkdir()
    (out / "study.yaml").write_text(spec.resolved())
    store = _store(spec, out, spec.name)
    search = Search(spec.space, spec.base, HOT & set(spec.space.names), seed=1, trials=trials)
    strategy = STRATEGIES["ride-along"](store, search)
    strategy.enqueue(KnownGood(DEFAULT_BASELINE))
    strategy.enqueue(KnownGood("baseline: as we run it", {"max_num_seqs": 16}))
    _run(spec, store, strategy, out, (trials, share))
    if repeats:
        found = load_results(out)
        chosen = finalists(found.front, found.baselines, members)
        kept = _store(spec, out, confirming(spec.name))
        repeated = Repeats(kept, chosen, repeats)
        _run(spec, kept, repeated, out / "confirm", (len(chosen) * repeats, share))
    return out


def _store(spec: StudySpec, out: Path, name: str) -> Store:
    url = sqlite_url(out)
    store = Store.open(url, name, spec.objectives, spec.constraints, spec.definition())
    here = {"hardware": machine.hardware(), "versions": machine.versions()}
    store.study.set_user_attr("machine", here)
    return store


def _run(
    spec: StudySpec, store: Store, strategy: Strategy, folder: Path, how: tuple[int, float]
) -> None:
    trials, share = how
    pool = InlinePool(SimulatedLauncher(), noisy(share))
    Loop(
        store.study.study_name, store, strategy, pool, lambda config: None, spec.workload(),
        spec.engine.deadlines, Budget(trials=trials), folder,
    ).run()  # fmt: skip
