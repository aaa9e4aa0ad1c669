"""Live changes without an engine: what is asked, what is refused, what is started with."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest

from tuner.config import Json
from tuner.engines.live import client, proof
from tuner.engines.live.arguments import ARGUMENTS, fits
from tuner.engines.live.ceiling import ceiling, hot_values
from tuner.errors import ConfigRejected, EngineFault

STARTED = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "stream_interval": 1}


class FakeCore:
    """Answers utility calls as an engine with our plugin does; the first ``busy`` sets fail."""

    def __init__(self, busy: int = 0, ignores: bool = False) -> None:
        self.values: dict[str, Json] = dict(STARTED)
        self.busy = busy
        self.ignores = ignores
        self.calls: list[str] = []

    async def call_utility_async(self, method: str, *args: Any) -> dict[str, Json]:
        self.calls.append(method)
        return self._get() if method == "tuner_live_get" else self._set(*args)

    def _get(self) -> dict[str, Json]:
        effective = {"running_max": self.values["max_num_seqs"]}
        return {
            "hot": list(STARTED),
            "cold": {"block_size": "no"},
            "started": dict(STARTED),
            "values": dict(self.values),
            "effective": effective,
        }

    def _set(self, values: Mapping[str, Json]) -> dict[str, Json]:
        if values.get("max_num_seqs", 0) > STARTED["max_num_seqs"]:
            return {"ok": False, "busy": False, "reason": "max_num_seqs: too large"}
        if self.busy:
            self.busy -= 1
            return {"ok": False, "busy": True, "reason": "the engine is not idle"}
        if not self.ignores:
            self.values |= values
        return {"ok": True, **self._get()}


def llm(core: Any) -> SimpleNamespace:
    return SimpleNamespace(engine_core=core, output_processor=SimpleNamespace(stream_interval=1))


class NoPlugin:
    async def call_utility_async(self, method: str, *args: Any) -> None:
        raise Exception(f"Call to {method} method failed: 'EngineCore' has no attribute '{method}'")


async def test_values_come_back_as_read() -> None:
    engine = llm(FakeCore())
    got = await client.apply(engine, {"max_num_seqs": 8, "stream_interval": 4})
    assert got == {"max_num_seqs": 8, "stream_interval": 4}
    assert engine.output_processor.stream_interval == 4
    assert (await client.state(engine))["values"]["stream_interval"] == 4


async def test_a_busy_engine_is_waited_for() -> None:
    core = FakeCore(busy=3)
    await client.apply(llm(core), {"max_num_seqs": 8})
    assert core.calls.count("tuner_live_set") == 4


async def test_an_engine_that_stays_busy_is_refused() -> None:
    core = FakeCore(busy=1_000_000)
    with pytest.raises(ConfigRejected, match=r"not_hot: the engine is not idle after 0\.1 s"):
        await client.apply(llm(core), {"max_num_seqs": 8}, idle_s=0.1)


async def test_a_refusal_changes_nothing_at_the_front_end_either() -> None:
    engine = llm(FakeCore())
    with pytest.raises(ConfigRejected, match="not_hot: max_num_seqs: too large"):
        await client.apply(engine, {"max_num_seqs": 64, "stream_interval": 4})
    assert engine.output_processor.stream_interval == 1


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5, None])
async def test_a_wrong_stream_interval_changes_nothing_in_the_engine(value: Json) -> None:
    core = FakeCore()
    with pytest.raises(ConfigRejected, match=r"not_hot: stream_interval: .* is no number from 1"):
        await client.apply(llm(core), {"max_num_seqs": 8, "stream_interval": value})
    assert core.values == STARTED


async def test_a_value_that_is_not_taken_is_a_fault() -> None:
    with pytest.raises(EngineFault, match=r"not_applied.*'max_num_seqs': \[8, 32\]"):
        await client.apply(llm(FakeCore(ignores=True)), {"max_num_seqs": 8})


async def test_without_the_plugin_nothing_is_hot() -> None:
    engine = llm(NoPlugin())
    with pytest.raises(ConfigRejected, match="without the tuner's plugin") as caught:
        await client.apply(engine, {"max_num_seqs": 8})
    assert "VLLM_PLUGINS" in caught.value.hint


async def test_the_self_test_passes_and_restores() -> None:
    core = FakeCore()
    await client.apply(llm(core), {"max_num_seqs": 7})
    assert await client.self_test(llm(core)) == ""
    assert core.values["max_num_seqs"] == 7


async def test_the_self_test_notices_an_engine_that_only_pretends() -> None:
    class Pretender(FakeCore):
        def _get(self) -> dict[str, Json]:
            return {**super()._get(), "effective": {"running_max": 32}}

    assert "works with {'running_max': 32}" in await client.self_test(llm(Pretender()))


async def test_an_engine_death_is_not_taken_for_a_refusal() -> None:
    class Dead:
        async def call_utility_async(self, method: str, *args: Any) -> None:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await client.apply(llm(Dead()), {"max_num_seqs": 8})


def test_a_left_out_argument_goes_back_to_where_it_was() -> None:
    spec = {"speculative_config.num_speculative_tokens": 4}
    started = {**STARTED, **spec}
    args = {"max_num_seqs": 8, "block_size": 16, "speculative_config": {"method": "ngram"}}
    assert hot_values(args, started) == {**STARTED, "max_num_seqs": 8, **spec}
    args = {"speculative_config": {"num_speculative_tokens": 2}}
    assert hot_values(args, started)["speculative_config.num_speculative_tokens"] == 2
    assert hot_values({}, started) == started


def test_an_engine_is_started_at_the_largest_values() -> None:
    args = {"max_num_seqs": 8, "enable_prefix_caching": False, "block_size": 16}
    maxima = {"max_num_seqs": 256, "max_num_batched_tokens": 128, "enable_prefix_caching": True}
    assert ceiling(args, maxima) == {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 256,  # vLLM wants at least as many tokens as sequences
        "enable_prefix_caching": True,
        "block_size": 16,
    }
    assert ceiling({"max_num_seqs": 512}, {"max_num_seqs": 256}) == {"max_num_seqs": 512}


def test_what_has_no_largest_value_stays() -> None:
    maxima = {"scheduling_policy": "priority", "watermark": 0.1, "max_num_active_seqs": 64}
    args = {"scheduling_policy": "fcfs", "max_num_active_seqs": 8}
    assert ceiling(args, maxima) == {"scheduling_policy": "fcfs", "watermark": 0.1}


def test_the_whole_pool_and_a_nested_value() -> None:
    assert ceiling({"num_gpu_blocks_override": 10}, {"num_gpu_blocks_override": None}) == {}
    args = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
    maxima = {"speculative_config.num_speculative_tokens": 5}
    assert ceiling(args, maxima)["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 5,
    }
    assert args["speculative_config"]["num_speculative_tokens"] == 2


@pytest.mark.parametrize(
    ("value", "hint", "whether"),
    [
        (8, int, True),
        ("8", int, False),
        (True, int, False),
        (8.0, int, False),
        (1, float, True),
        (float("nan"), float, False),
        (None, int | None, True),
        (None, int, False),
        (1, bool, False),
        (True, bool | None, True),
        ("fcfs", Literal["fcfs", "priority"], True),
        ("nope", Literal["fcfs", "priority"], False),
        (3, Annotated[int, "at least 1"], True),
        ([1], list, False),
    ],
)
def test_values_are_taken_without_conversion(value: Json, hint: Any, whether: bool) -> None:
    assert fits(value, hint) is whether


def test_the_plugin_loads_without_anything_heavy() -> None:
    code = (
        "import sys, tuner.engines.live.plugin, tuner.engines.live.recorder, "
        "tuner.engines.live.rebuild\n"
        "heavy = {'vllm', 'torch', 'ray', 'optuna', 'pydantic', 'psutil', 'yaml'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_entry_point_is_there() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="vllm_tuner")
    assert found.load().__name__ == "register"


def test_every_argument_has_a_place() -> None:
    assert {place.section for place in ARGUMENTS.values()} == {
        "scheduler",
        "cache",
        "speculative",
        "frontend",
    }


async def test_two_changes_at_once_do_not_mix() -> None:
    core = FakeCore(busy=2)
    engine = llm(core)
    await asyncio.gather(
        client.apply(engine, {"max_num_seqs": 8}),
        client.apply(engine, {"max_num_batched_tokens": 64}),
    )
    assert (core.values["max_num_seqs"], core.values["max_num_batched_tokens"]) == (8, 64)


@pytest.mark.parametrize(
    ("digests", "running", "fault"),
    [
        (["a", "b", "a"], 2, ""),
        (
            ["a", "b", "c", "c", "c"],
            2,
            "changed back, its schedule is another one than that of its start",
        ),
        (["a", "b", "a"], 8, "changed to 2 sequences it ran 8"),
    ],
)
async def test_the_self_test_compares_schedules(
    monkeypatch: pytest.MonkeyPatch, digests: list[str], running: int, fault: str
) -> None:
    core = FakeCore()
    schedules = iter(digests)

    async def replayed(engine: Any, work: Any) -> SimpleNamespace:
        return SimpleNamespace(digest=next(schedules), totals={"running_max": running})

    async def reset() -> None:
        core.calls.append("reset")

    monkeypatch.setattr(proof, "recorded", replayed)
    engine: Any = SimpleNamespace(llm=llm(core), reset=reset)
    assert await proof.fault_of(engine) == fault
    assert core.values == STARTED
    assert core.calls[-1] == "reset"


async def test_a_self_test_whose_requests_come_in_disorder_is_tried_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = []

    async def disordered(engine: Any, work: Any) -> None:
        tries.append(work)
        raise ExceptionGroup("tasks", [RuntimeError("in another order")])

    monkeypatch.setattr(proof, "recorded", disordered)
    engine: Any = SimpleNamespace(llm=llm(FakeCore()))
    assert await proof.fault_of(engine) == "no self-test: in another order"
    assert len(tries) == 3


async def test_a_self_test_is_not_failed_by_one_schedule_that_came_out_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = iter(["started", "fewer", "late", "started"])

    async def replayed(engine: Any, work: Any) -> SimpleNamespace:
        return SimpleNamespace(digest=next(digests), totals={"running_max": 2})

    async def reset() -> None: ...

    monkeypatch.setattr(proof, "recorded", replayed)
    engine: Any = SimpleNamespace(llm=llm(FakeCore()), reset=reset)
    assert await proof.fault_of(engine) == ""
    assert next(digests, None) is None
