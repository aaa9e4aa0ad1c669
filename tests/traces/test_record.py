"""Recording: what is kept, what is not, and that the served request never suffers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tuner import traces
from tuner.trace import Request
from tuner.traces import record
from tuner.traces.record import Recorder
from tuner.traces.record_asgi import RecordingMiddleware
from tuner.traces.record_proxy import proxy
from tuner.traces.reuse import predicted_hit_share
from tuner.traces.tokens import TokenSource

SECRET = "the patient's name is Ada"


def usage(prompt, output):
    return {"usage": {"prompt_tokens": prompt, "total_tokens": 0, "completion_tokens": output}}


def answer(prompt, output):
    return json.dumps({"choices": [{"text": f'{SECRET} "usage":{{}}'}], **usage(prompt, output)})


async def served(recorder, body, *, path="/v1/completions", status=200, headers=(), chunks=None):
    """Send one request through the middleware to an app that answers ``chunks``."""
    chunks = [answer(40, 3).encode()] if chunks is None else chunks

    async def app(scope, receive, send):
        assert (await receive())["body"] == body
        await send({"type": "http.response.start", "status": status, "headers": []})
        for n, chunk in enumerate(chunks):
            more = n < len(chunks) - 1
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

    sent = []
    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
    got = {"type": "http.request", "body": body}
    await RecordingMiddleware(app, recorder)(scope, _always(got), _into(sent))
    assert b"".join(m.get("body", b"") for m in sent) == b"".join(chunks)
    return sent


def _always(message):
    async def receive():
        return message

    return receive


def _into(sent):
    async def send(message):
        sent.append(message)

    return send


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def completion(tokens, **more):
    return json.dumps({"prompt": tokens, "max_tokens": 3, **more}).encode()


def chat(*texts):
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}).encode()


async def test_token_prompts_keep_exact_prefixes(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        await served(recorder, completion(list(range(40))))
        await served(recorder, completion([*range(32), 99, 98, 97, 96, 95, 94, 93, 92]))
        await served(recorder, completion([5, *range(1, 40)]))
    trace = traces.read(path)
    assert len(trace) == 3
    assert [request.block_tokens for request in trace] == [(16, 16)] * 3
    assert trace[0].blocks == trace[1].blocks
    assert not set(trace[2].blocks) & set(trace[0].blocks)
    assert predicted_hit_share(trace) == pytest.approx(32 / 120)
    assert trace.prompt_tokens.tolist() == [40, 40, 40]
    assert trace.output_tokens.tolist() == [3, 3, 3]


async def test_chats_share_their_head_and_leave_no_text(tmp_path):
    path = tmp_path / "r.jsonl"
    body = [answer(400, 5).encode()]
    with Recorder(path) as recorder:
        for question in ("a", "b"):
            headers = [(b"X-Session-Id", SECRET.encode()), (b"x-slo-class", b"interactive")]
            await served(
                recorder,
                chat(SECRET * 80, question * 300),
                path="/v1/chat/completions",
                headers=headers,
                chunks=body,
            )
    first, second = traces.read(path)
    shared = sum(a == b for a, b in zip(first.blocks, second.blocks, strict=False))
    assert len(SECRET * 80) // 256 <= shared < len(first.blocks)
    assert (first.session, first.slo_class) == (second.session, "interactive")
    assert second.parents == (0,)
    files = "".join(file.read_text() for file in tmp_path.iterdir())
    assert not any(word in files for word in ("patient", "Ada", "aaaaaa"))


async def test_two_recordings_of_one_prompt_cannot_be_linked(tmp_path):
    blocks = []
    for name in ("a.jsonl", "b.jsonl"):
        with Recorder(tmp_path / name) as recorder:
            await served(recorder, completion(list(range(40))))
        blocks += rows_of(tmp_path / name)[0]["blocks"]
    assert len(set(blocks)) == len(blocks)


async def test_streams_tell_first_token_and_usage(tmp_path):
    path = tmp_path / "r.jsonl"
    final = f"data: {json.dumps({'choices': [], **usage(40, 7)})}\n\ndata: [DONE]\n\n"
    chunks = [b'data: {"choices":[{"text":"x"}],"usage":null}\n\n'] * 3 + [final.encode()]
    with Recorder(path) as recorder:
        await served(recorder, completion(list(range(40)), priority=-2), chunks=chunks)
    (row,) = rows_of(path)
    assert (row["in_tok"], row["out_tok"], row["prio"]) == (40, 7, -2)
    assert 0 <= row["ttft_us"] <= row["dur_us"]


async def test_failures_and_requests_without_usage_are_counted_not_replayed(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        await served(recorder, completion([1]), status=400, chunks=[b"no"])
        await served(recorder, completion([1]), chunks=[b'{"choices": []}'])
        await served(recorder, b"\xff not json")
        await served(recorder, b"[]")
        await served(recorder, completion([1]), path="/v1/models")
    assert recorder.counts == {"written": 4, "lost": 0, "faults": 0}
    trace = traces.read(path)
    assert len(trace) == 2
    assert trace.provenance.dropped == {"missing_value": 2}


async def test_a_client_that_leaves_is_cancelled_and_the_error_goes_through(tmp_path):
    path = tmp_path / "r.jsonl"

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        raise ConnectionError("gone")

    messages = iter(
        [{"type": "http.request", "body": completion([1])}, {"type": "http.disconnect"}]
    )

    async def receive():
        return next(messages)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    with Recorder(path) as recorder, pytest.raises(ConnectionError):
        await RecordingMiddleware(app, recorder)(scope, receive, _into([]))
    assert rows_of(path)[0]["status"] == "cancelled"


async def test_a_broken_recorder_does_not_reach_the_request(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("our fault")

    monkeypatch.setattr(record.Call, "answered", broken)
    monkeypatch.setattr(record.Call, "asked", broken)
    with Recorder(tmp_path / "r.jsonl") as recorder:
        await served(recorder, completion([1]))
        monkeypatch.setattr(Recorder, "begin", broken)
        await served(recorder, completion([1]))
    monkeypatch.setattr(record._Rows, "row", broken)
    with Recorder(tmp_path / "s.jsonl") as recorder:
        monkeypatch.undo()
        monkeypatch.setattr(record._Rows, "row", broken)
        await served(recorder, completion([1]))
    assert recorder.counts["faults"] == 1


async def test_a_folder_that_cannot_be_written_only_warns(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TUNER_RECORD", str(tmp_path / "no" / "r.jsonl"))
    await served(None, completion([1]))
    assert "requests are not recorded" in caplog.text


async def test_an_older_recording_is_left_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    for _ in range(2):
        with Recorder(path) as recorder:
            await served(recorder, completion([1]))
    assert len(rows_of(path)) == 1
    assert len(rows_of(tmp_path / "r-1.jsonl")) == 1


async def test_a_full_backlog_loses_rows_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_BACKLOG", 2)
    with Recorder(tmp_path / "r.jsonl") as recorder:
        for _ in range(5):
            recorder.begin({}).ended(200)
    assert recorder.counts["written"] + recorder.counts["lost"] == 5
    assert recorder.counts["lost"] >= 1


def test_a_killed_process_loses_at_most_the_last_second(tmp_path):
    path = tmp_path / "r.jsonl"
    code = (
        "import sys, time\n"
        "from tuner.traces.record import Recorder\n"
        "r = Recorder(sys.argv[1]); r.start()\n"
        "while True:\n"
        "    r.begin({}).ended(200); print(time.monotonic_ns(), flush=True); time.sleep(0.01)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    ended = [int(child.stdout.readline()) for _ in range(250)]
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    ended += [int(line) for line in rest.split()]
    written = len(rows_of(path))
    due = sum(at < ended[-1] - 1_000_000_000 for at in ended)
    assert 100 < due <= written


async def test_recording_costs_less_than_a_millisecond(tmp_path):
    body = completion(list(range(4000)))
    chunks = [b'data: {"choices":[{"text":"x"}]}\n\n'] * 50 + [answer(4000, 50).encode()]

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    async def send(message):
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    receive = _always({"type": "http.request", "body": body})

    async def spent(target, rounds=100):
        began = time.thread_time()
        for _ in range(rounds):
            await target(scope, receive, send)
        return (time.thread_time() - began) / rounds

    with Recorder(tmp_path / "r.jsonl") as recorder:
        extra = await spent(RecordingMiddleware(app, recorder)) - await spent(app)
    assert extra < 0.001


# --- the proxy ---


@pytest.fixture
async def upstream():
    async def completions(request):
        asked = await request.json()
        if asked.get("stream"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for n in range(1000 if asked.get("endless") else 3):
                await response.write(f'data: {{"n":{n}}}\n\n'.encode())
                await asyncio.sleep(0.01)
            await response.write(f"data: {json.dumps(usage(40, 3))}\n\n".encode())
            return response
        return web.json_response(usage(len(asked["prompt"]), 3), headers={"X-Own": "yes"})

    async def health(request):
        return web.Response(text="fine")

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/health", health)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


async def test_the_proxy_passes_on_and_records(tmp_path, upstream):
    path = tmp_path / "r.jsonl"
    prompt = list(range(40))
    with Recorder(path) as recorder:
        async with (
            TestServer(proxy(upstream, recorder)) as server,
            aiohttp.ClientSession() as client,
        ):
            url = str(server.make_url("/v1/completions"))
            async with client.get(server.make_url("/health?x=1")) as answered:
                assert await answered.text() == "fine"
            async with client.get(server.make_url("/none")) as answered:
                assert answered.status == 404
            async with client.post(url, json={"prompt": prompt}) as answered:
                assert await answered.json() == usage(40, 3)
                assert answered.headers["X-Own"] == "yes"
            async with client.post(url, json={"prompt": prompt, "stream": True}) as answered:
                assert len((await answered.text()).split("\n\n")) == 5
            body = {"prompt": prompt, "stream": True, "endless": True}
            async with client.post(url, json=body) as answered:
                await answered.content.read(5)
            await asyncio.sleep(0.2)
    assert [row["status"] for row in rows_of(path)] == ["ok", "ok", "cancelled"]
    trace = traces.read(path)
    assert trace.prompt_tokens.tolist() == [40, 40]
    assert trace[0].blocks == trace[1].blocks


async def test_the_proxy_answers_502_when_the_server_is_away(tmp_path):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        app = proxy("http://127.0.0.1:9", recorder)
        async with TestServer(app) as server, aiohttp.ClientSession() as client:
            url = server.make_url("/v1/completions")
            async with client.post(url, json={"prompt": [1]}) as answered:
                assert answered.status == 502
    assert rows_of(tmp_path / "r.jsonl")[0]["status"] == "error"


# --- a real server ---


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_a_real_server_records_and_hits_its_cache_as_predicted(tmp_path, unused_tcp_port):
    root = Path(__file__).parent.parent.parent
    trace = traces.read(root / "workloads" / "traces" / "chat.jsonl")
    source = TokenSource(trace.digest, 32_000, 0)
    path = tmp_path / "r.jsonl"
    server = _vllm_serve(root / "studies" / "models" / "tiny", unused_tcp_port, path)
    try:
        url = f"http://127.0.0.1:{unused_tcp_port}"
        async with aiohttp.ClientSession() as client:
            await _until_healthy(client, url, server)
            cached = [await _cached(client, url, source, request) for request in trace]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
    seen = sum(cached) / trace.prompt_tokens.sum()
    assert seen == pytest.approx(predicted_hit_share(trace, 32), abs=0.01)
    recorded = traces.read(path)
    assert recorded.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert predicted_hit_share(recorded, 16) == pytest.approx(predicted_hit_share(trace, 16))


def _vllm_serve(model, port, path):
    command = [
        Path(sys.executable).with_name("vllm"), "serve", model, "--served-model-name", "tiny",
        "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--port", str(port),
        "--max-model-len", "2048", "--block-size", "32", "--enable-prompt-tokens-details",
        "--enable-force-include-usage", "--middleware",
        "tuner.traces.record_asgi.RecordingMiddleware",
    ]  # fmt: skip
    env = {**os.environ, "TUNER_RECORD": str(path), "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = path.with_suffix(".log").open("w")
    with log:
        return subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


async def _until_healthy(client, url, server):
    while server.poll() is None:
        try:
            async with client.get(f"{url}/health") as answered:
                if answered.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    pytest.fail("the server ended before it was healthy")


async def _cached(client, url, source: TokenSource, request: Request):
    body = {
        "model": "tiny", "prompt": source.prompt(request), "max_tokens": 2, "min_tokens": 2,
        "ignore_eos": True, "detokenize": False,
    }  # fmt: skip
    async with client.post(f"{url}/v1/completions", json=body) as answered:
        found = (await answered.json())["usage"]
    assert found["prompt_tokens"] == request.prompt_tokens
    return found["prompt_tokens_details"]["cached_tokens"]
