"""What the comparison of search strategies runs on: spaces, workloads, true results, prices."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tuner import pareto
from tuner.config import EngineConfig, Json, digest
from tuner.engines.simulated import SimulatedLauncher
from tuner.engines.simulated_costs import GIB, HOT, SimulatedCosts
from tuner.errors import ConfigRejected
from tuner.job import Deadlines, Slo
from tuner.knobs import ChoiceDomain, IntDomain, Knob, SearchSpace
from tuner.metrics import measure
from tuner.objectives import Objective
from tuner.replay import Plan, replay
from tuner.trace import Ragged, Trace

#: What a truth holds of a configuration, before the replays' seconds.
METRICS = ("saturated.output_tokens_per_s", "paced.itl.p99", "paced.e2e.p99")
#: What needs a start, but leaves the compile hash as it is.
WARM = frozenset({"gpu_memory_utilization"})
#: What changes without a new compile hash where every trial is a start of its own, as others run
#: vLLM: without pinned capture sizes max_num_seqs and max_num_batched_tokens change it.
UNHASHED = frozenset({*WARM, "enable_prefix_caching", "long_prefill_token_threshold"})
BASE = EngineConfig("model", {"max_model_len": 32_768})
#: ``vllm serve`` without any argument, on a large GPU.
DEFAULT: dict[str, Json] = {
    "max_num_seqs": 1024, "max_num_batched_tokens": 8192, "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True, "quantization": None, "kv_cache_dtype": "auto",
    "block_size": 16, "gpu_memory_utilization": 0.90, "async_scheduling": True,
    "enforce_eager": False, "compilation_config.cudagraph_mode": "FULL_AND_PIECEWISE",
}  # fmt: skip
_COLD_KNOBS = (
    Knob("quantization", ChoiceDomain.of([None, "fp8"])),
    Knob("kv_cache_dtype", ChoiceDomain.of(["auto", "fp8"])),
    Knob("block_size", ChoiceDomain.of([16, 32, 64, 128])),
    Knob("gpu_memory_utilization", ChoiceDomain.of([0.82, 0.86, 0.90, 0.94, 0.98])),
    Knob("async_scheduling", ChoiceDomain.of([True, False])),
    Knob("enforce_eager", ChoiceDomain.of([False, True])),
    Knob(
        "compilation_config.cudagraph_mode",
        ChoiceDomain.of(["PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]),
        when={"enforce_eager": (False,)},
    ),
)
_TOKENS = Knob("max_num_batched_tokens", ChoiceDomain.of([512, 1024, 2048, 4096, 8192, 16384]))


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds until an engine is ready, by the way that it takes, and of a start that fails."""

    cold_s: float
    warm_s: float
    live_s: float
    refused_s: float = 0.0
    #: Of the warm-up after a start.
    warm_up_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """One space to search, and what its trials cost: throughput up, one latency down."""

    space: SearchSpace
    base: EngineConfig
    #: vLLM's own values of what the space varies, and more.
    default: Mapping[str, Json]
    objectives: tuple[Objective, Objective]
    #: Knobs that a live engine changes, and those whose change leaves the compiled code as it is.
    hot: frozenset[str]
    warm: frozenset[str]
    prices: Prices
    #: Relative spread of one measurement, by objective.
    noise: tuple[float, float]
    #: What auto_tune's loops try of max_num_seqs.
    seqs: tuple[int, ...]

    def configured(self, changes: Mapping[str, Json] | None = None) -> EngineConfig:
        """Return vLLM's defaults with some arguments changed."""
        return self.base.with_args({**self.default, **(changes or {})})

    def volume(self, scores: Sequence[Sequence[float]], default: Sequence[float]) -> float:
        """Return the hypervolume up to half the default's throughput and twice its latency."""
        relative = [[s / d for s, d in zip(row, default, strict=True)] for row in scores]
        if not relative:
            return 0.0
        return pareto.hypervolume(pareto.oriented(relative, [True, False]), (-0.5, 2.0))


@dataclass(frozen=True, slots=True)
class Result:
    """What a configuration truly gives, and the seconds of a trial once its engine is ready."""

    scores: tuple[float, float]
    seconds: float


class Truth(Protocol):
    """What is true of every configuration of a case."""

    def __call__(self, config: EngineConfig) -> Result | None:
        """Return what a configuration gives, None where it cannot run."""

    def reference(self) -> Iterable[EngineConfig]:
        """Return configurations that the best known front is made of, beside what is found."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Median prompt and answer tokens of a workload, requests per second, and how many."""

    prompt: float
    answer: float
    rate_per_s: float
    n: int

    def trace(self) -> Trace:
        """Return chats that share one of 8 system prompts each."""
        random = np.random.default_rng(7)
        shared = random.integers(8, size=self.n)
        own = np.clip(self.prompt * random.lognormal(0.0, 0.8, self.n), 64, 24_000).astype(int)
        answers = np.clip(self.answer * random.lognormal(0.0, 0.6, self.n), 8, 2_000).astype(int)
        sizes = 400 + 250 * shared
        return Trace.build(
            np.cumsum(random.exponential(1 / self.rate_per_s, self.n)) * 1e6,
            own + sizes,
            answers,
            blocks=Ragged.of([[int(s)] for s in shared]),
            block_tokens=Ragged.of([[int(s)] for s in sizes]),
        )


#: No noise, and no seconds of a start, which ``Machine`` charges.
_COSTS = SimulatedCosts(noise=0.0, start_s=0.0, warm_start_s=0.0)
#: What an H200 charged, and the spread of its throughput and P99 latency.
_H200, _NOISE = Prices(55.0, 20.0, 0.65, 30.0, 2.0), (0.02, 0.05)


def _case(latency: str, *knobs: Knob) -> Case:
    space = SearchSpace(
        (Knob("max_num_seqs", IntDomain(16, 1024, log=True)), _TOKENS, *knobs, *_COLD_KNOBS),
        rules=("max_num_batched_tokens >= max_num_seqs",),
    )
    objectives = Objective(METRICS[0], True), Objective(latency, False)
    hot, warm = HOT & {*space.names}, WARM & {*space.names}
    seqs = (16, 32, 64, 128, 256, 512, 1024)
    return Case(space, BASE, DEFAULT, objectives, hot, warm, _H200, _NOISE, seqs)


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the simulated engine needs to know to measure a case. Costs are without noise."""

    lengths: Lengths
    costs: SimulatedCosts
    #: The best values of the cold knobs, as far as they are not the defaults.
    best: Mapping[str, Json]


CASES: dict[str, tuple[Case, Simulation]] = {
    # The 8B model whose prices were measured; scheduler knobs trade throughput for latency.
    "chat": (
        _case(
            "paced.itl.p99",
            Knob("long_prefill_token_threshold", ChoiceDomain.of([0, 256, 512, 1024])),
            Knob("enable_prefix_caching", ChoiceDomain.of([True, False])),
        ),
        Simulation(
            Lengths(prompt=1480, answer=181, rate_per_s=8.0, n=60),
            _COSTS,
            {"quantization": "fp8", "kv_cache_dtype": "fp8"},
        ),
    ),
    # Six times the model, which leaves little memory to the KV cache: weights, cache and memory
    # decide, which are cold knobs' work, and the scheduler matters little.
    "cold": (
        _case("paced.e2e.p99"),
        Simulation(
            Lengths(prompt=700, answer=250, rate_per_s=4.0, n=50),
            replace(
                _COSTS, prompt_token_s=1.4e-4, fp8_token_s=8.5e-5, weight_bytes=98.0 * GIB,
                fp8_weight_bytes=52.0 * GIB, kv_token_bytes=327_680,
            ),
            {"quantization": "fp8", "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.94},
        ),
    ),
}  # fmt: skip


@dataclass(slots=True)
class Simulated:
    """Noise-free results of the simulated engine, kept in a file."""

    case: Case
    simulation: Simulation
    path: Path
    _trace: Trace = field(init=False)
    _setting: str = field(init=False)
    #: METRICS and the replays' seconds, by configuration; None where it cannot run.
    known: dict[str, list[float] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trace = self.simulation.lengths.trace()
        self._setting = digest([self._trace.digest, str(self.simulation.costs), METRICS])
        if self.path.exists():
            self.known = dict(json.loads(line) for line in self.path.read_text().splitlines())

    def __call__(self, config: EngineConfig) -> Result | None:
        """Return a configuration's result, from the file where it is there."""
        key = digest([config.key, self._setting])
        if key not in self.known:
            self.known[key] = self._measured(config)
            with self.path.open("a") as stream:
                stream.write(json.dumps([key, self.known[key]]) + "\n")
        found = self.known[key]
        if found is None:
            return None
        one, other = (found[METRICS.index(each.metric)] for each in self.case.objectives)
        return Result((one, other), found[-1])

    def reference(self) -> Iterator[EngineConfig]:
        """Return every hot setting of the best engine."""
        hot = {n: list(self.case.space[n].domain.values()) for n in sorted(self.case.hot)}
        hot["max_num_seqs"] = list(self.case.seqs)
        for values in itertools.product(*hot.values()):
            point = dict(zip(hot, values, strict=True))
            yield self.case.configured({**self.simulation.best, **point})

    def _measured(self, config: EngineConfig) -> list[float] | None:
        launcher = SimulatedLauncher(self.simulation.costs)

        async def main() -> list[float]:
            clock = asyncio.get_running_loop().time
            values: dict[str, float] = {}
            async with launcher.launch(config, "") as engine:
                for name in ("saturated", "paced"):
                    await engine.reset()
                    plan = Plan(list(self._trace), paced=name == "paced")
                    records = await replay(engine, plan, lambda request: [], Deadlines())
                    values |= measure(name, records, Slo())[0]
                return [*(values[metric] for metric in METRICS), clock()]

        try:
            return launcher.run(main())
        except ConfigRejected:
            return None


@dataclass(slots=True)
class Machine:
    """One slot of a machine: the price of each configuration in turn.

    ``keeps``: the engine stays live between trials; otherwise every trial is a start.
    """

    case: Case
    keeps: bool
    live: str = ""
    compiled: set[str] = field(default_factory=set)

    def ready_s(self, config: EngineConfig, runs: bool) -> tuple[float, float]:
        """Return seconds of a start and of a live change, and have the engine there."""
        case, prices = self.case, self.case.prices
        cold = config.cold_key(case.hot)
        if self.keeps and self.live == cold:
            return 0.0, prices.live_s
        self.live = cold if runs else ""
        if not runs:
            return prices.refused_s, 0.0
        key = config.cold_key(case.hot | case.warm if self.keeps else UNHASHED)
        warm = key in self.compiled or bool(config.args.get("enforce_eager"))
        self.compiled.add(key)
        return prices.warm_s if warm else prices.cold_s, 0.0
