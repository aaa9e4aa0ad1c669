"""Following a source: what is valid is applied, what is not is told of, and changes nothing."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.live_case import SECRET, STARTED, Served, free_port, serving
from tests.processes import until
from tuner.errors import StudyError
from tuner.live_server import LiveServer
from tuner.live_sources import EtcdSource, FileSource, Seen, Source, source_of
from tuner.live_watch import Change, Pace, watch

FAST = Pace(quiet_s=0.05, drain_s=5.0, again_s=0.05)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(monkeypatch) as server:
        yield server


@dataclass
class Told:
    """What a watch said, to be waited for."""

    changes: list[Change] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, change: Change) -> None:
        self.changes.append(change)
        self.news.set()

    async def count(self, n: int) -> list[str]:
        async with asyncio.timeout(20):
            while len(self.changes) < n:
                self.news.clear()
                await self.news.wait()
        return [change.result for change in self.changes]


@contextlib.asynccontextmanager
async def watching(source: Source, served: Served) -> AsyncIterator[Told]:
    told = Told()
    async with LiveServer.open(served.url, SECRET) as server:
        task = asyncio.create_task(watch(source, server, told, FAST))
        try:
            yield told
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_a_file_is_followed_and_nonsense_keeps_the_old(
    served: Served, tmp_path: Path
) -> None:
    file = tmp_path / "preset.yaml"
    async with watching(FileSource(file), served) as told:
        assert await told.count(1) == ["unreadable"]
        for text in ("max-num-seqs: 8\n", "max-num-sequs: 4\n", "max-num-seqs: [\n"):
            file.write_text(text)
            await told.count(len(told.changes) + 1)
        assert served.core.values["max_num_seqs"] == 8
        fresh = tmp_path / "next"
        fresh.write_text("max-num-seqs: 16\n")
        fresh.replace(file)  # another file under the same name
        results = await told.count(5)
    assert results == ["unreadable", "applied", "invalid", "invalid", "applied"]
    assert "did you mean 'max_num_seqs'?" in told.changes[2].error
    assert served.core.values == {**STARTED, "max_num_seqs": 16}
    assert json.loads(json.dumps(told.changes[4].to_json()))["live"] == {
        "max_num_seqs": {"current": 8, "wanted": 16}
    }


async def test_a_link_that_is_swapped_is_seen(served: Served, tmp_path: Path) -> None:
    """Kubernetes changes the files of a ConfigMap so."""
    for name, seqs in (("one", 8), ("two", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "preset.yaml").write_text(f"max-num-seqs: {seqs}\n")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "preset.yaml").symlink_to("..data/preset.yaml")
    async with watching(FileSource(tmp_path / "preset.yaml"), served) as told:
        await told.count(1)
        (tmp_path / "swap").symlink_to("two")
        (tmp_path / "swap").rename(tmp_path / "..data")
        assert await told.count(2) == ["applied", "applied"]
    assert served.core.values["max_num_seqs"] == 4


@dataclass
class Script:
    """A source of what a test puts into it."""

    queue: "asyncio.Queue[Seen]" = field(default_factory=asyncio.Queue)
    name: str = "script"

    async def updates(self) -> AsyncIterator[Seen]:
        while True:
            yield await self.queue.get()


async def test_of_many_changes_at_once_the_last_one_counts(served: Served) -> None:
    source = Script()
    for seqs in (2, 4, 8, 16):
        source.queue.put_nowait(Seen(f"max-num-seqs: {seqs}"))
    async with watching(source, served) as told:
        assert await told.count(1) == ["applied"]
    assert served.core.sets == [{"max_num_seqs": 16}]


async def test_a_busy_engine_is_tried_again_and_told_of_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.core.busy = 1_000_000
    source = Script()
    source.queue.put_nowait(Seen("max-num-seqs: 16"))
    quick = Pace(quiet_s=0.01, drain_s=0.05, again_s=0.05)
    monkeypatch.setitem(globals(), "FAST", quick)
    async with watching(source, served) as told:
        await told.count(1)
        before = served.core.busy
        async with asyncio.timeout(20):
            while served.core.busy > before - 20:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.02)
        served.core.busy = 0
        assert await told.count(2) == ["refused", "applied"]


async def test_a_server_that_is_away_is_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.core.off = "starting"
    source = Script()
    source.queue.put_nowait(Seen("max-num-seqs: 16"))
    async with watching(source, served) as told:
        assert await told.count(1) == ["unreachable"]
        served.core.off = ""
        assert await told.count(2) == ["unreachable", "applied"]


@pytest.mark.parametrize("text", ["http://x/y", "file:", "etcd://host:2379", "etcd://:1/k", "k"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(StudyError, match="expected file:PATH or etcd"):
        source_of(text)


def test_sources_are_read_from_their_names(tmp_path: Path) -> None:
    assert source_of("etcd://h:1/a/b") == EtcdSource("h", 1, "a/b")
    assert source_of("etcd://h//a") == EtcdSource("h", 2379, "/a")
    assert source_of(f"file:{tmp_path}/x") == FileSource(tmp_path / "x")
    with pytest.raises(StudyError, match="no such folder"):
        source_of(f"file:{tmp_path}/none/x")


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Gateway:
    """etcd's JSON gateway with one key; a test plays its watch."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.revision = 7
        self.watches: asyncio.Queue[tuple[dict[str, Any], asyncio.Queue[Any]]] = asyncio.Queue()

    async def range(self, request: web.Request) -> web.Response:
        assert (await request.json())["key"] == coded("preset")
        kvs = [] if self.value is None else [{"key": coded("preset"), "value": coded(self.value)}]
        found = {"kvs": kvs} if kvs else {}
        return web.json_response({"header": {"revision": str(self.revision)}, **found})

    async def watch(self, request: web.Request) -> web.StreamResponse:
        script: asyncio.Queue[Any] = asyncio.Queue()
        self.watches.put_nowait(((await request.json())["create_request"], script))
        answer = web.StreamResponse()
        await answer.prepare(request)
        while (part := await script.get()) is not None:
            await answer.write(part)
        return answer


def event(value: str | None) -> bytes:
    kv = {"key": coded("preset"), "mod_revision": "8"}
    one = {"type": "DELETE", "kv": kv} if value is None else {"kv": {**kv, "value": coded(value)}}
    return json.dumps({"result": {"header": {"revision": "8"}, "events": [one]}}).encode() + b"\n"


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Gateway, EtcdSource]]:
    etcd = Gateway()
    app = web.Application()
    app.router.add_post("/v3/kv/range", etcd.range)
    app.router.add_post("/v3/watch", etcd.watch)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield etcd, EtcdSource(*runner.addresses[0][:2], "preset")
    finally:
        await runner.cleanup()


async def test_etcds_watch_is_followed_through_cuts_and_cancellation() -> None:
    async with gateway() as (etcd, source), asyncio.timeout(20):
        updates = source.updates()
        assert (await anext(updates)).problem == "etcd has no key 'preset'"
        following = asyncio.ensure_future(anext(updates))
        create, script = await etcd.watches.get()
        assert create == {"key": coded("preset"), "start_revision": "8"}
        script.put_nowait(b'{"result": {"created": true}}\n' + event("a: 1")[:20])
        script.put_nowait(event("a: 1")[20:] + event(None))
        assert await following == Seen("a: 1")
        assert (await anext(updates)).text is None
        following = asyncio.ensure_future(anext(updates))
        etcd.value, etcd.revision = "a: 2", 12
        script.put_nowait(b'{"result": {"canceled": true, "compact_revision": "11"}}\n')
        assert await following == Seen("a: 2")  # read anew after the watch was cancelled
        following = asyncio.ensure_future(anext(updates))
        create, script = await etcd.watches.get()
        assert create["start_revision"] == "13"
        script.put_nowait(None)  # the connection ends; nothing has changed
        _, script = await etcd.watches.get()
        script.put_nowait(event("a: 3"))
        assert await following == Seen("a: 3")
        await updates.aclose()


async def test_an_etcd_that_is_away_is_told_of_once() -> None:
    async with gateway() as (_, source):
        pass
    async with asyncio.timeout(20):
        updates = source.updates()
        assert "ClientConnector" in (await anext(updates)).problem
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(updates), 1.2)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[tuple[Callable[..., None], EtcdSource]]:
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("no etcd on PATH (Debian: etcd-server)")
    ports = [free_port(), free_port()]
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    command = [program, "--data-dir", str(tmp_path / "data"), "--name", "one"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"one={peer}", "--unsafe-no-fsync"]
    with (tmp_path / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(path: str, **body: str) -> bool:
        request = urllib.request.Request(client + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(lambda: ask("/v3/kv/range", key=coded("x")), 30, "etcd serves")
        yield (
            lambda value: ask("/v3/kv/put", key=coded("live/preset"), value=coded(value)),
            EtcdSource("127.0.0.1", ports[0], "live/preset"),
        )
    finally:
        process.terminate()
        process.wait(10)


async def test_a_real_etcd(etcd: Any, served: Served) -> None:
    put, source = etcd
    async with watching(source, served) as told:
        assert await told.count(1) == ["unreadable"]
        for value in ("max-num-seqs: 8", "max-num-seqs: many", "max-num-seqs: 4"):
            await asyncio.to_thread(put, value)
            await told.count(len(told.changes) + 1)
    assert [change.result for change in told.changes][1::2] == ["applied", "applied"]
    assert served.core.values["max_num_seqs"] == 4
