"""``vllm serve`` as an engine: the way people deploy it, measured over its OpenAI API.

Start-up adds only what the API server needs (address, port, cached-token counts) to the file that
a preset is. The child runs with VLLM_SERVER_DEV_MODE=1, which adds endpoints to the API server and
changes nothing of the engine (it is not part of the compile cache's key either): they empty the
prefix cache between replays and show the arguments in effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.config import EngineConfig
from tuner.engines import server_facts
from tuner.engines.flags import config_text
from tuner.engines.http_client import HttpClient
from tuner.engines.http_stream import Answer
from tuner.engines.http_wire import Dialect, Target, Writer
from tuner.engines.priming import draft_tokens, first_start, speculative_root
from tuner.engines.server_engine import ServerEngine
from tuner.engines.server_port import HOST, SLOT_VARIABLE, inner_ports, listens, reserved
from tuner.engines.server_process import ServerProcess, serve_command
from tuner.engines.vllm_start import compilation, start_phases
from tuner.errors import EngineFault
from tuner.trace import Request

#: The proof that a server works, and how it counts tokens.
_PROBE = Request(id=-1, arrival_s=0.0, prompt_tokens=1, output_tokens=4)
_POLL_S = 0.1
#: A server without /health is asked for a token at once.
_HEALTHY = (200, 404)
#: Statuses of a server that does not take a request's fields.
_NOT_TAKEN = (400, 422)


@dataclass(frozen=True, slots=True)
class ServerLauncher:
    """Starts ``vllm serve`` per launch, or connects to the server at ``url``.

    ``command`` is what takes ``--config FILE``: by default ``vllm serve`` from PATH, else from the
    running Python.
    """

    command: Sequence[str] = ()
    url: str = ""
    #: For a URL: the served model; '' takes the first.
    model: str = ""
    #: For a URL: token ids below this are sent; None: the model's own where it can be known.
    vocab_size: int | None = None
    #: Sent with every request (authorization).
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Processes that send the requests of a replay; more than 1 where one core is too slow.
    clients: int = 1

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> AsyncIterator[ServerEngine]:
        """Run the body with a server that has made a token. See ``Launcher.launch``.

        With a URL nothing is started or ended, and nothing of ``config`` is used.
        """
        ready = self._running() if self.url else self._child(config, log)
        async with ready as engine, engine.watched():
            engine.clients = engine.facts["clients"] = self.clients
            yield engine

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[ServerEngine]:
        async with HttpClient.open(Target.parse(self.url, self.headers)) as client:
            engine = await _connected(client, self.model, self.vocab_size)
            engine.facts["url"] = str(client.target)
            yield engine

    @contextlib.asynccontextmanager
    async def _child(self, config: EngineConfig, log: str) -> AsyncIterator[ServerEngine]:
        began = time.monotonic()
        env = _environment(config)
        key = env.get("VLLM_API_KEY")
        headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **self.headers}
        with reserved() as port:
            async with contextlib.AsyncExitStack() as stack:
                async with first_start(config.key, env) as waited_s:
                    process = ServerProcess.start(self._command(config, log, port), env, log)
                    stack.callback(process.end)
                    opened = HttpClient.open(Target(HOST, port, headers=headers))
                    client = await stack.enter_async_context(opened)
                    engine = await _unless_ended(process, _ready(client, process, config))
                seconds = {"waited_s": waited_s, "start_s": time.monotonic() - began}
                engine.facts["start"] = {**start_phases(log, process.since), **seconds}
                engine.facts["compile"] = compilation(log, process.since)
                yield engine

    def _command(self, config: EngineConfig, log: str, port: int) -> list[str]:
        file = Path(log).with_name("vllm.yaml").absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(config_text(config), encoding="utf-8")
        command = list(self.command) or serve_command()
        # Two words: vLLM ignores --config=FILE in silence.
        command += ["--config", str(file), "--host", HOST, "--port", str(port)]
        return [*command, "--enable-prompt-tokens-details"]


def _environment(config: EngineConfig) -> dict[str, str]:
    """Return this process's environment with the configuration's and our own on top."""
    inherited = dict(os.environ)
    inherited.pop("VLLM_PORT", None)  # engines that start together would all try this one first
    ports = inner_ports(os.environ.get(SLOT_VARIABLE), config)
    env = {**inherited, **ports, **config.env, "VLLM_SERVER_DEV_MODE": "1"}
    tokens = draft_tokens(config.args)
    return env if tokens is None else {**env, **speculative_root(tokens, env)}


async def _unless_ended(
    process: ServerProcess, ready: Coroutine[Any, Any, ServerEngine]
) -> ServerEngine:
    """Wait for readiness; raise ConfigRejected or EngineFault as soon as the process ends."""
    starting = asyncio.ensure_future(ready)
    ending = asyncio.ensure_future(process.end_seen())
    try:
        await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done() and (ended := ending.result()) is not None:
            raise process.start_error(ended)
        return await starting
    finally:
        starting.cancel()
        ending.cancel()
        await asyncio.gather(starting, ending, return_exceptions=True)


async def _ready(client: HttpClient, process: ServerProcess, config: EngineConfig) -> ServerEngine:
    """Wait for our own server to be healthy and to make a token; gather the facts."""
    while (await client.ask("GET", "/health")).status not in _HEALTHY:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    if listens(client.target.port, process.family()) is False:
        raise EngineFault("port_taken", f"another process answers at {client.target}")
    size = server_facts.vocabulary(config.model)
    engine = await _connected(client, "", size, process, config)
    engine.facts = {**server_facts.from_log(process.log, process.since), **engine.facts}
    return engine


async def _connected(
    client: HttpClient,
    name: str,
    vocab_size: int | None,
    process: ServerProcess | None = None,
    config: EngineConfig | None = None,
) -> ServerEngine:
    """Return the engine behind a client. Raises EngineFault where it makes no token."""
    model = await server_facts.served(client, name)
    if model is None:
        what = f"does not serve {name!r}" if name else "lists no model"
        raise EngineFault("unreachable", f"{client.target} {what} (GET /v1/models)")
    size = vocab_size or server_facts.vocabulary(model.name) or server_facts.VOCABULARY
    engine, timing = await _probed(client, model.name, size, process)
    info = await server_facts.inner(client)
    engine.facts |= {
        "engine_kind": "server",
        "vocab_size": size,
        "token_times": timing,
        "served_model": model.name,
        **server_facts.from_info(info, config or EngineConfig(model.name)),
    }
    if version := await server_facts.version(client):
        engine.facts["version"] = version
    effective = engine.facts.setdefault("effective", {})
    if model.max_model_len is not None:
        effective["max_model_len"] = model.max_model_len
    if effective.get("scheduling_policy") == "priority":
        engine.writer.dialect = replace(engine.writer.dialect, priority=True)
    await engine.reset()
    return engine


async def _probed(
    client: HttpClient, model: str, size: int, process: ServerProcess | None
) -> tuple[ServerEngine, str]:
    """Make the first tokens in the richest dialect that the server takes."""
    answer = Answer()
    for dialect in (Dialect(), Dialect(vllm=False)):
        engine = ServerEngine(client, Writer(client.target, model, size, dialect), process)
        answer = await engine.answer(engine.prepare(_PROBE, [1]))
        if answer.status not in _NOT_TAKEN:
            break
    if problem := answer.problem():
        raise EngineFault("no_token", f"{client.target}: {problem}")
    return engine, answer.timing
