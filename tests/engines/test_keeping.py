"""One engine serves many configurations that differ in hot arguments only."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tuner.config import EngineConfig, Json
from tuner.engines.keeping import KeepingLauncher
from tuner.errors import ConfigRejected, EngineFault

HOT = frozenset({"max_num_seqs", "enable_prefix_caching"})
CEILING = {"max_num_seqs": 64}


class Recorded:
    def __init__(self, args: Mapping[str, Json]) -> None:
        self.args = dict(args)

    @property
    def facts(self) -> Mapping[str, Json]:
        started = {"scheduling_policy": "fcfs", "watermark": 0.0} | self.args
        return {"effective": dict(self.args), "started": started}

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        if hot.get("max_num_seqs") == 13:
            raise ConfigRejected("not_hot", "an unlucky number")
        if hot["max_num_seqs"] > self.args["max_num_seqs"]:
            raise ConfigRejected("not_hot", "above the started value")
        return dict(hot)


class Recording:
    """Notes starts and ends."""

    kind = Recorded

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[Recorded]:
        self.log.append(f"start {config.args.get('max_num_seqs')}")
        try:
            yield self.kind(config.args)
        finally:
            self.log.append("end")


def config(seqs: int, caching: bool = True, block: int = 16) -> EngineConfig:
    args = {"max_num_seqs": seqs, "enable_prefix_caching": caching, "block_size": block}
    return EngineConfig("m", args)


async def test_hot_changes_keep_the_engine_and_cold_ones_start_another(tmp_path: Path) -> None:
    inner = Recording()
    keeping = KeepingLauncher(inner, HOT, CEILING)
    seen = []
    for asked in (config(8), config(32, False), config(8, block=32)):
        async with keeping.launch(asked, str(tmp_path / "log")) as engine:
            seen.append((engine.facts["effective"]["max_num_seqs"], engine.facts["live"]["reused"]))
    assert inner.log == ["start 64", "end", "start 64"]
    assert seen == [(8, False), (32, True), (8, False)]
    await keeping.aclose()
    assert inner.log[-1] == "end"


async def test_a_baseline_is_started_as_it_is_and_not_kept(tmp_path: Path) -> None:
    inner = Recording()
    keeping = KeepingLauncher(inner, HOT, CEILING)
    baseline = EngineConfig("m", config(8).args, label="baseline: ours")
    for cold in (EngineConfig("m"), baseline):
        async with keeping.launch(config(8), str(tmp_path / "log")):
            pass
        async with keeping.launch(cold, str(tmp_path / "log")) as engine:
            assert "live" not in engine.facts
    kept = ["start 64", "end"]
    assert inner.log == [*kept, "start None", "end", *kept, "start 8", "end"]


async def test_an_engine_that_fails_its_self_test_is_never_changed_live(tmp_path: Path) -> None:
    class Failing(Recorded):
        async def live_fault(self) -> str:
            inner.log.append("tested")
            return "its schedule is another one"

    class Recorder(Recording):
        kind = Failing

    inner = Recorder()
    keeping = KeepingLauncher(inner, HOT, CEILING)
    async with keeping.launch(config(8), str(tmp_path / "log")) as engine:
        assert "live changes are off: its schedule" in engine.facts["live"]["refused"]
    async with keeping.launch(config(16), str(tmp_path / "log")) as engine:
        assert "live" not in engine.facts
    starts = ["start 64", "tested", "end", "start 8", "end", "start 16", "end"]
    assert inner.log == starts


async def test_an_engine_tests_itself_once(tmp_path: Path) -> None:
    class Passing(Recorded):
        async def live_fault(self) -> str:
            inner.log.append("tested")
            return ""

    class Recorder(Recording):
        kind = Passing

    inner = Recorder()
    keeping = KeepingLauncher(inner, HOT, CEILING)
    for asked in (config(8), config(16), config(8, block=32)):
        async with keeping.launch(asked, str(tmp_path / "log")):
            pass
    await keeping.aclose()
    assert inner.log == ["start 64", "tested", "end", "start 64", "end"]


FREE = HOT | {"scheduling_policy", "watermark"}


async def test_a_hot_argument_that_is_left_out_goes_back_to_vllms_own_default(
    tmp_path: Path,
) -> None:
    inner = Recording()
    maxima = {**CEILING, "scheduling_policy": "priority", "watermark": 0.3}
    keeping = KeepingLauncher(inner, FREE, maxima)
    seen = []
    for more in ({"scheduling_policy": "priority"}, {"watermark": 0.2}, {}):
        asked = config(8).with_args(more)
        async with keeping.launch(asked, str(tmp_path / "log")) as engine:
            changed = engine.facts["live"]["changed"]
            seen.append((changed["scheduling_policy"], changed["watermark"]))
            assert engine.facts["effective"]["scheduling_policy"] == changed["scheduling_policy"]
    assert seen == [("priority", 0.0), ("fcfs", 0.2), ("fcfs", 0.0)]
    assert inner.log == ["start 64"]
    await keeping.aclose()


async def test_a_size_that_is_left_to_vllm_is_started_as_it_is(tmp_path: Path) -> None:
    inner = Recording()
    keeping = KeepingLauncher(inner, FREE, CEILING)
    open_size = EngineConfig("m", {"enable_prefix_caching": True, "watermark": 0.1})
    async with keeping.launch(open_size, str(tmp_path / "log")) as engine:
        assert engine.facts["effective"] == open_size.args
    assert inner.log == ["start None", "end"]


async def test_an_unknown_default_costs_a_start_and_says_so(tmp_path: Path) -> None:
    inner = Recording()
    keeping = KeepingLauncher(inner, FREE | {"stream_interval"}, CEILING)
    async with keeping.launch(config(8), str(tmp_path / "log")) as engine:
        assert "stream_interval: the engine's default" in engine.facts["live"]["refused"]
    assert inner.log == ["start 64", "end", "start 8"]
    await keeping.aclose()


async def test_a_nested_argument_is_changed_live_too(tmp_path: Path) -> None:
    inner = Recording()
    tokens = "speculative_config.num_speculative_tokens"
    keeping = KeepingLauncher(inner, HOT | {tokens}, {**CEILING, tokens: 5})
    for count in (3, 5, 1):
        drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": count}}
        async with keeping.launch(config(8).with_args(drafting), str(tmp_path / "log")) as engine:
            assert engine.facts["live"]["changed"][tokens] == count
    assert inner.log == ["start 64"]
    await keeping.aclose()


async def test_what_is_refused_live_is_started_cold(tmp_path: Path) -> None:
    inner = Recording()
    keeping = KeepingLauncher(inner, HOT, CEILING)
    async with keeping.launch(config(13), str(tmp_path / "log")) as engine:
        assert engine.facts["live"]["refused"] == "an unlucky number"
        assert engine.facts["effective"]["max_num_seqs"] == 13
    assert inner.log == ["start 64", "end", "start 13"]


async def test_an_engine_on_which_a_trial_broke_is_not_kept(tmp_path: Path) -> None:
    inner = Recording()
    keeping = KeepingLauncher(inner, HOT, CEILING)
    with pytest.raises(EngineFault):
        async with keeping.launch(config(8), str(tmp_path / "log")):
            raise EngineFault("stalled", "no token")
    assert inner.log == ["start 64", "end"]
