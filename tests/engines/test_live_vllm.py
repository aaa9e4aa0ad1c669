"""Live changes on a real engine: the schedule of a cold start, and refusals without a trace."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tuner.config import EngineConfig, Json
from tuner.engines import vllm_args
from tuner.engines.live import client, plugin, temperature
from tuner.engines.live.ceiling import hot_values
from tuner.engines.live.schedule import Work, recorded
from tuner.engines.vllm import VllmEngine, VllmLauncher, base_env
from tuner.errors import ConfigRejected
from tuner.trace import Request

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own
    pytest.mark.timeout(900),  # engine starts are slow where others use the machine, too
]
MODEL = Path(__file__).parent.parent.parent / "studies" / "models" / "tiny"
STARTED: Mapping[str, Json] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "bfloat16",
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
}
SETTINGS: tuple[Mapping[str, Json], ...] = (
    {"max_num_seqs": 4, "max_num_batched_tokens": 256, "scheduling_policy": "priority"},
    {"num_gpu_blocks_override": 20, "enable_prefix_caching": False, "watermark": 0.1},
    {"long_prefill_token_threshold": 64, "max_num_active_seqs": 6},
)
#: What is larger than the start, of a wrong type or range, in conflict, or needs a restart.
REFUSED: tuple[tuple[Mapping[str, Json], str], ...] = (
    ({"max_num_seqs": 17}, "more than the engine was started with"),
    ({"max_num_seqs": 0}, "greater than or equal to 1"),
    ({"max_num_seqs": -1}, "greater than or equal to 1"),
    ({"max_num_seqs": "8"}, "'8' is no int"),
    ({"max_num_seqs": True}, "True is no int"),
    ({"max_num_batched_tokens": 4096}, "more than the engine was started with"),
    ({"max_num_batched_tokens": 8}, "must be greater than or equal to max_num_seqs"),
    ({"block_size": 16}, "needs a restart"),
    ({"max_model_len": 1024}, "needs a restart"),
    ({"scheduling_policy": "nope"}, "'nope' is no"),
    ({"num_gpu_blocks_override": 10}, r"one request of max_model_len"),
    ({"num_gpu_blocks_override": 1_000_000_000}, "KV blocks: this engine can have"),
    ({"watermark": 1.5}, "less than 1"),
    ({"async_scheduling": True}, "V1 model runner"),
    ({"gpu_memory_utilization": 0.5}, "only a CUDA device"),
    ({"spec_tokens": 2}, "no drafter"),
    ({"long_prefill_token_threshold": -5}, "greater than or equal to 0"),
    ({"long_prefill_token_threshold": 5000}, "cannot be greater than the max_model_len"),
    ({"enable_chunked_prefill": False, "max_num_batched_tokens": 512}, "smaller than max_model"),
    ({"max_num_active_seqs": 17}, "cannot be greater than max_num_seqs"),
    ({"stream_interval": 0}, "no number from 1"),
    ({"max_num_seqs": 8, "block_size": 16}, "block_size: needs a restart"),
)


def work(count: int) -> Work:
    """Requests of mixed sizes and priorities; every four share their first block of 128 tokens."""
    out = []
    for n in range(count):
        shared = [(31 * (n // 4) + k) % 30_000 + 5 for k in range(128)]
        own = [(7919 * (n + 1) + 31 * k) % 30_000 + 5 for k in range(22 + 37 * n % 230)]
        request = Request(n, 0.0, len(shared + own), 4 + 5 * n % 12, priority=n * 7 % 5)
        out.append((request, shared + own))
    return out


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        for name, value in base_env(cache, device="cpu", model=str(MODEL)).items():
            patch.setenv(name, os.environ.get(name, value))
        yield
    gc.collect()  # what vLLM leaves unclosed complains here, not in somebody else's test


@asynccontextmanager
async def started(directory: Path, name: str, **more: Json) -> AsyncIterator[VllmEngine]:
    config = EngineConfig(str(MODEL), {**STARTED, **more})
    async with VllmLauncher().launch(config, str(directory / f"{name}.log")) as engine:
        await recorded(engine, work(4))
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    async with AsyncExitStack() as stack:
        directory = tmp_path_factory.mktemp("live")
        yield await stack.enter_async_context(started(directory, "live"))


async def test_the_engine_says_what_it_can_change(live: VllmEngine) -> None:
    said = await client.state(live.llm)
    assert {"max_num_seqs", "max_num_batched_tokens", "stream_interval"} < set(said["hot"])
    assert said["values"] == said["started"]
    assert said["values"]["max_num_seqs"] == 16
    assert "drafter" in said["cold"]["spec_tokens"]


async def test_the_self_test_passes_and_leaves_the_engine_as_it_was(live: VllmEngine) -> None:
    before = await client.state(live.llm)
    assert await live.live_fault() == ""
    assert await client.state(live.llm) == before


async def test_the_self_test_notices_a_scheduler_that_goes_its_own_way(
    live: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = client.apply

    async def only_said(llm: object, values: Mapping[str, Json], **named: float) -> object:
        """Answer as if all were done, and leave the sequences as they are."""
        kept = {name: value for name, value in values.items() if name != "max_num_seqs"}
        return {**await apply(llm, kept, **named), **values} if kept else values

    monkeypatch.setattr(client, "self_test", lambda llm: asyncio.sleep(0, ""))
    monkeypatch.setattr(client, "apply", only_said)
    assert await live.live_fault() == "changed to 2 sequences it ran 8"


@pytest.mark.parametrize(("values", "reason"), REFUSED, ids=lambda value: str(value)[:50])
async def test_a_refusal_leaves_no_trace(
    live: VllmEngine, values: Mapping[str, Json], reason: str
) -> None:
    before = await client.state(live.llm)
    with pytest.raises(ConfigRejected, match=reason) as caught:
        await live.reconfigure(values)
    assert caught.value.reason == "not_hot"
    assert await client.state(live.llm) == before


async def test_a_busy_engine_refuses_and_works_on(live: VllmEngine) -> None:
    before = await client.state(live.llm)
    long = Request(99, 0.0, 8, 300)
    running = asyncio.create_task(live.generate(long, list(range(5, 13))))
    while (await client.state(live.llm))["idle"]:  # noqa: ASYNC110  # the engine tells nobody
        await asyncio.sleep(0.01)
    with pytest.raises(ConfigRejected, match="not idle after 0 s"):
        await client.apply(live.llm, {"max_num_seqs": 2}, idle_s=0)
    # One that waits long enough is served once the answer is out.
    changed = asyncio.create_task(client.apply(live.llm, {"max_num_seqs": 2}, idle_s=60))
    assert (await running).answered_tokens == 300
    assert await changed == {"max_num_seqs": 2}
    await live.reconfigure({"max_num_seqs": 16})
    after = await client.state(live.llm)
    assert after["values"] == before["values"]


async def test_facts_follow_the_changes(live: VllmEngine) -> None:
    tokens = live.facts["kv_cache_tokens"]
    await live.reconfigure({"num_gpu_blocks_override": 20, "max_num_seqs": 3})
    assert live.facts["effective"]["max_num_seqs"] == 3
    assert live.facts["kv_cache_tokens"] == 20 * 128
    await live.reconfigure({"num_gpu_blocks_override": None, "max_num_seqs": 16})
    assert live.facts["kv_cache_tokens"] == tokens


async def test_prefix_caching_off_and_on(live: VllmEngine) -> None:
    hits = []
    for value in (True, False, True):
        await live.reconfigure({"enable_prefix_caching": value})
        hits.append((await recorded(live, work(8))).totals["cached_tokens"])
    assert hits[0] == hits[2] > hits[1] == 0
    effective = (await client.state(live.llm))["effective"]
    assert effective["prefix_caching"] is effective["hashes_prompts"] is True


@pytest.mark.parametrize("number", range(len(SETTINGS)))
async def test_live_and_cold_schedules_are_the_same(
    live: VllmEngine, tmp_path: Path, number: int
) -> None:
    setting = SETTINGS[number]
    defaults = (await client.state(live.llm))["started"]
    await live.reconfigure(hot_values({}, defaults))
    await live.reset()
    plain = await recorded(live, work(24))
    async with started(tmp_path, "cold", **setting) as cold:
        await live.reconfigure(hot_values(setting, defaults))
        for engine in (live, cold):
            await engine.reset()
        ours, theirs = [await recorded(engine, work(24)) for engine in (live, cold)]
    assert ours.digest == theirs.digest
    assert ours.totals == theirs.totals
    assert ours.digest != plain.digest  # the setting does something
    assert [one.answered_tokens for one in ours.completions] == [
        r.output_tokens for r, _ in work(24)
    ]


def config(**args: Json) -> EngineConfig:
    return EngineConfig(str(MODEL), {**STARTED, **args})


def test_temperatures_are_computed() -> None:
    got = temperature.of(
        {
            "max_num_seqs": (8, 16),
            "stream_interval": (1, 4),
            "num_gpu_blocks_override": (None, 20),
            "gpu_memory_utilization": (0.5, 0.9),
            "seed": (0, 1),
            "block_size": (16, 128),
            "max_model_len": (1024, 2048),
            "compilation_config.cudagraph_capture_sizes": ([1, 2], [1, 2, 4]),
        },
        config(),
    )
    assert {name for name, warmth in got.items() if warmth == "hot"} == {
        "max_num_seqs",
        "stream_interval",
        "num_gpu_blocks_override",
    }
    assert got["seed"] == got["gpu_memory_utilization"] == "warm"
    assert got["block_size"] == got["max_model_len"] == "cold"


def test_nothing_is_warm_without_proof() -> None:
    assert temperature.of({"max_model_len": (-5, 2048)}, config()) == {"max_model_len": "cold"}


def test_an_engine_of_several_replicas_has_nothing_hot() -> None:
    values = {"max_num_seqs": (8, 16)}
    base = config(data_parallel_size=2, data_parallel_backend="mp")
    assert temperature.of(values, base)["max_num_seqs"] != "hot"


def test_the_plugin_changes_neither_the_compile_hash_nor_the_environment() -> None:
    _, before = vllm_args.built(config())
    environment = dict(os.environ)
    plugin.register()
    plugin.register()
    assert dict(os.environ) == environment
    assert vllm_args.built(config())[1].compute_hash() == before.compute_hash()
