"""What the comparison of search strategies runs on: spaces, workloads, true results, prices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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

#: Seconds to get an engine ready on the H200, and of a start that runs out of memory.
COLD_S, WARM_S, LIVE_S, REFUSED_S = 55.0, 20.0, 0.65, 30.0
#: Warm-up after a start.
WARM_UP_S = 2.0
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


@dataclass(frozen=True, slots=True)
class Case:
    """One space on one workload: throughput up, one latency down. Costs are without noise."""

    space: SearchSpace
    lengths: Lengths
    latency: str
    costs: SimulatedCosts
    #: The best values of the cold knobs, as far as they are not the defaults.
    best: Mapping[str, Json]
    #: What auto_tune's loops and the best known front try of max_num_seqs.
    seqs: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)

    @property
    def hot(self) -> frozenset[str]:
        """The knobs that a live engine changes."""
        return HOT & frozenset(self.space.names)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Throughput and the latency."""
        return Objective(METRICS[0], True), Objective(self.latency, False)

    def scores(self, known: Sequence[float]) -> tuple[float, float]:
        """Return the objectives' values of a truth."""
        return known[0], known[METRICS.index(self.latency)]

    def volume(self, scores: Sequence[Sequence[float]], default: Sequence[float]) -> float:
        """Return the hypervolume up to half the default's throughput and twice its latency."""
        relative = [[s / d for s, d in zip(row, default, strict=True)] for row in scores]
        if not relative:
            return 0.0
        return pareto.hypervolume(pareto.oriented(relative, [True, False]), (-0.5, 2.0))


#: No noise, and no seconds of a start, which ``Machine`` charges.
_COSTS = SimulatedCosts(noise=0.0, start_s=0.0, warm_start_s=0.0)
CASES: dict[str, Case] = {
    # The 8B model whose prices were measured; scheduler knobs trade throughput for latency.
    "chat": Case(
        SearchSpace(
            (
                Knob("max_num_seqs", IntDomain(16, 1024, log=True)),
                _TOKENS,
                Knob("long_prefill_token_threshold", ChoiceDomain.of([0, 256, 512, 1024])),
                Knob("enable_prefix_caching", ChoiceDomain.of([True, False])),
                *_COLD_KNOBS,
            ),
            rules=("max_num_batched_tokens >= max_num_seqs",),
        ),
        Lengths(prompt=1480, answer=181, rate_per_s=8.0, n=60),
        "paced.itl.p99",
        _COSTS,
        {"quantization": "fp8", "kv_cache_dtype": "fp8"},
    ),
    # Six times the model, which leaves little memory to the KV cache: weights, cache and memory
    # decide, which are cold knobs' work, and the scheduler matters little.
    "cold": Case(
        SearchSpace(
            (Knob("max_num_seqs", IntDomain(16, 1024, log=True)), _TOKENS, *_COLD_KNOBS),
            rules=("max_num_batched_tokens >= max_num_seqs",),
        ),
        Lengths(prompt=700, answer=250, rate_per_s=4.0, n=50),
        "paced.e2e.p99",
        replace(
            _COSTS, prompt_token_s=1.4e-4, fp8_token_s=8.5e-5, weight_bytes=98.0 * GIB,
            fp8_weight_bytes=52.0 * GIB, kv_token_bytes=327_680,
        ),
        {"quantization": "fp8", "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.94},
    ),
}  # fmt: skip


@dataclass(slots=True)
class Truth:
    """Noise-free results by configuration: scores and replay seconds, None where it cannot run."""

    case: Case
    path: Path
    _trace: Trace = field(init=False)
    _setting: str = field(init=False)
    known: dict[str, list[float] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trace = self.case.lengths.trace()
        self._setting = digest([self._trace.digest, str(self.case.costs), METRICS])
        if self.path.exists():
            self.known = dict(json.loads(line) for line in self.path.read_text().splitlines())

    def __call__(self, config: EngineConfig) -> list[float] | None:
        """Return the METRICS and the replays' seconds of a configuration."""
        key = digest([config.key, self._setting])
        if key not in self.known:
            self.known[key] = self._measured(config)
            with self.path.open("a") as stream:
                stream.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]

    def _measured(self, config: EngineConfig) -> list[float] | None:
        launcher = SimulatedLauncher(self.case.costs)

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
    """One GPU with one slot: the price of each configuration in turn.

    ``keeps``: the engine stays live between trials; otherwise every trial is a start.
    """

    keeps: bool
    live: str = ""
    compiled: set[str] = field(default_factory=set)

    def ready_s(self, config: EngineConfig, runs: bool) -> tuple[float, float]:
        """Return seconds of a start and of a live change, and have the engine there."""
        cold = config.cold_key(HOT)
        if self.keeps and self.live == cold:
            return 0.0, LIVE_S
        self.live = cold if runs else ""
        if not runs:
            return REFUSED_S, 0.0
        key = config.cold_key({*HOT, *WARM} if self.keeps else UNHASHED)
        warm = key in self.compiled or bool(config.args.get("enforce_eager"))
        self.compiled.add(key)
        return WARM_S if warm else COLD_S, 0.0


def default_config(changes: Mapping[str, Json] | None = None) -> EngineConfig:
    """Return ``vllm serve``'s defaults with some arguments changed."""
    return BASE.with_args({**DEFAULT, **(changes or {})})
