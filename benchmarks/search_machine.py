"""What the comparison of search strategies runs on: a space, a workload, true results, prices."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tuner.config import EngineConfig, Json, digest
from tuner.engines.simulated import SimulatedLauncher
from tuner.engines.simulated_costs import HOT, SimulatedCosts
from tuner.errors import ConfigRejected
from tuner.job import Deadlines, Slo
from tuner.knobs import ChoiceDomain, IntDomain, Knob, SearchSpace
from tuner.metrics import measure
from tuner.replay import Plan, replay
from tuner.trace import Ragged, Trace

#: The engine of the truth: no noise, and no seconds of a start, which the machine charges.
COSTS = SimulatedCosts(noise=0.0, start_s=0.0, warm_start_s=0.0)
#: Seconds to get an engine ready on the H200, and of a start that runs out of memory.
COLD_S, WARM_S, LIVE_S, REFUSED_S = 55.0, 20.0, 0.65, 30.0
#: Warm-up after a start.
WARM_UP_S = 2.0
#: What a truth holds of a configuration, before the replays' seconds.
METRICS = ("saturated.output_tokens_per_s", "paced.itl.p99", "paced.e2e.p99")
#: What changes without a new compile hash where every trial is a start of its own, as others run
#: vLLM: without pinned capture sizes max_num_seqs and max_num_batched_tokens change it.
UNHASHED = frozenset(
    {"gpu_memory_utilization", "enable_prefix_caching", "long_prefill_token_threshold"}
)
SPACE = SearchSpace(
    (
        Knob("max_num_seqs", IntDomain(16, 1024, log=True)),
        Knob("max_num_batched_tokens", ChoiceDomain.of([512, 1024, 2048, 4096, 8192, 16384])),
        Knob("long_prefill_token_threshold", ChoiceDomain.of([0, 256, 512, 1024])),
        Knob("enable_prefix_caching", ChoiceDomain.of([True, False])),
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
    ),
    rules=("max_num_batched_tokens >= max_num_seqs",),
)
#: ``vllm serve`` without any argument, on a large GPU.
DEFAULT: dict[str, Json] = {
    "max_num_seqs": 1024, "max_num_batched_tokens": 8192, "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True, "quantization": None, "kv_cache_dtype": "auto",
    "block_size": 16, "gpu_memory_utilization": 0.90, "async_scheduling": True,
    "enforce_eager": False, "compilation_config.cudagraph_mode": "FULL_AND_PIECEWISE",
}  # fmt: skip
BASE = EngineConfig("8b", {"max_model_len": 32_768})


def workload(n: int = 100, rate_per_s: float = 8.0) -> Trace:
    """Return chats with long prompts: 8 system prompts, and more KV cache in use than there is."""
    random = np.random.default_rng(7)
    shared = random.integers(8, size=n)
    own = np.clip(random.lognormal(7.3, 0.8, n), 64, 24_000).astype(int)
    outputs = np.clip(random.lognormal(5.2, 0.6, n), 8, 1_000).astype(int)
    sizes = 400 + 250 * shared
    return Trace.build(
        np.cumsum(random.exponential(1 / rate_per_s, n)) * 1e6,
        own + sizes,
        outputs,
        blocks=Ragged.of([[int(s)] for s in shared]),
        block_tokens=Ragged.of([[int(s)] for s in sizes]),
    )


@dataclass(slots=True)
class Truth:
    """Noise-free results by configuration: scores and replay seconds, None where it cannot run."""

    path: Path
    trace: Trace = field(default_factory=workload)
    _setting: str = ""
    known: dict[str, list[float] | None] = field(default_factory=dict)

    def load(self) -> Truth:
        """Take in what earlier runs of the same benchmark measured."""
        self._setting = digest([self.trace.digest, str(COSTS), METRICS])
        if self.path.exists():
            self.known = dict(json.loads(line) for line in self.path.read_text().splitlines())
        return self

    def __call__(self, config: EngineConfig) -> list[float] | None:
        """Return the METRICS and the replays' seconds of a configuration."""
        key = digest([config.key, self._setting])
        if key not in self.known:
            self.known[key] = self._measured(config)
            with self.path.open("a") as stream:
                stream.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]

    def _measured(self, config: EngineConfig) -> list[float] | None:
        launcher = SimulatedLauncher(COSTS)

        async def main() -> list[float]:
            clock = asyncio.get_running_loop().time
            values: dict[str, float] = {}
            async with launcher.launch(config, "") as engine:
                for name in ("saturated", "paced"):
                    await engine.reset()
                    plan = Plan(list(self.trace), paced=name == "paced")
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
        key = cold if self.keeps else _unpinned(config)
        warm = key in self.compiled or bool(config.args.get("enforce_eager"))
        self.compiled.add(key)
        return WARM_S if warm else COLD_S, 0.0


def _unpinned(config: EngineConfig) -> str:
    return config.cold_key(UNHASHED)
