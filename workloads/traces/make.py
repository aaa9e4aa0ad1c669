"""Makes the traces of this folder anew, byte for byte: ``python workloads/traces/make.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.traces import own
from tuner.traces.synthetic import generate

#: File -> what it is generated from. The meta file beside each trace repeats it.
SPECS: dict[str, dict[str, Any]] = {
    # Small enough for a tiny model on two CPU cores, with all that a chat trace has: shared system
    # prompts, turns that wait for the last answer, and prompts that grow by it.
    "chat.jsonl": {
        "name": "chat",
        "requests": 60,
        "rate_per_s": 11.0,
        "seed": 26,
        "arrivals": "poisson",
        "system_prompts": {"count": 4, "tokens": 32, "skew": 1.0},
        "chat": {"turns_mean": 2.4, "turns_max": 5, "think_s": 0.3},
        "prompt_tokens": {"lognormal": {"median": 18, "p99": 48, "min": 6, "max": 60}},
        "output_tokens": {"lognormal": {"median": 17, "p99": 40, "min": 8, "max": 40}},
    },
}


def main() -> None:
    """Write every trace and its meta file."""
    for name, spec in SPECS.items():
        own.write(generate(spec), Path(__file__).with_name(name))


if __name__ == "__main__":
    main()
