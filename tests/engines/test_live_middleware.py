"""The HTTP door to a live engine: closed unless opened, and then only for whoever holds the key."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.test_live import STARTED, FakeCore, llm
from tuner.config import Json
from tuner.engines.live.middleware import TOKEN, LiveConfig

HERE = ("127.0.0.1", 4711)
KEY = (b"authorization", b"Bearer secret")


class Door:
    """The middleware in front of an application that answers 404."""

    def __init__(self) -> None:
        self.core = FakeCore()
        self.passed = 0
        self.asgi = LiveConfig(self._app)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed += 1
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(
        self,
        method: str = "GET",
        body: bytes | Json = b"",
        *,
        client: Any = HERE,
        headers: Any = (KEY,),
        path: str = "/tuner/live",
        query: bytes = b"",
    ) -> tuple[int, Json]:
        sent: list[Any] = []
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        parts = [raw[:5], raw[5:]]

        async def receive() -> Any:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        app = SimpleNamespace(state=SimpleNamespace(engine_client=llm(self.core)))
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "client": client,
            "headers": list(headers),
            "query_string": query,
            "app": app,
        }
        await self.asgi(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    monkeypatch.setenv(TOKEN, "secret")
    return Door()


async def test_it_does_not_exist_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    door = Door()
    assert (await door.ask())[0] == 404
    assert door.core.calls == []


async def test_other_paths_pass(door: Door) -> None:
    assert (await door.ask(path="/v1/models", headers=()))[0] == 404
    assert door.passed == 1


async def test_it_says_what_is_in_effect(door: Door) -> None:
    status, content = await door.ask()
    assert (status, content["values"]) == (200, STARTED)


async def test_it_changes_what_it_is_told_to(door: Door) -> None:
    status, content = await door.ask("POST", {"max-num-seqs": 8})
    assert (status, content) == (200, {"values": {"max_num_seqs": 8}})
    assert door.core.values["max_num_seqs"] == 8


async def test_a_refusal_is_a_conflict_with_its_reason(door: Door) -> None:
    status, content = await door.ask("POST", {"max_num_seqs": 64})
    assert (status, content) == (409, {"error": "max_num_seqs: too large"})


async def test_a_drain_holds_new_requests_back_until_the_change_is_done(door: Door) -> None:
    door.core.busy = 3
    change = asyncio.create_task(door.ask("POST", {"max_num_seqs": 8}, query=b"drain_s=30"))
    held = None
    while not change.done():
        await asyncio.sleep(0.001)
        if held is None and door.core.busy < 3:
            held = asyncio.create_task(door.ask("POST", {}, path="/v1/completions", headers=()))
        if not change.done():
            assert door.passed == 0
    assert held is not None
    assert (await change)[0] == 200
    assert (await held)[0] == 404
    assert door.passed == 1


async def test_questions_pass_during_a_drain(door: Door) -> None:
    door.core.busy = 1_000_000
    change = asyncio.create_task(door.ask("POST", {"max_num_seqs": 8}, query=b"drain_s=0.2"))
    await asyncio.sleep(0.05)
    assert (await door.ask(path="/health", headers=()))[0] == 404
    assert not change.done()
    assert (await change)[0] == 409


async def test_a_drain_that_fails_lets_everyone_in_again(door: Door) -> None:
    door.core.busy = 1_000_000
    status, content = await door.ask("POST", {"max_num_seqs": 8}, query=b"drain_s=0.05")
    assert (status, "not idle after 0.05 s" in content["error"]) == (409, True)
    assert (await door.ask("POST", {}, path="/v1/completions", headers=()))[0] == 404


@pytest.mark.parametrize("text", [b"-1", b"soon", b"nan", b"1e9"])
async def test_a_drain_has_a_length(door: Door, text: bytes) -> None:
    assert (await door.ask("POST", {"max_num_seqs": 8}, query=b"drain_s=" + text))[0] == 400


@pytest.mark.parametrize(
    "headers", [(), ((b"authorization", b"Bearer other"),), ((b"authorization", b"secret"),)]
)
async def test_the_token_is_needed(door: Door, headers: Any) -> None:
    assert (await door.ask(headers=headers))[0] == 401
    assert door.core.calls == []


@pytest.mark.parametrize("client", [("10.0.0.7", 1), ("::ffff:10.0.0.7", 1), ("unix", 1), None])
async def test_others_are_turned_away_even_with_the_token(door: Door, client: Any) -> None:
    assert (await door.ask(client=client))[0] == 403


@pytest.mark.parametrize("client", [("127.0.0.9", 1), ("::1", 1), ("::ffff:127.0.0.1", 1)])
async def test_all_addresses_of_this_machine_are_welcome(door: Door, client: Any) -> None:
    assert (await door.ask(client=client))[0] == 200


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [
        ("POST", b"{max", 400),
        ("POST", b"[1]", 400),
        ("POST", b"{}", 400),
        ("POST", b"x" * 70_000, 413),
        ("DELETE", b"", 405),
    ],
)
async def test_nonsense_is_answered(door: Door, method: str, body: bytes, status: int) -> None:
    got, content = await door.ask(method, body)
    assert got == status
    assert content["error"]
    assert door.core.values == STARTED


async def test_of_two_drains_at_once_the_second_is_refused(door: Door) -> None:
    """It would outlast the time that its caller gave it, and change the engine unseen."""
    door.core.busy = 1_000_000
    first = asyncio.create_task(door.ask("POST", {"max_num_seqs": 8}, query=b"drain_s=30"))
    async with asyncio.timeout(20):
        while door.core.busy == 1_000_000:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.001)
        status, content = await door.ask("POST", {"max_num_seqs": 4}, query=b"drain_s=30")
    assert (status, "another change" in content["error"]) == (409, True)
    door.core.busy = 0
    assert (await first)[0] == 200
    assert door.core.values["max_num_seqs"] == 8
