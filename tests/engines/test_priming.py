"""Of engines that start together with one compile key, one compiles and the others wait for it."""

import asyncio
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.engines.priming import draft_tokens, first_start, speculative_root
from tuner.engines.vllm_env import own_cache


async def start(log: list[str], name: str, env: dict[str, str], go: asyncio.Event) -> None:
    async with first_start("key", env):
        log.append(f"{name} starts")
        await go.wait()
        log.append(f"{name} is ready")


async def until(log: list[str], count: int) -> None:
    async with asyncio.timeout(10):
        while len(log) < count:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


async def test_the_others_wait_until_the_first_is_ready(tmp_path: Path) -> None:
    env, log = {"VLLM_CACHE_ROOT": str(tmp_path)}, list[str]()
    go, at_once = asyncio.Event(), asyncio.Event()
    at_once.set()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(start(log, "a", env, go))
        await until(log, 1)
        tasks.create_task(start(log, "b", env, at_once))
        tasks.create_task(start(log, "c", env, at_once))
        await asyncio.sleep(0.3)
        assert log == ["a starts"]
        go.set()
    assert log[:2] == ["a starts", "a is ready"]
    assert len(log) == 6


async def test_later_starts_do_not_wait_for_each_other(tmp_path: Path) -> None:
    env, log, go = {"VLLM_CACHE_ROOT": str(tmp_path)}, list[str](), asyncio.Event()
    async with first_start("key", env):
        pass
    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(start(log, name, env, go))
        await until(log, 2)
        assert sorted(log) == ["a starts", "b starts"]
        go.set()


async def test_a_first_start_that_fails_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    env, log = {"VLLM_CACHE_ROOT": str(tmp_path)}, list[str]()
    with pytest.raises(ValueError, match="rejected"):
        async with first_start("key", env):
            raise ValueError("rejected")
    go = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(start(log, "a", env, go))
        await until(log, 1)
        tasks.create_task(start(log, "b", env, go))
        await asyncio.sleep(0.3)
        assert log == ["a starts"]
        go.set()


async def test_a_wait_can_be_cancelled(tmp_path: Path) -> None:
    env = {"VLLM_CACHE_ROOT": str(tmp_path)}
    async with first_start("key", env):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), first_start("key", env):
                pass
    async with first_start("key", env) as waited_s:
        assert waited_s < 5


async def test_other_keys_and_no_cache_wait_for_nobody(tmp_path: Path) -> None:
    env = {"VLLM_CACHE_ROOT": str(tmp_path)}
    async with asyncio.timeout(5), first_start("a", env):
        async with first_start("b", env) as waited_s:
            assert waited_s < 1
        async with first_start("a", {}) as waited_s:
            assert waited_s == 0
    closed = tmp_path / "file"
    closed.write_text("")
    async with asyncio.timeout(5), first_start("a", {"VLLM_CACHE_ROOT": str(closed)}):
        pass


def _hold(root: str, ready: "multiprocessing.Queue[str]") -> None:
    async def main() -> None:
        async with first_start("key", {"VLLM_CACHE_ROOT": root}):
            ready.put("holds")
            await asyncio.sleep(60)

    asyncio.run(main())


async def test_a_killed_holder_holds_nobody_up(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=_hold, args=(str(tmp_path), ready))
    process.start()
    assert ready.get(timeout=60) == "holds"
    waiting = asyncio.create_task(
        start([], "b", {"VLLM_CACHE_ROOT": str(tmp_path)}, done := asyncio.Event())
    )
    done.set()
    await asyncio.sleep(0.3)
    assert not waiting.done()
    process.kill()
    await asyncio.wait_for(waiting, 20)
    process.join(10)
    ready.close()
    ready.join_thread()


def test_each_number_of_draft_tokens_gets_a_cache_that_shares_what_it_can(tmp_path: Path) -> None:
    env = {"VLLM_CACHE_ROOT": str(tmp_path)}
    three, five = speculative_root(3, env), speculative_root(5, env)
    assert three["VLLM_CACHE_ROOT"] != five["VLLM_CACHE_ROOT"]
    (Path(three["VLLM_CACHE_ROOT"]) / "modelinfos" / "a.json").write_text("{}")
    assert (Path(five["VLLM_CACHE_ROOT"]) / "modelinfos" / "a.json").exists()
    assert speculative_root(3, env) == three
    assert speculative_root(3, three) == {}
    assert speculative_root(3, {}) == {}


def test_only_what_drafts_and_compiles_has_draft_tokens() -> None:
    spec = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert draft_tokens(spec) == 3
    assert draft_tokens({**spec, "enforce_eager": True}) is None
    assert draft_tokens({}) is None


class Spec:
    def __init__(self, hashes: bool) -> None:
        self.num_speculative_tokens = 3
        self.hashes = hashes

    def compute_hash(self) -> str:
        return f"{self.num_speculative_tokens if self.hashes else ''}"


@pytest.mark.parametrize("hashes", [True, False])
def test_the_installed_version_decides_whether_a_cache_of_its_own_is_needed(
    tmp_path: Path, hashes: bool
) -> None:
    env = {"VLLM_CACHE_ROOT": str(tmp_path)}
    spec = Spec(hashes)
    config = SimpleNamespace(speculative_config=spec, compilation_config=SimpleNamespace(mode=3))
    assert bool(own_cache(config, env)) is not hashes
    assert spec.num_speculative_tokens == 3
    config.compilation_config.mode = 0
    assert own_cache(config, env) == {}
    assert own_cache(SimpleNamespace(speculative_config=None), env) == {}
