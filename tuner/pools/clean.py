"""Whether a slot's GPUs are as empty as they were found, looked at before an engine starts on them.

An engine on a GPU that somebody else uses measures the neighbour, or dies for want of memory. What
ended may still hold memory for a moment: it is waited for, and who stays is named.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from tuner.engines.gpu import handles_of

#: What a driver or a desktop may take more or less of, from one look to the next.
SLACK_BYTES = 512 << 20
#: Use beyond this share of a GPU is an engine's, also at the first look.
FOREIGN_SHARE = 0.10
_LOOK_S = 0.2
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one GPU now, and who holds it: process number -> bytes, None where not told."""

    total: int
    used: int
    holders: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.total - self.used


@dataclass(slots=True)
class Gpus:
    """The GPUs of a slot with their base lines. ``nvml`` is the module ``pynvml``, initialized."""

    nvml: Any
    handles: Sequence[Any]
    #: Bytes in use that count as none, per GPU.
    limits: Sequence[int]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    @classmethod
    def found(cls, environment: Mapping[str, str], nvml: Any = None) -> Self | None:
        """Look at the visible GPUs for the first time; None where NVML is not to be had.

        An empty ``CUDA_VISIBLE_DEVICES`` is an engine on the CPU.
        """
        try:
            nvml = nvml or importlib.import_module("pynvml")
            nvml.nvmlInit()
            handles = handles_of(nvml, environment)
            first = [_look(nvml, handle) for handle in handles]
        except Exception:  # no package, no driver, no permission: NVML has a class for each
            return None
        limits = [min(one.used, int(one.total * FOREIGN_SHARE)) + SLACK_BYTES for one in first]
        return cls(nvml, handles, limits)

    def occupied(self, patience_s: float) -> str:
        """Wait until every GPU is at its base line; '' then, else who holds how much of which."""
        give_up = self.clock() + patience_s
        while busy := list(self._above()):
            if self.clock() >= give_up:
                return "\n".join(busy)
            self.sleep(_LOOK_S)
        return ""

    def _above(self) -> Iterator[str]:
        for number, (handle, limit) in enumerate(zip(self.handles, self.limits, strict=True)):
            try:
                now = _look(self.nvml, handle)
            except self.nvml.NVMLError:
                continue  # what cannot be seen is not held against the slot
            if now.used > limit:
                yield (
                    f"GPU {number}: {_gib(now.used)} of {_gib(now.total)} GiB in use, "
                    f"{_gib(limit)} when it is empty, {now.free} bytes free: {_holders(now)}"
                )


def _look(nvml: Any, handle: Any) -> Memory:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    holders: dict[int, int | None] = {}
    with contextlib.suppress(nvml.NVMLError):
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            holders[process.pid] = process.usedGpuMemory
    return Memory(int(memory.total), int(memory.used), holders)


def _holders(memory: Memory) -> str:
    """Name the processes; a container does not see those of others."""
    named = [
        f"PID {pid} ({_name(pid)}) {'?' if held is None else _gib(held)} GiB"
        for pid, held in sorted(memory.holders.items())
    ]
    return ", ".join(named) or "held by processes that cannot be seen from here"


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "not seen from here"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f}"
