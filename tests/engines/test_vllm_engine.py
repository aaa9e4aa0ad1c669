"""A real vLLM engine: a tiny model of random weights on the CPU. One engine serves most tests."""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.processes import until
from tuner.accuracy import Drift, Scored
from tuner.config import EngineConfig, Json
from tuner.engines import Completion
from tuner.engines.vllm import VllmEngine, VllmLauncher, base_env
from tuner.errors import ConfigRejected, EngineFault, RequestRejected
from tuner.job import Deadlines
from tuner.records import RequestRecord
from tuner.replay import Plan, replay
from tuner.trace import Request

pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's own, and torch's
]

MODEL = str(Path(__file__).parents[2] / "studies" / "models" / "tiny")
CACHE = Path.home() / ".cache" / "vllm-tuner"


def config(**args: Json) -> EngineConfig:
    base = {"load_format": "dummy", "max_model_len": 2048, "enforce_eager": True}
    return EngineConfig(MODEL, {**base, **args})


def request(prompt: int, output: int, number: int = 0) -> Request:
    return Request(number, 0.0, prompt, output)


def tokens(count: int, start: int = 10) -> list[int]:
    return [(start + 7 * place) % 31_000 + 5 for place in range(count)]


def started_here() -> set[int]:
    """Processes below this one, but for Python's own tracker of shared memory."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return {child.pid for child in psutil.Process().children(recursive=True)} - {tracker}


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in base_env(CACHE, device="cpu", model=MODEL).items():
            patch.setenv(name, value)
        yield
    gc.collect()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine") / "engine.log"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(log: Path, environment: None) -> AsyncIterator[VllmEngine]:
    asked = config(
        compilation_config={"mode": 3, "cudagraph_mode": "PIECEWISE"},
        scheduling_policy="priority",
        max_num_seqs=4,
    )
    async with VllmLauncher().launch(asked, str(log)) as engine:
        yield engine


async def answer(engine: VllmEngine, prompt: Sequence[int], output: int) -> Completion:
    return await engine.generate(request(len(prompt), output), prompt)


async def test_every_token_is_counted_and_timed_on_the_loop_s_clock(engine: VllmEngine) -> None:
    loop = asyncio.get_running_loop()
    sent = loop.time()
    completion = await answer(engine, tokens(100), 16)
    assert completion.answered_tokens == len(completion.token_s) == 16
    times = [sent, *completion.token_s, loop.time()]
    assert times == sorted(times)
    assert len(set(completion.token_s)) > 8  # they do not come all at once


async def test_many_requests_at_once_are_all_answered_in_full(engine: VllmEngine) -> None:
    await engine.reset()
    asked = [
        engine.generate(request(50, 4 + number, number), tokens(50, number)) for number in range(12)
    ]
    answered = [completion.answered_tokens for completion in await asyncio.gather(*asked)]
    assert answered == [4 + number for number in range(12)]
    counters = await engine.counters()
    assert counters["running_max"] == 4
    assert counters["waiting_max"] >= 1
    assert 0 < counters["kv_usage_max_share"] < 1
    assert counters["preemptions"] == 0
    assert counters["generated_tokens"] == sum(answered)


async def test_a_repeated_prompt_is_cached_until_reset(engine: VllmEngine) -> None:
    await engine.reset()
    prompt = tokens(300, 1000)
    first, again = [await answer(engine, prompt, 2) for _ in range(2)]
    assert (first.cached_tokens, again.cached_tokens) == (0, 256)  # whole blocks of 128
    assert (await engine.counters())["prefix_hit_share"] == pytest.approx(256 / 600)
    await engine.reset()
    cleared = await engine.counters()
    assert "prefix_hit_share" not in cleared
    assert cleared["running_max"] == cleared["kv_usage_max_share"] == 0
    assert (await answer(engine, prompt, 2)).cached_tokens == 0


async def test_a_prompt_that_does_not_fit_is_refused_and_the_engine_lives_on(
    engine: VllmEngine,
) -> None:
    with pytest.raises(RequestRejected, match="maximum model length of 2048"):
        await answer(engine, tokens(3000), 4)
    with pytest.raises(RequestRejected):
        await answer(engine, tokens(10), 0)
    assert (await answer(engine, tokens(10), 4)).answered_tokens == 4


async def test_a_cancelled_request_frees_its_place(engine: VllmEngine) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await answer(engine, tokens(10), 2000)
    await engine.reset()  # refused while a request holds cache
    assert (await answer(engine, tokens(10), 4)).answered_tokens == 4


class Impatient:
    """A judge that has seen enough as soon as requests are open."""

    def take(self, record: RequestRecord) -> None: ...

    def decided(self, now_s: float, open: Collection[RequestRecord]) -> bool:
        return bool(open)


async def test_a_replay_that_is_stopped_leaves_an_idle_engine(engine: VllmEngine) -> None:
    plan = Plan([request(10, 1500, number) for number in range(30)])
    records = await replay(engine, plan, lambda r: tokens(10, r.id), Deadlines(), Impatient())
    cut_off = [r for r in records if r.error == "stopped: the replay ended before the answer"]
    assert len(cut_off) > 20
    await engine.reset()
    assert (await answer(engine, tokens(10), 4)).answered_tokens == 4
    counted = await engine.counters()
    assert counted["running_max"] == 1


async def test_facts_say_what_really_runs(engine: VllmEngine) -> None:
    facts = engine.facts
    assert json.loads(json.dumps(facts)) == facts
    assert facts["vocab_size"] == 32_000
    assert facts["model"] == {"dtype": "bfloat16", "max_model_len": 2048}
    assert facts["kv_cache_tokens"] % 128 == 0
    assert facts["kv_cache_tokens"] > 2048
    effective = facts["effective"]
    assert (effective["max_num_seqs"], effective["scheduling_policy"]) == (4, "priority")
    # Defaults are those of `vllm serve`, not of the library.
    assert effective["max_num_batched_tokens"] == 2048
    assert facts["changed"] == {
        "compilation_config.mode": [3, 0],
        "compilation_config.cudagraph_mode": ["PIECEWISE", "NONE"],
    }
    start = facts["start"]
    assert start["start_s"] >= start["engine_s"] > start["init_s"] > 0
    assert start["first_token_s"] > 0
    parts = ("import_s", "config_s", "processes_s", "init_s", "first_token_s")
    assert sum(start[part] for part in parts) <= start["start_s"] + 0.1
    assert 0 <= start["warm_up_s"] <= start["init_s"]
    assert facts["compile"] == {}  # eager


async def test_the_log_holds_what_vllm_says(engine: VllmEngine, log: Path) -> None:
    assert "Initializing a V1 LLM engine" in log.read_text()


async def refused(tmp_path: Path, **args: Json) -> ConfigRejected | EngineFault:
    before = started_here()
    with pytest.raises((ConfigRejected, EngineFault)) as caught:
        async with VllmLauncher().launch(config(**args), str(tmp_path / "engine.log")):
            pass
    assert started_here() == before
    error = caught.value
    assert isinstance(error, ConfigRejected | EngineFault)
    return error


async def test_a_block_size_that_the_worker_cannot_use_is_rejected_with_its_cause(
    tmp_path: Path,
) -> None:
    error = await refused(tmp_path, block_size=8)
    assert isinstance(error, ConfigRejected)
    assert error.reason == "unsupported_by_hardware"
    assert "32" in error.detail
    assert "See root cause above" not in error.detail


async def test_a_cache_too_small_for_one_request_is_out_of_memory(tmp_path: Path) -> None:
    error = await refused(tmp_path, num_gpu_blocks_override=2)
    assert isinstance(error, ConfigRejected)
    assert error.reason == "out_of_memory"
    assert "max seq len (2048)" in error.detail


async def test_what_vllm_refuses_to_build_starts_nothing(tmp_path: Path) -> None:
    error = await refused(tmp_path, max_num_seqs=64, max_num_batched_tokens=32)
    assert (type(error), error.reason) == (ConfigRejected, "invalid_arguments")


async def test_an_exception_in_the_body_leaves_no_process(tmp_path: Path) -> None:
    before, environment = started_here(), dict(os.environ)

    async def failing_body() -> None:
        async with VllmLauncher().launch(config(), str(tmp_path / "engine.log")):
            assert started_here() > before
            raise KeyError

    with pytest.raises(KeyError):
        await failing_body()
    assert started_here() == before
    assert dict(os.environ) == environment


async def test_an_engine_that_is_killed_is_a_fault_of_the_engine(tmp_path: Path) -> None:
    before = started_here()
    async with VllmLauncher().launch(config(), str(tmp_path / "engine.log")) as engine:
        waiting = asyncio.create_task(answer(engine, tokens(10), 2000))
        await answer(engine, tokens(10), 4)
        for pid in started_here() - before:
            psutil.Process(pid).kill()
        with pytest.raises(EngineFault, match="engine_died"):
            await waiting
        with pytest.raises(EngineFault, match="engine_died"):
            await answer(engine, tokens(10), 4)
    assert started_here() == before


async def test_a_start_that_is_broken_off_leaves_no_process(tmp_path: Path) -> None:
    before = started_here()
    launching = asyncio.create_task(_launch(tmp_path / "engine.log"))
    await asyncio.to_thread(until, lambda: started_here() != before)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert started_here() == before


async def _launch(log: Path) -> None:
    async with VllmLauncher().launch(config(), str(log)):
        pass


_PROGRAM = """
import asyncio, sys
from pathlib import Path
from tuner.config import EngineConfig
from tuner.engines.vllm import VllmLauncher

async def main():
    print("before", flush=True)
    args = {"load_format": "dummy", "max_model_len": 2048, "enforce_eager": True}
    async with VllmLauncher().launch(EngineConfig(sys.argv[1], args), sys.argv[2]):
        print("inside", flush=True)
    print("after", flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_nothing_of_vllm_reaches_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, MODEL, str(log)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, errors = await process.communicate()
    assert (said, errors) == (b"before\nafter\n", b"")
    text = log.read_text()
    assert "inside" in text
    assert "Initializing a V1 LLM engine" in text


def weighted(folder: Path) -> str:
    """Make the tiny model with weights of which answers depend on the prompt; return its folder."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = transformers.AutoConfig.from_pretrained(MODEL, initializer_range=0.1)
    transformers.AutoModelForCausalLM.from_config(shape).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


async def test_the_same_configuration_has_no_drift_and_fp8_in_the_cache_has_some(
    tmp_path: Path,
) -> None:
    model = weighted(tmp_path / "model")
    prompts = [tokens(24, start) for start in (100, 2000, 7000)]

    async def scored(engine: VllmEngine, reference: Sequence[Scored] = ()) -> list[Scored]:
        answers = [one.answer for one in reference] or [None] * len(prompts)
        return [await engine.score(p, 8, a) for p, a in zip(prompts, answers, strict=True)]

    def asked(**args: Json) -> EngineConfig:
        return EngineConfig(model, {"max_model_len": 512, "enforce_eager": True, **args})

    async with VllmLauncher().launch(asked(), str(tmp_path / "plain.log")) as engine:
        reference = await scored(engine)
        same = Drift.between(reference, await scored(engine, reference))
    assert [len(one.answer) for one in reference] == [8, 8, 8]
    assert same.worst < 1e-3
    assert (same.top1_agreement, same.exact_match) == (1.0, 1.0)
    fp8 = asked(kv_cache_dtype="fp8")
    async with VllmLauncher().launch(fp8, str(tmp_path / "fp8.log")) as engine:
        other = Drift.between(reference, await scored(engine, reference))
    assert other.worst > 10 * max(same.worst, 1e-3), f"{other} against {same}"
