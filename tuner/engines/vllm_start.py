"""How long each part of a start took, and whether it compiled: read from the engine's log.

The sentences are those of vLLM 0.11 to 0.33; one that a version does not print gives no phase.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tuner.config import Json
from tuner.engines.vllm_errors import tail_of

# Phase -> the sentence that gives its seconds.
_SENTENCES = {
    "model_s": r"Initializing model took ([\d.]+) s",
    "weights_s": r"(?:Loading weights|Model loading) took .*?([\d.]+) s",
    "compile_s": r"torch\.compile (?:and initial profiling/warmup run together )?"
    r"(?:takes|took) ([\d.]+) s",
    "profile_s": r"Initial profiling/warmup run took ([\d.]+) s",
    "graphs_s": r"Graph capturing finished in ([\d.]+) s",  # an encoder's begins small
    "init_s": r"init engine \(.*?\) took ([\d.]+) s",
}
# Phase -> the lines that it lies between, where no sentence gives it (the CPU engine): whole
# seconds, from the time that vLLM writes at the head of a line.
_BETWEEN = {"compile_s": ("Warming up model for the compilation", "Warming up done")}
_HEAD = r"(\d\d-\d\d \d\d:\d\d:\d\d)[^\n]*"
#: What the initialisation of an engine consists of, as far as the log tells.
_OF_INIT = ("compile_s", "profile_s", "graphs_s")
#: What the making of an engine consists of, beside its processes and their connections.
_OF_ENGINE = ("weights_s", "init_s")

_LOADED = r"Directly load AOT compilation from path \S*?torch_aot_compile/([0-9a-f]+)"
_SAVED = r"saved AOT compiled function to \S*?torch_aot_compile/([0-9a-f]+)"
_AGAIN = r"Compiling model again due to a load failure from \S+, reason: ([^\n]*)"
_DIRECTORY = r"Using cache directory: \S*?torch_compile_cache/([0-9a-f]+)"
_GRAPHS_LOADED = "Directly load the compiled graph(s)"
_GRAPH_COMPILED = "Compiling a graph for"


def start_phases(log: str | Path, since: int = 0) -> dict[str, float]:
    """Return phase -> seconds as far as the log tells; the last value where it tells twice.

    ``init_s`` is the whole that ``compile_s``, ``profile_s``, ``graphs_s`` and ``warm_up_s`` (what
    is left of it) belong to. ``weights_s`` of a CUDA engine contains ``model_s``.
    """
    text = tail_of(log, since)
    found = {name: re.findall(pattern, text) for name, pattern in _SENTENCES.items()}
    phases = {name: float(values[-1]) for name, values in found.items() if values}
    for name, (first, last) in _BETWEEN.items():
        seconds = _between(text, first, last)
        if name not in phases and seconds is not None:
            phases[name] = max(seconds - phases.get("profile_s", 0.0), 0.0)
    if "init_s" in phases:
        phases["warm_up_s"] = _rest(phases["init_s"], phases, _OF_INIT)
    return phases


def broken_down(said: Mapping[str, float], timed: Mapping[str, float]) -> dict[str, float]:
    """Return all phases of a start: those of the log and those that we timed around it.

    ``processes_s``, what is left of ``engine_s``: processes and their connections.
    """
    rest = _rest(timed["engine_s"], said, _OF_ENGINE)
    return {**said, **timed, **({"processes_s": rest} if "init_s" in said else {})}


def compilation(log: str | Path, since: int = 0) -> dict[str, Json]:
    """Return ``how`` ("loaded" from cache, "graphs loaded" alone, "compiled") and the cache's key.

    The key is the one of the whole compiled function where vLLM makes one, else its directory's.
    ``why`` says why something compiled that was in the cache. Empty where nothing was to compile
    (enforce_eager).
    """
    text = tail_of(log, since)
    loaded, saved = re.findall(_LOADED, text), re.findall(_SAVED, text)
    again, directory = re.findall(_AGAIN, text), re.findall(_DIRECTORY, text)
    if saved or again or _GRAPH_COMPILED in text:
        how = "compiled"
    elif loaded:
        how = "loaded"
    elif _GRAPHS_LOADED in text:
        how = "graphs loaded"
    else:
        return {}
    keys = [*loaded, *saved] or directory
    facts: dict[str, Json] = {"how": how}
    if keys:
        facts["key"] = keys[0]
    if again:
        facts["why"] = again[0]
    return facts


def _between(text: str, first: str, last: str) -> float | None:
    times = [re.findall(_HEAD + re.escape(sentence), text) for sentence in (first, last)]
    if not all(times):
        return None
    began, ended = (datetime.strptime(f"2000-{found[-1]}", "%Y-%m-%d %H:%M:%S") for found in times)
    return max((ended - began).total_seconds(), 0.0)


def _rest(whole: float, phases: Mapping[str, float], parts: tuple[str, ...]) -> float:
    return round(max(whole - sum(phases.get(name, 0.0) for name in parts), 0.0), 6)
