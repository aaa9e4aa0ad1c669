"""Replays by several processes: one clock, one start, nothing lost, nothing left behind."""

import asyncio
import contextlib
import functools
import json
import multiprocessing
import os
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.engines.fake_server import Script, running
from tuner.cli_replay import Endpoint, replay_command
from tuner.config import EngineConfig, Json
from tuner.engines import Completion, Door
from tuner.engines.http_loop import PreciseLoop
from tuner.engines.server import ServerLauncher
from tuner.errors import EngineFault
from tuner.job import Deadlines
from tuner.records import RequestRecord
from tuner.replay import EARLY_S, Plan
from tuner.replay_clients import replay_shared
from tuner.trace import Request

#: Per request, so many that a client's answer does not fit into a pipe.
TOKENS = 3000
#: Every fourth request is followed by a second turn of its session.
FIRST = [Request(i, i * 0.02, 4, TOKENS, session=i // 4 if i % 4 == 0 else -1) for i in range(40)]
SECOND = [
    Request(40 + i, r.arrival_s, 4, TOKENS, session=r.session, parents=(r.id,), gap_s=0.01)
    for i, r in enumerate(FIRST[::4])
]
REQUESTS = sorted([*FIRST, *SECOND], key=lambda request: request.arrival_s)


def prompt(request: Request) -> list[int]:
    return [10 + request.id] * request.prompt_tokens


def test_clients_share_one_start_and_their_records_are_one_replay() -> None:
    async def main(url: str) -> tuple[list[RequestRecord], Mapping[str, float]]:
        launcher = ServerLauncher(url=url, clients=2)
        async with launcher.launch(EngineConfig(""), "") as engine:
            records = await replay_shared(engine, Plan(REQUESTS), prompt, Deadlines())
            return records, await engine.counters()

    with running(Script(first_s=0.01, step_s=0.005, chunk=1000)) as url:
        with asyncio.Runner(loop_factory=PreciseLoop) as runner:
            records, counters = runner.run(main(url))
        with urllib.request.urlopen(f"{url}/arrivals", timeout=30) as response:
            seen = json.load(response)
    assert [record.id for record in records] == [request.id for request in REQUESTS]
    assert all(record.ok for record in records)
    assert counters["generated_tokens"] == TOKENS * len(REQUESTS)
    # On the server's clock, which is ours, every request came after it was sent and before its
    # first token, whichever client sent it: one start fits them all.
    ids = [body["prompt"][0] - 10 for body in seen["bodies"]]
    came = dict(zip(ids, seen["arrivals"], strict=True))
    assert {record.id for record in records} <= came.keys()
    earliest = max(came[record.id] - record.token_s[0] for record in records)
    latest = min(came[record.id] - (record.sent_s or 0.0) for record in records)
    assert earliest <= latest
    by_id = {record.id: record for record in records}
    for request in REQUESTS:
        record = by_id[request.id]
        due = request.arrival_s if not request.parents else record.scheduled_s
        assert record.scheduled_s == due
        assert record.sent_s is not None
        assert record.sent_s >= record.scheduled_s - EARLY_S
        for parent in request.parents:
            assert record.scheduled_s >= by_id[parent].token_s[-1] + 0.01
    assert not multiprocessing.active_children()


def test_the_command_counts_what_all_clients_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ({"t_us": i * 10_000, "in_tok": 16, "out_tok": 4} for i in range(40))
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "workload.yaml"
    file.write_text("trace: {path: trace.jsonl}\nmeasures: [saturated]\nwarmup: {requests: 4}\n")
    # The probe and the warm-up come first; then 10 requests, on whichever client, are refused.
    with running(Script(pages=False, skip=5, every=4, status=429)) as url:
        assert replay_command(file, Endpoint(url, clients=2), as_json=True) == 0
    measurement = json.loads(capsys.readouterr().out)["measurement"]
    assert measurement["facts"]["clients"] == 2
    assert measurement["counts"]["saturated.requests"] == 40
    assert measurement["counts"]["saturated.errors"] == 10
    assert measurement["values"]["saturated.generated_tokens"] == 30 * 4
    assert measurement["counts"]["saturated.lateness"] == 40


class Stuck:
    """An engine in a client's process that never answers."""

    facts: Mapping[str, Json] = {}

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        return await asyncio.get_running_loop().create_future()

    async def reset(self) -> None: ...

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        return hot

    async def counters(self) -> Mapping[str, float]:
        return {}


@contextlib.asynccontextmanager
async def stuck(fate: str) -> AsyncIterator[Stuck]:
    if fate == "exits":
        os._exit(3)
    if fate == "faults":
        raise EngineFault("unreachable", "nobody there")
    yield Stuck()


class Elsewhere(Stuck):
    """The same engine as the parent sees it."""

    clients = 2

    def __init__(self, fate: str) -> None:
        self.fate = fate
        self.started = asyncio.Event()

    def door(self) -> Door:
        return functools.partial(stuck, self.fate)

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[Callable[[int], None]]:
        self.started.set()
        yield lambda tokens: None


@pytest.mark.parametrize(("fate", "reason"), [("exits", "client_lost"), ("faults", "unreachable")])
async def test_a_client_that_ends_is_a_fault_and_takes_the_others_with_it(
    fate: str, reason: str
) -> None:
    with pytest.raises(EngineFault) as caught:
        await replay_shared(Elsewhere(fate), Plan(FIRST), prompt, Deadlines())
    assert caught.value.reason == reason
    assert not multiprocessing.active_children()


async def test_a_replay_that_is_broken_off_leaves_no_client() -> None:
    engine = Elsewhere("stays")
    replaying = asyncio.create_task(replay_shared(engine, Plan(FIRST), prompt, Deadlines()))
    await engine.started.wait()
    assert len(multiprocessing.active_children()) == 2
    replaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replaying
    assert not multiprocessing.active_children()
