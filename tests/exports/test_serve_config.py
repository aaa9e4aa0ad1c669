"""An exported preset, started as its header says, by the real ``vllm serve``, answers a request."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.config import EngineConfig
from tuner.engines.vllm import base_env
from tuner.exports import write
from tuner.presets import Preset

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
MODEL = Path(__file__).parents[2] / "studies" / "models" / "tiny"
#: Of every kind: a number, a flag, a flag switched off, text, a list and a nested value.
ARGS: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "scheduling_policy": "priority",
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "block_size": 32,
    "cudagraph_capture_sizes": [1, 2],
    "hf_overrides": {"max_position_embeddings": 1024},
}


def exported(folder: Path) -> list[str]:
    """Write a preset; return the launch line of its header as words."""
    preset = Preset(
        "balanced", EngineConfig(str(MODEL), ARGS, {"VLLM_LOGGING_LEVEL": "INFO"}), 3, {}
    )
    [path] = write([preset], folder)
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    return shlex.split(header[-1].removeprefix("#"))


@contextlib.contextmanager
def started(words: list[str], folder: Path) -> Iterator[str]:
    """Run a launch line on a free port of this machine; give its address once it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = dict(word.split("=", 1) for word in words[: words.index("vllm")])
    env = {**os.environ, **base_env(folder / "cache", device="cpu", model=str(MODEL)), **values}
    vllm = str(Path(sys.executable).parent / "vllm")
    line = [vllm, *words[words.index("vllm") + 1 :], "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            line, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 400
        while answer(f"{url}/health") is None:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.3)
        yield url
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)


def answer(url: str, body: dict[str, Any] | None = None) -> bytes | None:
    """Return what the server says, None while it does not."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return bytes(response.read())
    except (urllib.error.URLError, ConnectionError):
        return None


def test_vllm_serve_starts_from_the_file_and_answers(tmp_path: Path) -> None:
    words = exported(tmp_path)
    assert words == ["VLLM_LOGGING_LEVEL=INFO", "vllm", "serve", "--config", "balanced.yaml"]
    with started(words, tmp_path) as url:
        asked = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "temperature": 0}
        said = answer(f"{url}/v1/completions", {**asked, "detokenize": False})
        metrics = answer(f"{url}/metrics")
    assert said is not None
    usage = json.loads(said)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)
    assert metrics is not None
    assert b'enable_prefix_caching="False"' in metrics
    log = (tmp_path / "log").read_text()
    assert "'scheduling_policy': 'priority'" in log
