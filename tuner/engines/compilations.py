"""Kernels that an engine compiled while it served requests, as its log tells them."""

from __future__ import annotations

import re
from pathlib import Path

#: vLLM's monitor of kernels (0.24: Triton only; later CuTeDSL and TileLang too), and Triton's own
#: word on autotuning, which the monitor switches on.
_COMPILED = re.compile(
    rb"JIT compilation during inference: (\S+)|Triton autotuning for function (\w+)"
)


def size_of(log: Path) -> int:
    """Return where the log ends now, in bytes; 0 where there is none."""
    return log.stat().st_size if log.is_file() else 0


def compiled_since(log: Path, since: int) -> list[str]:
    """Return the kernels that were compiled or tuned after byte ``since`` of the log, each once.

    vLLM says so once per kernel and process: what was compiled once is warm from then on.
    """
    if not log.is_file():
        return []
    with log.open("rb") as text:
        text.seek(since)
        found = [match[1] or match[2] for match in _COMPILED.finditer(text.read())]
    return list(dict.fromkeys(name.decode(errors="replace").rstrip(".") for name in found))
