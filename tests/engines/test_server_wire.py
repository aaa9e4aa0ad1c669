"""The bytes of a request, built ahead."""

import json

import numpy as np
import pytest

from tuner.config import EngineConfig
from tuner.engines.flags import config_text
from tuner.engines.http_wire import Dialect, Target, TokenText, Writer
from tuner.engines.server_metrics import Tally, read
from tuner.errors import StudyError
from tuner.exports.vllm_config import vllm_config
from tuner.presets import Preset
from tuner.trace import Request

REQUEST = Request(0, 0.0, prompt_tokens=3, output_tokens=7, priority=2)


def body_of(message: bytes) -> dict[str, object]:
    head, _, body = message.partition(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
    assert int(length.split()[1]) == len(body)
    value: dict[str, object] = json.loads(body)
    return value


def test_a_request_asks_for_exactly_its_tokens() -> None:
    writer = Writer(Target("h", 1), "m", 32_000, Dialect())
    message = writer.request(REQUEST, [5, 31_999, 0])
    assert message.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: h:1\r\n")
    assert body_of(message) == {
        "model": "m",
        "prompt": [5, 31_999, 0],
        "max_tokens": 7,
        "min_tokens": 7,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_plain_dialect_sends_nothing_that_only_vllm_knows() -> None:
    body = body_of(Writer(Target("h", 1), "m", 10, Dialect(vllm=False)).request(REQUEST, [1]))
    assert set(body) == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
    assert body["stream_options"] == {"include_usage": True}


def test_priority_and_salt_go_along_where_they_are_wanted() -> None:
    writer = Writer(Target("h", 1), "m", 10, Dialect(priority=True))
    writer.cache_salt = "s"
    body = body_of(writer.request(REQUEST, [1]))
    assert (body["priority"], body["cache_salt"]) == (2, "s")


@pytest.mark.parametrize("size", [2, 10, 11, 999, 32_000])
def test_any_tokens_survive_as_text(size: int) -> None:
    text = TokenText(size)
    tokens = np.random.default_rng(0).integers(0, size, 500).tolist()
    assert json.loads(text.of(tokens)) == tokens
    assert json.loads(text.of([size + 5, 0])) == [size + 5, 0]  # more than was promised
    assert text.of([]) == b"[]"


@pytest.mark.parametrize(
    ("url", "said", "tls"),
    [
        ("http://localhost:8000", "http://localhost:8000", False),
        ("localhost:8000/v1/", "http://localhost:8000", False),
        ("https://api.example.org/llm/v1", "https://api.example.org:443/llm", True),
        ("http://[::1]:80", "http://[::1]:80", False),
    ],
)
def test_urls(url: str, said: str, tls: bool) -> None:
    target = Target.parse(url)
    assert (str(target), target.tls) == (said, tls)


@pytest.mark.parametrize("url", ["", "http://", "ftp://host", "http://host:port"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(StudyError, match="expected http"):
        Target.parse(url)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_num_seqs": 8, "gpu_memory_utilization": 0.9, "enable_prefix_caching": False},
        {"compilation_config": {"cudagraph_mode": "FULL"}, "disable_log_stats": False},
        {"cudagraph_capture_sizes": [1, 2], "quantization": None, "dtype": "bfloat16"},
    ],
)
def test_the_file_that_is_measured_is_the_file_that_is_exported(args: dict[str, object]) -> None:
    config = EngineConfig("a/model", args)
    ((_, exported),) = vllm_config(Preset("p", config, 0, {}))
    lines = [line for line in exported.splitlines() if not line.startswith("#")]
    assert config_text(config).splitlines() == lines


def page(generated: float, queries: float, hits: float, running: float) -> str:
    return (
        "# TYPE vllm:generation_tokens counter\n"
        f'vllm:generation_tokens_total{{engine="0",model_name="a }} b"}} {generated}\n'
        f'vllm:generation_tokens_total{{engine="1",model_name="a }} b"}} {generated}\n'
        f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
        f"vllm:num_requests_running {running}\nvllm:kv_cache_usage_perc 0.5\n"
        'vllm:request_success_total{finished_reason="stop"} 7\n'
    )


def test_counters_are_differences_and_levels_are_the_highest_seen() -> None:
    tally = Tally()
    tally.reset(read(page(100, 1000, 500, 9)))
    tally.add(read(page(150, 1400, 600, 3)))
    tally.add(read(page(160, 1400, 600, 2)))
    tally.add({})  # the server did not answer this time
    assert tally.totals() == {
        "generated_tokens": 120.0,
        "prefix_hit_share": 0.25,
        "running_max": 3.0,
        "kv_usage_max_share": 0.5,
    }


def test_a_page_of_another_server_says_nothing() -> None:
    assert read("<html>") == {}
    assert read("# TYPE other counter\nother_total 3\n") == {}
    assert Tally().totals() == {}
