"""Is a live change the same as a cold start? ``python benchmarks/live_fidelity.py [--pairs N]``.

One engine of a tiny model is changed live to each setting in turn; beside it stands an engine that
was started with that setting. Both get the same requests, all there before the first step, in
alternating order. On the CPU engine, no GPU needed; takes about a minute for each setting.

The schedule is the same if every step gives the same requests the same numbers of tokens
(SHA-256). Ratios are live over cold: the geometric mean over the pairs, the best run of each side,
and for throughput the sum over all steps of the fastest time that a step took in any run, which
other work on the machine disturbs least. Rows marked (cold and cold) compare two cold engines and
so say how far apart equal engines come out here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tuner.config import EngineConfig, Json
from tuner.engines.live import client
from tuner.engines.live.ceiling import hot_values
from tuner.engines.live.schedule import Schedule, Work, recorded
from tuner.engines.vllm import VllmEngine, VllmLauncher, base_env
from tuner.trace import Request

MODEL = Path(__file__).parent.parent / "studies" / "models" / "tiny"
STARTED: Mapping[str, Json] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "bfloat16",
    "max_model_len": 2048,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
}
#: The KV pools below are tight: 32 requests of up to four blocks want over a hundred.
SETTINGS: tuple[Mapping[str, Json], ...] = (
    {"max_num_seqs": 8, "max_num_batched_tokens": 512},
    {"max_num_seqs": 16},
    {"max_num_batched_tokens": 256},
    {"enable_prefix_caching": False},
    {"num_gpu_blocks_override": 24},
    {"long_prefill_token_threshold": 64},
    {"long_prefill_token_threshold": 16, "long_prefill_token_threshold_adaptive": True},
    {"scheduling_policy": "priority", "max_num_seqs": 4},
    {"max_num_active_seqs": 6},
    {"num_gpu_blocks_override": 40, "watermark": 0.2, "scheduler_reserve_full_isl": False},
    {"enable_chunked_prefill": False},
    {},
)
_BLOCK = 128


def work(count: int) -> Work:
    """Return requests of mixed sizes and priorities; every four share their first 128 tokens."""
    out = []
    for n in range(count):
        length, answer = 150 + 37 * n % 230, 12 + 5 * n % 24
        shared = [(31 * (n // 4) + k) % 30_000 + 5 for k in range(_BLOCK)]
        own = [(7919 * (n + 1) + 31 * k) % 30_000 + 5 for k in range(length - _BLOCK)]
        request = Request(
            id=n, arrival_s=0.0, prompt_tokens=length, output_tokens=answer, priority=n * 7 % 5
        )
        out.append((request, shared + own))
    return out


@dataclass(slots=True)
class Pairs:
    """Runs of two engines with the same setting, side by side."""

    name: str
    one: list[Schedule] = field(default_factory=list)
    other: list[Schedule] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        """Return the row of the table."""
        schedules = {run.digest for run in (*self.one, *self.other)}
        totals = self.other[0].totals
        return (
            self.name,
            "same" if len(schedules) == 1 else f"{len(schedules)} DIFFERENT",
            str(totals["steps"]),
            str(totals["preemptions"]),
            *_ratios([(a.output_tokens_per_s, b.output_tokens_per_s) for a, b in self._both()]),
            f"{_undisturbed_s(self.other) / _undisturbed_s(self.one):.3f}",
            *_ratios([(1 / _p99(a), 1 / _p99(b)) for a, b in self._both()], inverse=True),
        )

    def _both(self) -> list[tuple[Schedule, Schedule]]:
        return list(zip(self.one, self.other, strict=True))


def _undisturbed_s(runs: Sequence[Schedule]) -> float:
    """Return the seconds that a run takes whose every step is the fastest seen."""
    steps = np.array([run.step_s[: min(len(one.step_s) for one in runs)] for run in runs])
    return float(steps.min(axis=0).sum())


def _p99(run: Schedule) -> float:
    return float(np.percentile(run.latencies_s, 99))


def _ratios(pairs: Sequence[tuple[float, float]], inverse: bool = False) -> tuple[str, str]:
    """Return the geometric mean of the ratios and the ratio of the best of each side."""
    mean = statistics.geometric_mean([a / b for a, b in pairs])
    best = max(a for a, _ in pairs) / max(b for _, b in pairs)
    if inverse:
        mean, best = 1 / mean, 1 / best
    return f"{mean:.3f}", f"{best:.3f}"


@contextlib.asynccontextmanager
async def engine(args: Mapping[str, Json], directory: str, name: str) -> AsyncIterator[VllmEngine]:
    """Run the body with a started engine that has answered a first, smaller lot of requests."""
    config = EngineConfig(str(MODEL), {**STARTED, **args})
    async with VllmLauncher().launch(config, os.path.join(directory, f"{name}.log")) as started:
        await recorded(started, work(8))
        yield started


async def compared(
    name: str, one: VllmEngine, other: VllmEngine, live: Mapping[str, Json] | None, pairs: int
) -> Pairs:
    """Run both engines in turns; ``live`` are the values that ``one`` is changed to each time."""
    out = Pairs(name)
    requests = work(48)
    for n in range(pairs):
        for at in (0, 1) if n % 2 == 0 else (1, 0):
            if at == 0 and live is not None:
                await one.reconfigure(live)
            await (one, other)[at].reset()
            (out.one, out.other)[at].append(await recorded((one, other)[at], requests))
    return out


async def measure(
    settings: Sequence[Mapping[str, Json]], pairs: int, show: Callable[[Pairs], None]
) -> list[Pairs]:
    """Compare the live engine with a cold one for each setting; twice, cold ones with cold ones."""
    done = []
    with tempfile.TemporaryDirectory() as directory:
        async with engine({}, directory, "live") as live:
            started = (await client.state(live.llm))["started"]
            for number, setting in enumerate(settings):
                async with engine(setting, directory, f"cold{number}") as cold:
                    values = hot_values(setting, started)
                    name = ", ".join(f"{key}={value}" for key, value in setting.items())
                    name = name or "changed back to the start"
                    done.append(await compared(name, live, cold, values, pairs))
                    show(done[-1])
                    if number in (0, len(settings) - 1):
                        async with engine(setting, directory, f"again{number}") as again:
                            name = f"(cold and cold) {name}"
                            done.append(await compared(name, again, cold, None, pairs))
                            show(done[-1])
    return done


def main() -> None:
    """Print the table; exit with 1 where a schedule differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first setting")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="how many of them")
    chosen = parser.parse_args()
    cache = Path(tempfile.gettempdir()) / "tuner-live-fidelity"
    os.environ.update(base_env(cache, device="cpu", model=str(MODEL)))
    head = (
        *("setting", "schedule", "steps", "preemptions"),
        *("tok/s mean", "tok/s best", "tok/s steps", "P99 mean", "P99 best"),
    )
    table = os.fdopen(os.dup(1), "w", buffering=1)  # while engines run, stdout is their log
    print("|", " | ".join(head), "|", file=table)
    print("|---" * len(head) + "|", file=table)
    done = asyncio.run(
        measure(
            SETTINGS[chosen.first : chosen.first + chosen.settings],
            chosen.pairs,
            lambda pairs: print("|", " | ".join(pairs.row()), "|", file=table),
        )
    )
    if any(len({run.digest for run in (*pair.one, *pair.other)}) > 1 for pair in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
