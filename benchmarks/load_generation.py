"""Do requests leave at their time? ``python benchmarks/load_generation.py [--peers]``.

A Poisson trace is replayed against a local streaming server in another process; the server notes
when each request has arrived. Lateness is that minus the schedule, anchored at the least late
request of a run (peers do not tell when they start; a constant delay is invisible, for us too).
Client cores are CPU seconds of all the client's processes per second between the first and the last
arrival. Peers are installed in environments of their own, pinned; one that fails says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.load_generation_peers import PEERS, Peer  # noqa: E402
from tests.engines.fake_server import Script, running  # noqa: E402

RATES = (100, 200, 400, 800, 1600)
#: What a P99 must not exceed, by rate, in milliseconds.
BOUNDS_MS = {400: 4.0, 800: 8.0, 1600: 12.0}
PROMPT, OUTPUT = 128, 8
#: 20 ms to the first of 8 chunks, 5 ms between chunks.
SCRIPT = Script(first_s=0.020, step_s=0.005)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one client."""

    client: str
    rate: int
    sent: int
    wanted: int
    lateness_ms: tuple[float, float, float]
    cores: float
    load: float

    def __str__(self) -> str:
        p50, p99, most = self.lateness_ms
        bound = BOUNDS_MS.get(self.rate)
        verdict = "" if bound is None else f"{'holds' if p99 <= bound else 'MISSES'} {bound:g} ms"
        short = "" if self.sent == self.wanted else f" ({self.sent} of {self.wanted} arrived)"
        return (
            f"| {self.client}{short} | {self.rate} | {p50:.1f} | {p99:.1f} | {most:.1f} "
            f"| {self.cores:.2f} | {self.load:.1f} | {verdict} |"
        )


HEAD = (
    "| client | requests/s | P50 ms | P99 ms | max ms | client cores | load | bound |\n"
    "|---|---|---|---|---|---|---|---|"
)


def schedule(rate: int, seconds: float, seed: int = 0) -> list[float]:
    """Return Poisson arrivals in seconds from the first."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds)))
    return [float(at) for at in times - times[0]]


def measured(name: str, command: Callable[[str, Path], list[str]], times: Sequence[float]) -> Row:
    """Run a client's command against a fresh server and see how late its requests come."""
    rate = round((len(times) - 1) / times[-1] / 100) * 100
    with tempfile.TemporaryDirectory() as folder, running(SCRIPT) as url:
        work = Path(folder)
        _write_traces(work, times)
        log = work / "client.log"
        samples: list[tuple[float, float]] = []
        with log.open("wb") as output:
            child = psutil.Popen(command(url, work), stdout=output, stderr=output, cwd=folder)
            give_up = time.monotonic() + times[-1] * 4 + 180
            while child.poll() is None and time.monotonic() < give_up:
                samples.append((time.monotonic(), _cpu_s(child)))
                time.sleep(0.1)
            _end(child)
        with urllib.request.urlopen(f"{url}/arrivals", timeout=30) as response:
            arrivals = sorted(json.load(response)["arrivals"])
        # A client may try the server before it starts: the last ones are the trace.
        arrivals = arrivals[-len(times) :]
        if len(arrivals) < len(times) // 2:
            raise RuntimeError(log.read_text(errors="replace")[-600:] or "nothing arrived")
    late = np.array(arrivals) - np.array(times[: len(arrivals)])
    late = (late - late.min()) * 1e3
    p50, p99 = np.percentile(late, [50, 99])
    used = np.interp([arrivals[0], arrivals[-1]], *zip(*samples, strict=True))
    cores = float(used[1] - used[0]) / (arrivals[-1] - arrivals[0])
    lateness = (float(p50), float(p99), float(late.max()))
    return Row(name, rate, len(arrivals), len(times), lateness, cores, os.getloadavg()[0])


def _write_traces(work: Path, times: Sequence[float]) -> None:
    """Write the schedule in seconds (trace.jsonl) and whole milliseconds (trace_ms.jsonl)."""
    lengths = {"input_length": PROMPT, "output_length": OUTPUT}
    rows = [{"timestamp": round(at, 6), **lengths, "hash_ids": [i]} for i, at in enumerate(times)]
    (work / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"timestamp": round(at * 1e3), **lengths} for at in times]
    (work / "trace_ms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process, its live descendants, and those it has waited for."""
    total = 0.0
    try:
        for member in [process, *process.children(recursive=True)]:
            spent = member.cpu_times()
            total += spent.user + spent.system
            if member is process:
                total += spent.children_user + spent.children_system
    except psutil.Error:
        pass
    return total


def _end(child: psutil.Popen) -> None:
    if child.poll() is None:
        for process in [*child.children(recursive=True), child]:
            process.kill()
    child.wait()


def ours(url: str, work: Path) -> list[str]:
    """Our replay over our own HTTP layer."""
    return [sys.executable, __file__, "--client", "ours", url, str(work / "trace.jsonl")]


def with_aiohttp(url: str, work: Path) -> list[str]:
    """Our replay over aiohttp."""
    return [sys.executable, __file__, "--client", "aiohttp", url, str(work / "trace.jsonl")]


def with_httpx(url: str, work: Path) -> list[str]:
    """Our replay over httpx."""
    return [sys.executable, __file__, "--client", "httpx", url, str(work / "trace.jsonl")]


OURS = {"ours": ours, "ours, over aiohttp": with_aiohttp, "ours, over httpx": with_httpx}


async def _client(kind: str, url: str, trace: str) -> None:
    from benchmarks.load_generation_clients import ENGINES
    from tuner.job import Deadlines
    from tuner.replay import Plan, replay
    from tuner.trace import Request
    from tuner.traces.tokens import TokenSource

    rows = [json.loads(line) for line in Path(trace).read_text().splitlines()]
    requests = [
        Request(i, row["timestamp"], row["input_length"], row["output_length"])
        for i, row in enumerate(rows)
    ]
    source = TokenSource("0" * 16, 32_000, 0)
    async with ENGINES[kind](url) as engine:
        records = await replay(engine, Plan(requests), source.prompt, Deadlines())
    print(f"{sum(record.ok for record in records)} of {len(records)} ok")


def run(options: argparse.Namespace) -> None:
    """Print the table, row by row."""
    clients: dict[str, Any] = {name: OURS[name] for name in OURS if name in options.clients}
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        if options.peers:
            for peer in PEERS:
                if found := _ready(peer, Path(options.environments or folder)):
                    clients[peer.name] = found
        for rate in options.rates:
            times = schedule(rate, options.seconds)
            for name, command in clients.items():
                for _ in range(options.repeats):
                    try:
                        print(measured(name, command, times), flush=True)
                    except Exception as error:  # one client's failure is a line of the table
                        print(f"| {name} | {rate} | failed: {_one_line(error)} |", flush=True)


def _ready(peer: Peer, folder: Path) -> Callable[[str, Path], list[str]] | None:
    try:
        return peer.install(folder)
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        print(f"| {peer.name} | not installed: {_one_line(error)} |", flush=True)
        return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[-300:]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="measure other tools as well")
    parser.add_argument("--clients", nargs="*", default=["ours"], choices=list(OURS))
    parser.add_argument("--rates", nargs="*", type=int, default=list(RATES))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--environments", help="keep the peers' environments in this folder")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        from tuner.engines.http_loop import PreciseLoop

        with asyncio.Runner(loop_factory=PreciseLoop) as runner:
            runner.run(_client(*options.client))
        return
    run(options)


if __name__ == "__main__":
    main()
