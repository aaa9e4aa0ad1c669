"""Starting and ending servers: a scripted ``vllm`` on PATH, and every way it can go wrong."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.engines import fake_server
from tests.engines.fake_server import Script
from tests.processes import MARK, Family
from tuner.config import EngineConfig
from tuner.engines.http_loop import PreciseLoop
from tuner.engines.server import ServerLauncher
from tuner.engines.server_engine import ServerEngine
from tuner.engines.server_port import API_PORTS, FIRST, PER_SLOT, inner_ports, listens, reserved
from tuner.engines.server_process import serve_command
from tuner.errors import ConfigRejected, EngineFault
from tuner.job import Deadlines
from tuner.replay import Plan, replay
from tuner.trace import Request

T = TypeVar("T")
USAGE = "usage: vllm serve [options]\nvllm serve: error: argument --max-num-seqs: invalid int"
REFUSED = """Traceback (most recent call last):
  File "api_server.py", line 1, in main
    vllm_config = engine_args.create_engine_config(usage_context=usage_context)
pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (4) is below max_num_seqs (8) [type=value_error]"""
MEMORY = """(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7)   File "core.py", line 1, in run
(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"""


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """All processes of a test; at its end none may be left."""
    members = Family()
    monkeypatch.setenv(MARK, members.mark)
    yield members
    members.gone(5.0)


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Family) -> Path:
    """Put a ``vllm`` on PATH that follows a script; return its folder."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_server.__file__} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def launched(
    folder: Path,
    script: Script,
    use: Callable[[ServerEngine], Awaitable[T]],
    *,
    within_s: float = 60.0,
    config: EngineConfig | None = None,
) -> T:
    """Return what ``use`` makes of a launched engine; TimeoutError where it is not ready."""
    made = config or EngineConfig("a/model", env=fake_server.environment(script))

    async def main() -> T:
        async with contextlib.AsyncExitStack() as stack:
            launch = ServerLauncher().launch(made, str(folder / "trial" / "engine.log"))
            async with asyncio.timeout(within_s):
                engine = await stack.enter_async_context(launch)
            return await use(engine)

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        return runner.run(main())


async def nothing(engine: ServerEngine) -> None:
    raise AssertionError("it must not come to this")


def test_a_launch_measures_the_file_that_a_preset_is(vllm: Path) -> None:
    env = fake_server.environment(Script(cached_tokens=2))
    config = EngineConfig("a/model", {"max_num_seqs": 8, "enable_prefix_caching": False}, env)

    async def use(engine: ServerEngine) -> None:
        assert engine.process is not None
        words = engine.process.family()[0].cmdline()
        at = words.index("--config")
        text = Path(words[at + 1]).read_text()
        assert text == "model: a/model\nno-enable-prefix-caching: true\nmax-num-seqs: 8\n"
        assert words[at + 2 : at + 4] == ["--host", "127.0.0.1"]
        assert "VLLM_SERVER_DEV_MODE" in engine.process.family()[0].environ()
        done = await engine.generate(Request(0, 0.0, 4, 3), [1, 2, 3, 4])
        assert (done.answered_tokens, done.cached_tokens) == (3, 2)
        assert engine.facts["version"] == "0.0.fake"
        assert engine.facts["effective"] == {"max_model_len": 4096}
        assert engine.facts["start"]["start_s"] > 0

    launched(vllm, Script(), use, config=config)
    assert "port" in (vllm / "trial" / "engine.log").read_text()


@pytest.mark.parametrize(
    ("script", "kind", "reason", "said"),
    [
        (Script(start="exit", code=2, say=USAGE), ConfigRejected, "invalid_arguments", "invalid"),
        (Script(start="exit", code=1, say=REFUSED), ConfigRejected, "invalid_arguments", "(4)"),
        (Script(start="exit", code=1, say=MEMORY), ConfigRejected, "out_of_memory", "2 GiB"),
        (Script(start="exit", code=0), EngineFault, "engine_died", "exited with code 0"),
        (Script(start="exit", code=3, say="oh"), EngineFault, "engine_died", "code 3\noh"),
        (Script(start="kill"), EngineFault, "engine_died", "ended by SIGKILL"),
        (Script(die_at=1, code=4, say="end"), EngineFault, "engine_died", "code 4"),
    ],
)
def test_an_end_is_seen_at_once_with_code_signal_and_log(
    vllm: Path, script: Script, kind: type[ConfigRejected | EngineFault], reason: str, said: str
) -> None:
    log = vllm / "trial" / "engine.log"
    log.parent.mkdir()
    log.write_text(MEMORY.replace("2 GiB", "an earlier trial's") + "\n")
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        launched(vllm, script, nothing)
    assert caught.value.reason == reason
    assert said in caught.value.detail
    assert "earlier" not in caught.value.detail
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("script", [Script(start="never"), Script(hang=True), Script(start_s=60)])
def test_never_ready_is_left_at_the_deadline_and_nothing_stays(vllm: Path, script: Script) -> None:
    with pytest.raises(TimeoutError):
        launched(vllm, script, nothing, within_s=3.0)


def test_a_server_that_will_not_go_is_killed_with_its_children(
    vllm: Path, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.engines.server_process.TERM_S", 0.5)

    async def use(engine: ServerEngine) -> int:
        return len(family.look())

    assert launched(vllm, Script(stubborn=True, child=True), use) == 2


def test_a_child_that_outlives_its_server_is_ended(vllm: Path, family: Family) -> None:
    async def use(engine: ServerEngine) -> None:
        assert engine.process is not None
        engine.process.child.kill()
        await engine.process.end_seen(10.0)

    launched(vllm, Script(child=True), use)


def test_a_server_that_dies_in_a_replay_ends_it_with_the_reason(vllm: Path) -> None:
    requests = [Request(i, i * 0.02, 4, 2) for i in range(40)]

    async def use(engine: ServerEngine) -> None:
        await replay(engine, Plan(requests), lambda _: [1, 2, 3, 4], Deadlines())

    with pytest.raises(EngineFault, match="code 9") as caught:
        launched(vllm, Script(die_at=5, code=9, say=""), use)
    assert caught.value.reason == "engine_died"


def test_servers_that_start_together_have_ports_of_their_own(vllm: Path) -> None:
    config = EngineConfig("m", env=fake_server.environment(Script()))

    async def one(name: str) -> int:
        log = str(vllm / name / "engine.log")
        async with ServerLauncher().launch(config, log) as engine:
            assert engine.process is not None
            assert listens(engine.client.target.port, engine.process.family())
            await asyncio.sleep(0.5)
            return engine.client.target.port

    async def main() -> list[int]:
        return await asyncio.gather(one("a"), one("b"))

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        assert len(set(runner.run(main()))) == 2


def test_a_port_is_held_until_the_server_has_it_and_slots_do_not_share() -> None:
    with reserved(slot=3) as port, reserved(slot=3) as other:
        assert port in range(FIRST + 3 * PER_SLOT, FIRST + 4 * PER_SLOT)
        assert other in range(port + 1, FIRST + 4 * PER_SLOT)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
            assert listens(port, []) is None


def test_another_process_on_the_port_is_not_our_server(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.engines.server.listens", lambda port, family: False)
    with pytest.raises(EngineFault) as caught:
        launched(vllm, Script(), nothing)
    assert caught.value.reason == "port_taken"


def test_the_command_comes_from_path_else_from_this_python(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert serve_command() == [str(vllm / "bin" / "vllm"), "serve"]
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert serve_command() == ["/nowhere/python", "-m", "vllm.entrypoints.cli.main", "serve"]


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        launcher = ServerLauncher(command=["/nowhere/vllm", "serve"])
        async with launcher.launch(EngineConfig("m"), str(tmp_path / "engine.log")):
            raise AssertionError

    with asyncio.Runner(loop_factory=PreciseLoop) as runner, pytest.raises(EngineFault) as caught:
        runner.run(main())
    assert caught.value.reason == "no_command"


def test_ports_inside_of_engines_are_disjoint_by_slot_and_from_the_api_servers() -> None:
    config = EngineConfig("m")
    inner = [int(inner_ports(str(slot), config)["VLLM_PORT"]) for slot in range(3)]
    assert inner == [FIRST + slot * PER_SLOT + API_PORTS for slot in range(3)]
    with reserved(slot=1) as port:
        assert port < inner[1]
    assert inner_ports(None, config) == {}
    assert inner_ports("1", EngineConfig("m", {"data_parallel_size": 2})) == {}


def test_a_slot_tells_its_server_where_to_look_for_ports(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_SLOT", "2")
    monkeypatch.setenv("VLLM_PORT", "5000")

    async def use(engine: ServerEngine) -> str:
        assert engine.process is not None
        return engine.process.family()[0].environ()["VLLM_PORT"]

    assert launched(vllm, Script(), use) == str(FIRST + 2 * PER_SLOT + API_PORTS)
