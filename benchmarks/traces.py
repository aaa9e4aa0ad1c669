"""Times the workload side: ``python benchmarks/traces.py``. Each row has its own process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tuner import traces
from tuner.trace import Trace
from tuner.traces import tokens
from tuner.traces.synthetic import generate

SHARED = Path(__file__).parent.parent.parent / "shared" / "traces"
MOONCAKE = SHARED / "mooncake_conversation" / "conversation_trace.first28min.jsonl"
VOCABULARY = 151_936
Row = tuple[str, str, str]


def _timed(work: Callable[[], object]) -> str:
    """Say how long it took, and how much of that was work: other programs may be running."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    return f"{time.perf_counter() - began:.2f} s ({time.process_time() - busy:.2f} s of CPU)"


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def azure() -> Row:
    """Read a million rows of Azure CSV."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
        _write_azure(Path(file.name), 1_000_000)
        spent = _timed(lambda: traces.read(file.name))
    return "read 1,000,000 rows of Azure CSV", spent, "< 3 s, < 500 MB"


def _write_azure(path: Path, rows: int) -> None:
    base = int(np.datetime64("2024-05-10T00:00:00", "us").astype(np.int64))
    with path.open("w", newline="") as stream:
        stream.write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
        for start in range(0, rows, 10_000):
            times = base + (start + np.arange(10_000)) * 36_123
            stamps = np.datetime_as_string(times.astype("datetime64[us]"), unit="us")
            stream.writelines(
                f"{s[:10]} {s[11:]}0,{100 + n % 4000},{1 + n % 900}\r\n"
                for n, s in enumerate(stamps.tolist(), start)
            )


def materialize() -> Row:
    """Make all prompts of the Mooncake conversation cut, one after the other."""
    trace = traces.read(MOONCAKE)
    source = tokens.TokenSource(trace.digest, VOCABULARY, 0)
    worst = 0.0
    began = time.process_time()
    total = 0
    for request in trace:
        at = time.perf_counter()
        total += len(source.prompt(request))
        worst = max(worst, time.perf_counter() - at)
    rate = total / (time.process_time() - began) / 1e6
    done = f"{rate:.1f} M tokens per CPU s, worst {worst * 1000:.0f} ms"
    return f"materialize {total / 1e6:.0f} M tokens of Mooncake", done, "streams"


def recipe() -> Row:
    """Digest the recipe of 100,000 requests: the trace's columns and the source's settings."""
    trace = _hundred_thousand()
    spent = _timed(lambda: tokens.TokenSource(trace.digest, VOCABULARY, 0).recipe)
    return "digest of 100,000 requests (recipe)", spent, "< 5 s"


def materialized() -> Row:
    """Digest every token of 100,000 requests."""
    trace = _hundred_thousand()
    source = tokens.TokenSource(trace.digest, VOCABULARY, 0)
    spent = _timed(lambda: tokens.materialized_digest(source, trace))
    millions = trace.prompt_tokens.sum() / 1e6
    return f"digest of 100,000 requests ({millions:.0f} M tokens)", spent, "< 5 s"


def _hundred_thousand() -> Trace:
    lengths = {"lognormal": {"median": 400, "p99": 2000}}
    return generate({"requests": 100_000, "rate_per_s": 50, "prompt_tokens": lengths})


def mooncake() -> Row:
    """Read the Mooncake cut."""
    spent = _timed(lambda: traces.read(MOONCAKE))
    return "read 5,294 rows of Mooncake JSONL", spent, ""


BENCHMARKS = {work.__name__: work for work in (azure, mooncake, materialize, recipe, materialized)}


def main() -> None:
    """Print one table; a row whose trace is not there is left out."""
    if len(sys.argv) > 1:
        print(json.dumps([*BENCHMARKS[sys.argv[1]](), _peak_mb()]))
        return
    print(f"{'what':48} {'measured':38} {'peak':>8}  wanted")
    for name in BENCHMARKS:
        if name in ("mooncake", "materialize") and not MOONCAKE.exists():
            continue
        ran = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, text=True, check=True
        )
        what, measured, wanted, peak = json.loads(ran.stdout)
        print(f"{what:48} {measured:38} {peak:5.0f} MB  {wanted}")


if __name__ == "__main__":
    main()
