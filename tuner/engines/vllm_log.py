"""What a vLLM log says about the phases of a start. Needs no vLLM."""

from __future__ import annotations

import re
from pathlib import Path

from tuner.engines.vllm_errors import tail_of

# Phase -> the sentence that gives its seconds; wording of 0.24 to 0.32.
_SENTENCES = {
    "weights_s": r"(?:Loading weights|Model loading) took .*?([\d.]+) s(?:ec)?",
    "compile_s": r"torch\.compile (?:takes|took) ([\d.]+) s",
    "graphs_s": r"Graph capturing finished in ([\d.]+) s",
    "init_s": r"init engine \(.*?\) took ([\d.]+) s",
}


def start_phases(log: str | Path) -> dict[str, float]:
    """Return phase -> seconds as far as the log tells; the last value where it tells twice."""
    text = tail_of(log)
    found = {name: re.findall(pattern, text) for name, pattern in _SENTENCES.items()}
    return {name: float(values[-1]) for name, values in found.items() if values}
