"""The simulated engine against what was measured on an H200, and its scheduler against paper."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tuner.config import EngineConfig, Json
from tuner.engines.simulated import SimulatedLauncher
from tuner.engines.simulated_batch import Batch
from tuner.engines.simulated_costs import SimulatedCosts
from tuner.errors import ConfigRejected
from tuner.job import Deadlines, Slo
from tuner.metrics import measure
from tuner.replay import Plan, replay
from tuner.trace import Ragged, Request, Trace

#: Lengths at quantiles of the 400 requests of the Azure 2023 conversation trace that were replayed
#: on the H200 (mean 1133 in, 274 out).
QUANTILES = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1]
PROMPTS = [20, 243, 961, 1062, 1157, 2739, 4089, 4125]
OUTPUTS = [8, 28, 93, 383, 402, 511, 577, 1000]
NO_NOISE = SimulatedCosts(noise=0.0)


def chat(n: int = 400, rate_per_s: float = 14.0) -> Trace:
    random = np.random.default_rng(3)
    return Trace.build(
        np.cumsum(random.exponential(1 / rate_per_s, n)) * 1e6,
        np.interp(random.permutation(n) / n, QUANTILES, PROMPTS),
        np.interp(random.permutation(n) / n, QUANTILES, OUTPUTS),
    )


def ran(
    args: Mapping[str, Json],
    trace: Trace | None = None,
    costs: SimulatedCosts = NO_NOISE,
    hot: Mapping[str, Json] | None = None,
) -> dict[str, Any]:
    """Replay a trace saturated and paced; return values, counters and the facts."""
    launcher = SimulatedLauncher(costs)
    requests = list(trace or chat())

    async def main() -> dict[str, Any]:
        out: dict[str, Any] = {}
        async with launcher.launch(EngineConfig("m", args), "") as engine:
            await engine.reconfigure(hot or {})
            for name in ("saturated", "paced"):
                await engine.reset()
                plan = Plan(requests, paced=name == "paced")
                records = await replay(engine, plan, lambda request: [], Deadlines())
                assert all(record.ok for record in records)
                out |= measure(name, records, Slo())[0]
                out |= {f"{name}.{k}": v for k, v in (await engine.counters()).items()}
            return {**out, **engine.facts}

    return launcher.run(main())


FP8 = {"quantization": "fp8", "kv_cache_dtype": "fp8"}


@pytest.mark.parametrize(
    ("seqs", "tokens", "more", "per_s", "itl_ms", "e2e_ms"),
    [
        (1024, 8192, {}, 17.4, 69.4, 7252),
        (1024, 2048, {}, 17.6, 52.4, 7236),
        (256, 1024, {}, 17.7, 31.7, 7153),
        (128, 512, {}, 16.0, 18.8, 6715),
        (1024, 8192, FP8, 23.8, 31.5, 4629),
        (256, 1024, FP8, 21.7, 20.0, 4356),
    ],
)
def test_it_measures_what_the_h200_measured(
    seqs: int, tokens: int, more: dict[str, Json], per_s: float, itl_ms: float, e2e_ms: float
) -> None:
    got = ran({"max_num_seqs": seqs, "max_num_batched_tokens": tokens, **more})
    assert got["saturated.requests_per_s"] == pytest.approx(per_s, rel=0.18)
    assert got["paced.itl.p99"] * 1e3 == pytest.approx(itl_ms, rel=0.20)
    assert got["paced.e2e.p99"] * 1e3 == pytest.approx(e2e_ms, rel=0.18)


def test_a_trial_takes_a_fraction_of_a_second() -> None:
    trace = chat(200)

    def cpu_s() -> float:
        began = time.process_time()
        ran({"max_num_seqs": 256, "max_num_batched_tokens": 2048}, trace, SimulatedCosts())
        return time.process_time() - began

    assert min(cpu_s() for _ in range(3)) < 1.0  # 0.13 s on an idle machine


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"enforce_eager": True}, {}),
        ({"compilation_config": {"cudagraph_mode": "PIECEWISE"}}, {}),
        ({"async_scheduling": False}, {}),
        ({}, {"quantization": "fp8"}),
        ({}, {"kv_cache_dtype": "fp8"}),
        ({"tensor_parallel_size": 1}, {"tensor_parallel_size": 2}),
        ({"max_num_seqs": 16}, {"max_num_seqs": 64}),
    ],
)
def test_knobs_move_throughput_as_on_a_gpu(worse: dict[str, Json], better: dict[str, Json]) -> None:
    speed = "saturated.output_tokens_per_s"
    assert ran(worse, chat(100))[speed] < 0.98 * ran(better, chat(100))[speed]


def test_shorter_pieces_of_prompts_keep_token_gaps_short() -> None:
    whole = ran({"max_num_batched_tokens": 8192})["paced.itl.p99"]
    assert ran({"max_num_batched_tokens": 512})["paced.itl.p99"] < 0.5 * whole
    pieces = {"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 256}
    assert ran(pieces)["paced.itl.p99"] < whole


def test_memory_becomes_kv_cache() -> None:
    tokens = ran({"max_num_seqs": 1024, "max_num_batched_tokens": 8192}, chat(4))["kv_cache_tokens"]
    assert tokens == pytest.approx(815_056, rel=0.02)
    assert ran({"kv_cache_dtype": "fp8"}, chat(4))["kv_cache_tokens"] > 1.9 * tokens
    assert ran({"gpu_memory_utilization": 0.5}, chat(4))["kv_cache_tokens"] < 0.6 * tokens


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"gpu_memory_utilization": 0.98}, "out_of_memory"),
        ({"gpu_memory_utilization": 0.12}, "out_of_memory"),
        ({"gpu_memory_utilization": 0.2, "max_model_len": 131_072}, "out_of_memory"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "invalid_arguments"),
    ],
)
def test_what_cannot_run_is_rejected(args: dict[str, Json], reason: str) -> None:
    with pytest.raises(ConfigRejected) as caught:
        ran(args)
    assert caught.value.reason == reason


def test_a_full_kv_cache_preempts_and_everything_still_ends() -> None:
    small = SimulatedCosts(noise=0.0, memory_bytes=18.3 * 2**30, context_bytes=0, graph_bytes=0)
    args = {"gpu_memory_utilization": 1.0, "max_num_seqs": 256, "max_model_len": 6000}
    tight, wide = ran(args, chat(60), small), ran({}, chat(60))
    assert tight["kv_cache_tokens"] < 12_000
    assert tight["saturated.preemptions"] > 0
    assert tight["saturated.kv_usage_max_share"] > 0.9
    assert "saturated.preemptions" not in wide
    assert tight["saturated.output_tokens_per_s"] < wide["saturated.output_tokens_per_s"]


def test_prefixes_are_shared_in_whole_blocks() -> None:
    shared = Trace.build(
        np.arange(10) * 1e6, [400] * 10, [4] * 10,
        blocks=Ragged.of([[7]] * 10), block_tokens=Ragged.of([[200]] * 10),
    )  # fmt: skip
    for size, hit in ((16, 192), (128, 128)):
        got = ran({"block_size": size}, shared)
        assert got["paced.prefix_hit_share"] == pytest.approx(9 * hit / 4000)
    off = ran({"enable_prefix_caching": False}, shared)
    assert off["paced.prefix_hit_share"] == 0.0


def test_tokens_come_in_messages_of_the_stream_interval() -> None:
    one = Trace.build([0], [100], [10])
    got = ran({"stream_interval": 4}, one)
    assert got["paced.itl.p50"] == 0.0
    assert got["paced.e2e.p50"] == pytest.approx(ran({}, one)["paced.e2e.p50"])


def test_a_live_change_measures_what_a_start_measures() -> None:
    hot = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    args = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    noisy = SimulatedCosts()
    live, cold = ran(args, chat(80), noisy, hot), ran({**args, **hot}, chat(80), noisy)
    for metric in ("saturated.output_tokens_per_s", "paced.itl.p99", "paced.e2e.p99"):
        assert live[metric] == pytest.approx(cold[metric], rel=1e-6)


@pytest.mark.parametrize(
    ("hot", "reason"),
    [({"block_size": 32}, "not_hot"), ({"max_num_batched_tokens": 8}, "invalid_arguments")],
)
def test_a_live_engine_refuses_and_stays_as_it_was(hot: dict[str, Json], reason: str) -> None:
    async def main() -> None:
        async with SimulatedLauncher(NO_NOISE).launch(EngineConfig("m"), "") as engine:
            with pytest.raises(ConfigRejected) as caught:
                await engine.reconfigure(hot)
            assert caught.value.reason == reason
            assert engine.facts["effective"] == {}

    SimulatedLauncher.run(main())


def test_the_second_start_of_what_was_compiled_is_warm() -> None:
    launcher = SimulatedLauncher()
    seconds = []

    async def start(args: Mapping[str, Json]) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        async with launcher.launch(EngineConfig("m", args), ""):
            seconds.append(clock() - began)

    hot, util = {"max_num_seqs": 64}, {"gpu_memory_utilization": 0.8}
    for args in ({}, {}, hot, util, {"block_size": 32}, {"enforce_eager": True}):
        launcher.run(start(args))
    assert seconds == pytest.approx([60, 20, 20, 20, 60, 20])


def test_steps_made_at_once_are_the_steps_made_one_by_one() -> None:
    def times(at_once: bool) -> list[float]:
        batch = Batch({}, NO_NOISE.pace({}), 100_000)
        batch.add(Request(0, 0.0, 3000, 20), 0)
        batch.add(Request(1, 0.0, 50, 7), 1)
        now = 0.0
        while batch.busy:
            if at_once and batch.steady:
                ends = now + np.cumsum(batch.span())
            else:
                ends = np.array([now + batch.step()])
            now = float(ends[-1])
            batch.commit(ends.tolist())
        return batch.ends

    assert times(True) == pytest.approx(times(False))
    assert len(times(True)) == 21  # one step of the long prompt alone, then both decode


def test_a_request_given_up_frees_its_seat() -> None:
    trace = Trace.build([0, 0], [100, 100], [100_000, 10])

    async def main() -> list[str]:
        async with SimulatedLauncher(NO_NOISE).launch(
            EngineConfig("m", {"max_num_seqs": 1}), ""
        ) as engine:
            plan = Plan(list(trace), paced=False)
            records = await replay(engine, plan, lambda request: [], Deadlines(request_s=60.0))
            again = await replay(engine, Plan([trace[1]]), lambda request: [], Deadlines())
            return [record.error[:8] for record in [*records, *again]]

    assert SimulatedLauncher.run(main()) == ["deadline", "deadline", ""]
