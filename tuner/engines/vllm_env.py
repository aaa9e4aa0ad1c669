"""The environment variables that vLLM runs with. Needs no vLLM."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tuner.engines.priming import speculative_root

#: How vLLM starts its processes.
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_THREADS = "OMP_NUM_THREADS"


def base_env(cache_dir: Path, *, device: str, model: str = "") -> dict[str, str]:
    """Return the environment that all engines of a study share, to be set before vLLM is imported.

    One frozen environment, because vLLM hashes most variables into its compile cache's key.
    ``device`` is "cpu" or anything else; a ``model`` that is a local folder needs no network.
    VLLM_PLUGINS is never set: it is part of that key, too.
    """
    env = {
        "VLLM_CACHE_ROOT": str(cache_dir / "vllm"),
        # Without it Triton's kernels are compiled anew for each compile key: 12 s per start.
        "TRITON_CACHE_DIR": str(cache_dir / "triton"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    if device == "cpu":
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"
        env[_THREADS] = str(_cpu_threads())
    if model and Path(model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    return env


def fit_threads() -> None:
    """Use no more threads than this process has cores; to be called before vLLM is imported.

    A study's environment is made where it is driven; this machine, or this slot, may be smaller.
    """
    asked = os.environ.get(_THREADS, "")
    if asked.isdigit() and int(asked) > len(os.sched_getaffinity(0)):
        os.environ[_THREADS] = str(_cpu_threads())


def _cpu_threads() -> int:
    """Threads that vLLM gives a CPU worker: one per core, one core kept for the engine process."""
    allowed = len(os.sched_getaffinity(0))
    return max(min(allowed, psutil.cpu_count(logical=False) or allowed) - 1, 1)


def choose_start_method(wanted: str | None) -> None:
    """Fork the engine's processes on the CPU, too, as vLLM does elsewhere: 3 s instead of 21 s.

    Building a CPU configuration sets "spawn", so that each process imports vLLM again and reads
    the thread binding from its environment. Whoever asks for a binding still gets "spawn".
    """
    if os.environ.get(METHOD) == "spawn" and wanted != "spawn" and _BIND not in os.environ:
        os.environ[METHOD] = "fork"


def own_cache(vllm_config: Any, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that keep an engine from loading code compiled for another drafter.

    The installed vLLM is asked whether its compile key sees the number of draft tokens; where it
    does, where nothing drafts, and where nothing is compiled, there is nothing to set.
    """
    spec = vllm_config.speculative_config
    tokens = getattr(spec, "num_speculative_tokens", None)
    if tokens is None or not vllm_config.compilation_config.mode:
        return {}
    other = copy.copy(spec)
    object.__setattr__(other, "num_speculative_tokens", tokens + 1)
    same = other.compute_hash() == spec.compute_hash()
    return speculative_root(tokens, env) if same else {}
