"""The numbers in a failure's own words: what was short, by how much, and at which stage.

Needs no vLLM: it reads texts, in the wording of vLLM 0.24 to 0.32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What vLLM logs as a start goes on -> the stage that begins with it. The last one seen counts.
_LOGGED = (
    (r"Starting to load model", "weights"),
    (r"(?:Loading weights|Model loading) took", "activations"),
    (r"Available KV cache memory|KV cache size:", "kv_cache"),
    (r"Profiling CUDA graph memory|Capturing CUDA graphs", "graphs"),
    (r"init engine \(.*\) took", "replay"),
)
#: Stage -> how a detail says it, after ``WHEN``.
STAGES = {
    "weights": "loading the weights",
    "activations": "the profile run: activations and sampler",
    "kv_cache": "reserving the KV cache",
    "graphs": "capturing CUDA graphs",
    "replay": "answering requests",
}
WHEN = "when: "
_KV_CACHE = r"No available memory for the cache blocks|To serve at least one request with"
_WARM_UP = r"out of memory occurred when warming up (?:sampler|pooler)"
_FITS_LEN = r"estimated maximum model length is (\d+)"
_NEED = r"\(([\d.]+) GiB KV cache is needed.*?memory \(([\d.]+) GiB\)"
_FREE = (
    r"\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired (?:GPU|CPU) memory utilization "
    r"\(([\d.]+), ([\d.]+) GiB\)"
)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a text about memory says; None where it does not. Sizes in GiB, as vLLM prints them."""

    #: A key of ``STAGES``, "device" where memory was short before anything was loaded, or ''.
    stage: str = ""
    #: The largest max_model_len that fits, as vLLM estimates it.
    fits_len: int | None = None
    #: KV cache that one request of max_model_len needs, and what there was.
    needed_gib: float | None = None
    available_gib: float | None = None
    #: Free and whole memory of the device, and what gpu_memory_utilization asked for.
    free_gib: float | None = None
    total_gib: float | None = None
    wanted_gib: float | None = None

    @classmethod
    def read(cls, text: str) -> Shortage:
        """Read a failure's detail."""
        fits = re.search(_FITS_LEN, text)
        need = re.search(_NEED, text, re.DOTALL)
        free = re.search(_FREE, text)
        needed, available = map(float, need.groups()) if need else (None, None)
        gib = list(map(float, free.groups())) if free else [None] * 4
        return cls(
            _stage_said(text, bool(free)),
            int(fits[1]) if fits else None,
            needed,
            available,
            gib[0],
            gib[1],
            gib[3],
        )


def _stage_said(text: str, on_device: bool) -> str:
    if on_device:
        return "device"
    if re.search(_KV_CACHE, text):
        return "kv_cache"
    if re.search(_WARM_UP, text):
        return "activations"
    said = {words: stage for stage, words in STAGES.items()}
    last = text.rsplit("\n", 1)[-1]
    return said.get(last.removeprefix(WHEN), "") if last.startswith(WHEN) else ""


def stage_in(log: str) -> str:
    """Return the stage that a start had come to by the end of a log's text, '' if it says none."""
    found = {
        matches[-1].start(): stage
        for pattern, stage in _LOGGED
        if (matches := list(re.finditer(pattern, log)))
    }
    return found[max(found)] if found else ""


def with_stage(detail: str, stage: str) -> str:
    """Return a detail with the stage as its last line, where neither says it yet."""
    if not stage or Shortage.read(detail).stage:
        return detail
    return f"{detail}\n{WHEN}{STAGES[stage]}"
