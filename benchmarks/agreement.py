"""Do two clients measure the same engine alike? ``python benchmarks/agreement.py``.

A ``vllm serve`` of the tiny model (CPU engine, no prefix cache) is measured by ``tuner replay`` and
by ``vllm bench serve`` on the same requests: the same lengths at the same times, all at once for
throughput, Poisson arrivals for latency. Runs take turns (ABBA), the first pair is discarded, and
medians are compared: throughput within 5 %, P99 TTFT and P99 E2E within 10 %. Exit code 1 where
they are further apart.

The engine has one half of the cores and the client the other, so that a client that works more does
not slow the engine; on a busy machine put ``chrt -r 1`` before the command. Known differences: our
latencies count from the scheduled arrival, theirs from the send (our P99 send lateness stands in
the table, theirs is not reported); prompts are other random tokens of the same number. Both are
told to be greedy: left to itself ``vllm bench serve`` has the server sample, which costs more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.load_generation_peers import character_tokenizer  # noqa: E402
from tuner.config import EngineConfig  # noqa: E402
from tuner.engines.server import ServerLauncher  # noqa: E402
from tuner.engines.vllm import base_env  # noqa: E402

MODEL = ROOT / "studies" / "models" / "tiny"
ARGUMENTS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "max_model_len": 2048,
    "max_num_seqs": 16,
}
#: Paced requests arrive at this share of the rate that the discarded run came to.
LOAD = 0.5
#: A client that takes longer than this is broken.
LIMIT_S = 180.0
NAMES = OURS, THEIRS = "tuner replay", "vllm bench serve"
#: Rows: name, measure, and by how much the medians may differ.
ROWS = (
    ("output tokens/s, all at once", "saturated", "throughput", 0.05),
    ("P99 TTFT ms, Poisson", "paced", "ttft", 0.10),
    ("P99 E2E ms, Poisson", "paced", "e2e", 0.10),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs and what it measures."""

    url: str
    folder: Path
    cores: frozenset[int]

    @property
    def log(self) -> Path:
        """What the clients say besides their results."""
        return self.folder / "clients.log"

    def said(self) -> str:
        """Return the log's end."""
        return self.log.read_text(errors="replace")[-600:]


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one client: output tokens per second, and milliseconds."""

    throughput: float
    ttft: float
    e2e: float
    requests_per_s: float
    #: Only we report it.
    lateness: float = 0.0


def write_trace(place: Place, requests: int, rate: float | None) -> None:
    """Write the same requests for both, all at time 0 where there is no rate."""
    random = np.random.default_rng(0)
    prompts, outputs = random.integers(16, 64, requests), random.integers(8, 24, requests)
    gaps = random.exponential(1.0, requests)
    times = np.zeros(requests) if rate is None else (np.cumsum(gaps) - gaps[0]) / rate
    name = "saturated" if rate is None else "paced"
    rows = [
        (round(at, 6), int(n), int(out)) for at, n, out in zip(times, prompts, outputs, strict=True)
    ]
    _lines(
        place.folder / f"{name}.jsonl",
        [{"t_us": round(at * 1e6), "in_tok": n, "out_tok": out} for at, n, out in rows],
    )
    _lines(
        place.folder / f"{name}.timed.jsonl",
        [
            {"timestamp": at, "input_length": n, "output_length": out, "hash_ids": [i]}
            for i, (at, n, out) in enumerate(rows)
        ],
    )
    (place.folder / f"{name}.yaml").write_text(
        f"trace: {{path: {name}.jsonl}}\nmeasures: [{name}]\nwarmup: {{requests: 0}}\n"
    )


def _lines(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Ours:
    """``tuner replay``, as a user calls it."""

    def __init__(self, place: Place) -> None:
        self.place = place

    async def run(self, measure: str) -> Figures:
        """Measure once."""
        command = [sys.executable, "-m", "tuner", "replay", f"{measure}.yaml"]
        child = await started([*command, "--url", self.place.url, "--json"], self.place)
        said, _ = await within(child, child.communicate())
        if child.returncode != 0:
            raise RuntimeError(f"{OURS}: {self.place.said()}")
        values = json.loads(said)["measurement"]["values"]
        get = {name.partition(".")[2]: value for name, value in values.items()}
        return Figures(
            get["output_tokens_per_s"],
            get["ttft.p99"] * 1e3,
            get["e2e.p99"] * 1e3,
            get["requests_per_s"],
            get["lateness.p99"] * 1e3,
        )

    async def close(self) -> None:
        """Nothing is left running."""


#: What ``vllm bench serve`` does, several times in one process: its imports take 12 CPU seconds.
BENCH = """
import argparse, contextlib, json, sys
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        main(parser.parse_args(json.loads(line)))
    print("done", flush=True)
"""


class Theirs:
    """``vllm bench serve`` with a timed trace."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.child: asyncio.subprocess.Process | None = None

    async def run(self, measure: str) -> Figures:
        """Measure once."""
        if self.child is None:
            self.child = await started([sys.executable, "-c", BENCH], self.place)
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        rows = len((self.place.folder / f"{measure}.jsonl").read_text().splitlines())
        self.child.stdin.write(json.dumps(self.arguments(measure, rows)).encode() + b"\n")
        if not await within(self.child, self.child.stdout.readline()):
            raise RuntimeError(f"{THEIRS}: {self.place.said()}")
        found = json.loads((self.place.folder / "theirs.json").read_text())
        if found["completed"] != rows:
            raise RuntimeError(f"{THEIRS}: {found['completed']} of {rows} requests completed")
        return Figures(
            found["output_throughput"],
            found["p99_ttft_ms"],
            found["p99_e2el_ms"],
            found["request_throughput"],
        )

    def arguments(self, measure: str, rows: int) -> list[str]:
        """Return the words after ``vllm bench serve``."""
        return [
            "--backend", "vllm", "--base-url", self.place.url, "--model", str(MODEL),
            "--tokenizer", str(character_tokenizer(self.place.folder / "tokenizer")),
            "--dataset-name", "timed_trace", "--dataset-path", f"{measure}.timed.jsonl",
            "--timed-trace-chunk-hash-size", "512", "--num-prompts", str(rows), "--ignore-eos",
            "--disable-tqdm", "--ready-check-timeout-sec", "0", "--percentile-metrics",
            "ttft,e2el", "--metric-percentiles", "99", "--save-result", "--result-dir", ".",
            "--result-filename", "theirs.json", "--temperature", "0",
        ]  # fmt: skip

    async def close(self) -> None:
        """End the process."""
        if self.child is not None and self.child.returncode is None:
            self.child.kill()
            await self.child.wait()


async def started(command: Sequence[str], place: Place) -> asyncio.subprocess.Process:
    """Start a client on its cores."""
    with place.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=place.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: os.sched_setaffinity(0, place.cores),
        )


async def within(child: asyncio.subprocess.Process, work: Awaitable[T]) -> T:
    """Wait for work of a client; end the client where that takes too long."""
    try:
        return await asyncio.wait_for(work, LIMIT_S)
    except BaseException:
        child.kill()
        await child.wait()
        raise


async def measured(options: argparse.Namespace) -> dict[tuple[str, str], list[Figures]]:
    """Return the runs of each client and measure."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    found: dict[tuple[str, str], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        env = base_env(folder / "cache", device="cpu", model=str(MODEL))
        config = EngineConfig(str(MODEL), ARGUMENTS, env)
        os.sched_setaffinity(0, cores[:half])  # the server inherits this
        log = str(folder / "engine.log")
        async with ServerLauncher().launch(config, log) as engine, AsyncExitStack() as stack:
            place = Place(str(engine.client.target), folder, frozenset(cores[-half:]))
            write_trace(place, options.requests, None)
            clients = {OURS: Ours(place), THEIRS: Theirs(place)}
            stack.push_async_callback(clients[THEIRS].close)
            first = [await client.run("saturated") for client in clients.values()]
            rate = options.rate or LOAD * first[0].requests_per_s
            write_trace(place, options.requests, rate)
            for measure in ("saturated", "paced"):
                for turn in range(options.repeats):
                    for name in NAMES[:: 1 if turn % 2 == 0 else -1]:
                        figures = await clients[name].run(measure)
                        found.setdefault((name, measure), []).append(figures)
            print(
                f"vLLM {engine.facts.get('version')}, {options.requests} requests, "
                f"paced at {rate:.1f} requests/s, medians (least to most) of {options.repeats} runs"
            )
    return found


def table(found: dict[tuple[str, str], list[Figures]]) -> tuple[str, bool]:
    """Return the table and whether everything lies within its bound."""
    lines = [f"| | {OURS} | {THEIRS} | ratio | bound | |", "|---|---|---|---|---|---|"]
    agreed = True
    for name, measure, field, bound in ROWS:
        runs = [[getattr(f, field) for f in found[client, measure]] for client in NAMES]
        a, b = (statistics.median(values) for values in runs)
        within = abs(a / b - 1) <= bound
        agreed &= within
        cells = [f"{statistics.median(v):.4g} ({min(v):.4g} to {max(v):.4g})" for v in runs]
        verdict = "agrees" if within else "DIFFERS"
        lines.append(f"| {name} | {' | '.join(cells)} | {a / b:.3f} | {bound:.0%} | {verdict} |")
    late = [f.lateness for f in found[OURS, "paced"]]
    lines.append(f"| P99 send lateness ms, Poisson | {statistics.median(late):.4g} | - | | | |")
    return "\n".join(lines), agreed


def main() -> int:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rate", type=float, help="paced requests/s; default: half of saturation")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the engine ends, too
    text, agreed = table(asyncio.run(measured(parser.parse_args())))
    print(text)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
