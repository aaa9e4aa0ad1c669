"""A scriptable OpenAI-compatible server: a process of its own on the loopback.

``python fake_server.py serve [--config FILE] [--port PORT] ...`` takes what ``vllm serve`` takes
and ignores the rest; with port 0 it prints the port that it took. What it does is a ``Script`` in
JSON in the environment variable FAKE_SERVER. It answers slowly or not at all, refuses, breaks off,
and remembers when each request arrived (GET /arrivals).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import httptools

VARIABLE = "FAKE_SERVER"
MODEL = "fake"


@dataclass
class Script:
    """What the server does. Times in seconds."""

    #: Time to the first chunk and between chunks, and tokens per chunk.
    first_s: float = 0.0
    step_s: float = 0.0
    chunk: int = 1
    #: Requests served at one time, 0 for no limit.
    slots: int = 0
    #: "continuous", "final" or "none": where usage is told.
    usage: str = "continuous"
    cached_tokens: int | None = None
    #: Every n-th completion request, from the first after ``skip``, is struck by what follows.
    every: int = 1
    skip: int = 0
    status: int = 200
    #: Close the connection after so many chunks.
    cut_after: int | None = None
    #: Answer with an error event after so many chunks.
    error_after: int | None = None
    #: Exit with ``code`` when so many completion requests have arrived.
    die_at: int | None = None
    #: Before listening: wait, print ``say``, then "listen", "exit" with ``code``, "kill", "never".
    start_s: float = 0.0
    say: str = ""
    start: str = "listen"
    code: int = 0
    #: Healthy, but completions never answer.
    hang: bool = False
    #: Refuse bodies with vLLM's own fields.
    strict: bool = False
    #: Ignore SIGTERM; have a child that ignores it too.
    stubborn: bool = False
    child: bool = False
    pages: bool = True


class Server:
    """The state of one server."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.arrivals: list[float] = []
        self.bodies: list[dict[str, Any]] = []
        self.running = 0
        self.waiting: deque[Callable[[], None]] = deque()
        self.generated = self.prompt_tokens = self.resets = 0

    def enter(self, go: Callable[[], None]) -> None:
        """Call ``go`` when a slot is free."""
        if self.script.slots and self.running >= self.script.slots:
            self.waiting.append(go)
            return
        self.running += 1
        go()

    def leave(self) -> None:
        """Give a slot to the next."""
        self.running -= 1
        if self.waiting:
            self.running += 1
            self.waiting.popleft()()


class Http(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(httptools.HttpParserError):
            self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.body = b"", b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path = self.url.decode().partition("?")[0]
        if path.endswith("completions"):
            self.server.arrivals.append(time.monotonic())
            self.complete()
        else:
            self.page(path)

    def complete(self) -> None:
        script, server = self.server.script, self.server
        number = len(server.arrivals)
        if script.die_at is not None and number >= script.die_at:
            print(script.say, flush=True)
            os._exit(script.code)
        body = json.loads(self.body)
        if len(server.bodies) < 1000:
            server.bodies.append(body)
        struck = number > script.skip and (number - 1 - script.skip) % script.every == 0
        if script.strict and "ignore_eos" in body:
            self.reply(400, {"error": {"message": "unknown field ignore_eos"}})
        elif script.status != 200 and struck:
            self.reply(script.status, {"error": {"message": "no room", "code": script.status}})
        elif not script.hang:
            answer = Stream(self, body, struck)
            server.enter(answer.begin)

    def page(self, path: str) -> None:
        server = self.server
        pages: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"id": MODEL, "root": MODEL, "max_model_len": 4096}]},
            "/arrivals": {"arrivals": server.arrivals, "bodies": server.bodies},
        }
        if server.script.pages:
            pages |= {"/version": {"version": "0.0.fake"}, "/metrics": metrics(server)}
            pages["/reset_prefix_cache"] = {"success": True}
        server.resets += path == "/reset_prefix_cache"
        if path in pages:
            self.reply(200, pages[path])
        else:
            self.reply(404, {"error": {"message": f"no page {path}"}})

    def reply(self, status: int, value: Any) -> None:
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.transport.write(
            b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )


class Stream:
    """One streamed completion."""

    def __init__(self, http: Http, body: dict[str, Any], struck: bool) -> None:
        self.http, self.server, self.struck = http, http.server, struck
        self.tokens = body["max_tokens"]
        self.prompt = len(body["prompt"])
        self.sent = self.chunks = 0
        options = body.get("stream_options") or {}
        self.continuous = options.get("continuous_usage_stats", False)

    def begin(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        self.http.transport.write(head + b"transfer-encoding: chunked\r\n\r\n")
        asyncio.get_running_loop().call_later(self.server.script.first_s, self.step)

    def step(self) -> None:
        script = self.server.script
        if self.http.transport.is_closing():
            self.server.leave()
            return
        if self.struck and script.cut_after == self.chunks:
            self.http.transport.abort()
            self.server.leave()
            return
        if self.struck and script.error_after == self.chunks:
            self.event({"error": {"message": "the engine broke", "code": 500}})
            self.end()
            return
        new = min(script.chunk, self.tokens - self.sent)
        self.sent += new
        self.chunks += 1
        self.server.generated += new
        choice = {"index": 0, "text": "x" * new, "logprobs": None, "finish_reason": None}
        usage = self.usage() if script.usage == "continuous" and self.continuous else None
        self.event(self.frame([choice], usage))
        if self.sent < self.tokens:
            asyncio.get_running_loop().call_later(script.step_s, self.step)
        else:
            if script.usage != "none":
                self.event(self.frame([], self.usage(script.cached_tokens)))
            self.end()

    def usage(self, cached: int | None = None) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": self.prompt, "completion_tokens": self.sent}
        return usage | ({"prompt_tokens_details": {"cached_tokens": cached}} if cached else {})

    def frame(self, choices: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        frame = {"id": "cmpl-1", "object": "text_completion", "model": MODEL, "choices": choices}
        return frame | ({"usage": usage} if usage else {})

    def event(self, value: Any) -> None:
        data = b"data: " + json.dumps(value).encode() + b"\n\n"
        self.http.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        self.http.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self.server.prompt_tokens += self.prompt
        self.server.leave()


def metrics(server: Server) -> str:
    """Return a page as vLLM's, with two engines' worth of lines."""
    labels = '{engine="0",model_name="a b"}'
    return "\n".join([
        "# HELP vllm:generation_tokens_total Tokens.",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{labels} {float(server.generated)}",
        f"vllm:generation_tokens_created{labels} 1.7e9",
        f"vllm:num_preemptions_total{labels} 0.0",
        f"vllm:prefix_cache_queries_total{labels} {float(server.prompt_tokens)}",
        f"vllm:prefix_cache_hits_total{labels} {server.prompt_tokens / 4}",
        f"vllm:num_requests_running{labels} {float(server.running)}",
        f"vllm:num_requests_waiting{labels} {float(len(server.waiting))}",
        f"vllm:kv_cache_usage_perc{labels} 0.25",
        'vllm:kv_cache_usage_perc{engine="1",model_name="a b"} 0.5',
        "",
    ])  # fmt: skip


async def serve(script: Script, port: int) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    server = Server(script)
    await asyncio.sleep(script.start_s)
    listening = await loop.create_server(lambda: Http(server), "127.0.0.1", port)
    ended = asyncio.Event()
    if not script.stubborn:
        loop.add_signal_handler(signal.SIGTERM, ended.set)
    print("port", listening.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


def main(arguments: list[str]) -> int:
    """Act by the script in the environment."""
    import uvloop

    script = Script(**json.loads(os.environ.get(VARIABLE, "{}")))
    if script.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if script.child:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if script.start != "listen" and script.say:
        print(script.say, flush=True)
    if script.start == "exit":
        return script.code
    if script.start == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if script.start == "never":
        time.sleep(600)
    port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(script, port))
    return 0


def environment(script: Script) -> dict[str, str]:
    """Return what makes a server follow a script."""
    return {VARIABLE: json.dumps(asdict(script))}


@contextlib.contextmanager
def running(script: Script | None = None) -> Iterator[str]:
    """Run the body with a server; yield its URL."""
    command = [sys.executable, __file__, "serve"]
    env = {**os.environ, **environment(script or Script())}
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline().split()[1])}"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
