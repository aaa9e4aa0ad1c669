"""The engine against servers whose right answer is known on paper.

Times are real here, so a busy machine may add to them; what is exact are counts, and that nothing
comes before the server has sent it.
"""

import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from tests.engines.fake_server import Script, running
from tuner.config import EngineConfig
from tuner.engines.http_loop import PreciseLoop
from tuner.engines.server import ServerLauncher
from tuner.engines.server_engine import RESET_ENDPOINT, RESET_NONE, RESET_SALT, ServerEngine
from tuner.errors import ConfigRejected, EngineFault, RequestRejected
from tuner.job import Deadlines, Slo
from tuner.metrics import measure
from tuner.records import RequestRecord
from tuner.replay import Plan, replay
from tuner.trace import Request

T = TypeVar("T")


def on(script: Script, use: Callable[[ServerEngine], Awaitable[T]]) -> T:
    """Return what ``use`` makes of an engine on a server that follows a script."""

    async def main(url: str) -> T:
        async with ServerLauncher(url=url).launch(EngineConfig(""), "") as engine:
            return await use(engine)

    with running(script) as url, asyncio.Runner(loop_factory=PreciseLoop) as runner:
        return runner.run(main(url))


def replayed(
    script: Script, requests: Sequence[Request], deadlines: Deadlines | None = None
) -> tuple[list[RequestRecord], dict[str, float]]:
    """Return the records and counters of one paced replay."""

    async def use(engine: ServerEngine) -> tuple[list[RequestRecord], dict[str, float]]:
        records = await replay(engine, Plan(requests), _prompt, deadlines or Deadlines())
        return records, dict(await engine.counters())

    return on(script, use)


def _prompt(request: Request) -> list[int]:
    return [10 + request.id] * request.prompt_tokens


def requests(n: int, gap_s: float, output: int = 1) -> list[Request]:
    return [Request(i, i * gap_s, prompt_tokens=4, output_tokens=output) for i in range(n)]


def test_waiting_behind_one_slow_server_counts_from_the_scheduled_arrival() -> None:
    # Arrivals every 50 ms, service 100 ms: request i ends at (i + 1) * 100 ms, at the earliest.
    records, counters = replayed(Script(slots=1, first_s=0.1), requests(6, 0.05))
    waits = [record.token_s[0] - record.scheduled_s for record in records]
    assert all(record.ok for record in records)
    assert all(wait >= 0.1 * (i + 1) - 0.05 * i - 0.002 for i, wait in enumerate(waits))
    assert [r.token_s for r in records] == sorted(r.token_s for r in records)
    assert counters["generated_tokens"] == 6
    assert counters["prefix_hit_share"] == 0.25


@pytest.mark.parametrize(
    ("usage", "timing"),
    [
        ("continuous", "counted by the server in every chunk"),
        ("final", "the server's total, spread evenly over the chunks"),
    ],
)
def test_several_tokens_a_chunk_are_tokens_not_chunks(usage: str, timing: str) -> None:
    async def use(engine: ServerEngine) -> None:
        assert engine.facts["token_times"] == timing
        began = asyncio.get_running_loop().time()
        done = await engine.generate(Request(0, 0.0, 4, 12), [1, 2, 3, 4])
        assert done.answered_tokens == len(done.token_s) == 12
        assert len(set(done.token_s)) == 3
        assert all(done.token_s.count(at) == 4 for at in done.token_s)
        assert done.token_s[-1] - began >= 0.2
        assert done.cached_tokens == 3

    on(Script(chunk=4, step_s=0.1, usage=usage, cached_tokens=3), use)


def test_a_server_that_counts_nothing_is_said_to() -> None:
    async def use(engine: ServerEngine) -> None:
        assert engine.facts["token_times"].startswith("one per chunk")
        done = await engine.generate(Request(0, 0.0, 4, 12), [1, 2, 3, 4])
        assert (done.answered_tokens, done.cached_tokens) == (6, None)

    on(Script(chunk=2, usage="none"), use)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_refusal_is_a_failure_with_its_status_and_is_not_tried_again(status: int) -> None:
    async def use(engine: ServerEngine) -> None:
        for i in range(5):
            request = Request(i, 0.0, 4, 2)
            if i % 3 == 0:
                with pytest.raises(RequestRejected, match=f"status {status}: no room"):
                    await engine.generate(request, [1])
            else:
                assert (await engine.generate(request, [1])).answered_tokens == 2
        assert await arrivals(engine) == 1 + 5  # the probe, and each request once

    on(Script(skip=1, every=3, status=status), use)


async def arrivals(engine: ServerEngine) -> int:
    reply = await engine.client.ask("GET", "/arrivals")
    return len(reply.json()["arrivals"])


def test_an_answer_that_breaks_off_is_a_failure_and_the_replay_goes_on() -> None:
    script = Script(skip=1, every=2, cut_after=2)
    records, _ = replayed(script, requests(6, 0.02, output=4))
    assert [record.ok for record in records] == [False, True] * 3
    assert all("closed the connection after 2 tokens" in r.error for r in records[::2])
    values, _, _ = measure("paced", records, Slo())
    assert values["paced.error_share"] == 0.5


def test_an_error_in_the_stream_is_a_failure() -> None:
    records, _ = replayed(Script(skip=1, every=2, error_after=1), requests(4, 0.02, output=4))
    assert [record.ok for record in records] == [False, True] * 2
    assert records[0].error == "rejected: the engine broke"


def test_a_server_that_is_gone_is_a_fault_after_some_tries() -> None:
    with pytest.raises(EngineFault, match="5 times in a row") as caught:
        replayed(Script(die_at=3), requests(40, 0.02))
    assert caught.value.reason == "unreachable"


def test_a_request_past_its_deadline_is_cancelled_at_the_server_too() -> None:
    async def use(engine: ServerEngine) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await engine.generate(Request(0, 0.0, 4, 1000), [1])
        done = await engine.generate(Request(1, 0.0, 4, 2), [1])  # waits for the only slot
        assert done.answered_tokens == 2
        assert (await engine.counters())["generated_tokens"] < 500

    on(Script(slots=1, step_s=0.05), use)


def test_a_server_without_vllms_fields_gets_a_plain_request() -> None:
    async def use(engine: ServerEngine) -> Any:
        await engine.generate(Request(0, 0.0, 4, 3), [1, 2])
        assert engine.facts["prefix_cache_reset"] == RESET_NONE
        return (await engine.client.ask("GET", "/arrivals")).json()["bodies"]

    bodies = on(Script(strict=True, pages=False), use)
    assert ["ignore_eos" in body for body in bodies] == [True, False, False]
    assert bodies[-1]["prompt"] == [1, 2]


def test_prefixes_are_forgotten_by_endpoint_or_by_salt() -> None:
    async def salts(engine: ServerEngine) -> tuple[str, list[Any]]:
        for _ in range(2):
            await engine.reset()
            await engine.generate(Request(0, 0.0, 1, 1), [1])
        bodies = (await engine.client.ask("GET", "/arrivals")).json()["bodies"]
        return engine.facts["prefix_cache_reset"], [body.get("cache_salt") for body in bodies[1:]]

    assert on(Script(), salts) == (RESET_ENDPOINT, [None, None])
    how, seen = on(Script(pages=False), salts)
    assert how == RESET_SALT
    assert len(set(seen)) == 2
    assert None not in seen


def test_counters_start_anew_with_every_reset() -> None:
    async def use(engine: ServerEngine) -> None:
        assert (await engine.counters())["generated_tokens"] == 0
        await engine.generate(Request(0, 0.0, 8, 5), list(range(8)))
        counters = await engine.counters()
        assert counters["generated_tokens"] == 5
        assert counters["kv_usage_max_share"] == 0.5  # of the fuller of two engines
        await engine.reset()
        assert (await engine.counters())["generated_tokens"] == 0

    on(Script(), use)


def test_a_server_cannot_be_changed_live() -> None:
    async def use(engine: ServerEngine) -> None:
        assert await engine.reconfigure({}) == {}
        with pytest.raises(ConfigRejected, match="max_num_seqs"):
            await engine.reconfigure({"max_num_seqs": 3})

    on(Script(), use)


def test_a_hundred_at_once_all_arrive_once() -> None:
    records, _ = replayed(Script(first_s=0.05), requests(300, 0.0, output=2))
    assert all(record.ok for record in records)


@pytest.mark.parametrize("script", [Script(status=500), Script(error_after=0)])
def test_no_token_is_no_engine(script: Script) -> None:
    async def use(engine: ServerEngine) -> None:
        raise AssertionError

    with pytest.raises(EngineFault) as caught:
        on(script, use)
    assert caught.value.reason == "no_token"


def test_nobody_there_is_said() -> None:
    async def main() -> None:
        async with ServerLauncher(url="http://127.0.0.1:9").launch(EngineConfig(""), ""):
            raise AssertionError

    with asyncio.Runner(loop_factory=PreciseLoop) as runner, pytest.raises(EngineFault) as caught:
        runner.run(main())
    assert caught.value.reason == "unreachable"


def test_the_clock_is_finer_than_uvloops() -> None:
    async def main() -> list[float]:
        clock = asyncio.get_running_loop().time
        return [clock() for _ in range(1000)]

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        seen = runner.run(main())
    assert seen == sorted(seen)
    assert len({round(at * 1e6) for at in seen}) > 20


def test_the_fake_server_is_itself_right() -> None:
    with running(Script(step_s=0.01)) as url:
        body = json.dumps({"prompt": [1], "max_tokens": 3}).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", data=body, timeout=30) as response:
            lines = response.read().decode().split("\n\n")
    assert len([line for line in lines if '"text": "x"' in line]) == 3
