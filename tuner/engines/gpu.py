"""What the GPUs of an engine do, through NVML: memory, activity, power.

Absent where it cannot be had, never zero: no driver, no ``nvidia-ml-py``, no visible device, or a
device that does not answer (MIG has no power of its own).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.config import EngineConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Look:
    """What the devices of one engine showed at one moment, together. None: not to be had."""

    at_s: float
    memory_bytes: int | None
    #: Share of the last moments in which a kernel ran, mean over the devices.
    busy_share: float | None
    power_w: float | None
    #: The devices' own energy counters, joules since the driver was loaded.
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """The devices of one engine. ``nvml`` is the module ``pynvml``, initialized."""

    nvml: Any
    handles: Sequence[Any]
    clock: Callable[[], float] = time.monotonic

    def look(self) -> Look:
        """Read every device once; below a millisecond each."""
        nvml = self.nvml
        memory = self._all(lambda h: nvml.nvmlDeviceGetMemoryInfo(h).used)
        busy = self._all(lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu)
        power = self._all(nvml.nvmlDeviceGetPowerUsage)
        energy = self._all(nvml.nvmlDeviceGetTotalEnergyConsumption)
        return Look(
            self.clock(),
            None if memory is None else int(sum(memory)),
            None if busy is None else sum(busy) / len(busy) / 100,
            None if power is None else sum(power) / 1e3,
            None if energy is None else sum(energy) / 1e3,
        )

    def _all(self, read: Callable[[Any], float]) -> list[float] | None:
        try:
            return [read(handle) for handle in self.handles]
        except self.nvml.NVMLError:
            return None


@dataclass(slots=True)
class Meter:
    """Adds up what was seen since ``begin``."""

    _first: Look | None = None
    _last: Look | None = None
    _memory_bytes: int | None = None
    _busy: list[float] = field(default_factory=list)
    #: Integral of the power, by trapezoids; NaN once a look had none.
    _integral_j: float = 0.0

    def add(self, look: Look) -> None:
        """Take one more look into account."""
        if self._last is not None:
            pair = (self._last.power_w, look.power_w)
            watts = math.nan if None in pair else (pair[0] + pair[1]) / 2  # type: ignore[operator]
            self._integral_j += watts * (look.at_s - self._last.at_s)
        self._first = self._first or look
        self._last = look
        if look.memory_bytes is not None:
            self._memory_bytes = max(self._memory_bytes or 0, look.memory_bytes)
        if look.busy_share is not None:
            self._busy.append(look.busy_share)

    def values(self) -> dict[str, float]:
        """Return what there is, under the metrics' names."""
        found = {
            "gpu_memory_max_bytes": self._memory_bytes,
            "gpu_utilization_share": sum(self._busy) / len(self._busy) if self._busy else None,
            "energy_j": self._energy_j(),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def _energy_j(self) -> float | None:
        first, last = self._first, self._last
        if first is None or last is None or last is first:
            return None
        if first.energy_j is not None and last.energy_j is not None:
            return last.energy_j - first.energy_j
        return None if math.isnan(self._integral_j) else self._integral_j


@contextlib.contextmanager
def gpus_of(config: EngineConfig, nvml: Any = None) -> Iterator[Gpus | None]:
    """Give the devices that an engine of this configuration uses here; None where there are none.

    These are the first of the visible ones, as many as the configuration asks for.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no package, no driver, no permission: NVML has a class for each
        yield None
        return
    try:
        visible = {**os.environ, **config.env}
        handles = handles_of(nvml, visible)[: config.gpus]
        yield Gpus(nvml, handles) if len(handles) == config.gpus else None
    finally:
        nvml.nvmlShutdown()


def handles_of(nvml: Any, environment: Mapping[str, str]) -> list[Any]:
    """Return NVML's handles of the devices that CUDA_VISIBLE_DEVICES names, in its order.

    By number, by UUID or the beginning of one, as CUDA takes them; what follows a name that is no
    device does not count. NVML numbers devices by their bus; CUDA does with
    CUDA_DEVICE_ORDER=PCI_BUS_ID, and on a machine whose GPUs are all alike.
    """
    every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    asked = environment.get(VISIBLE)
    if asked is None:
        return every
    handles: list[Any] = []
    for name in (part.strip() for part in asked.split(",")):
        handle = _handle(nvml, every, name)
        if handle is None:
            break
        handles.append(handle)
    return handles


def _handle(nvml: Any, every: Sequence[Any], name: str) -> Any:
    if name.isdigit():
        return every[int(name)] if int(name) < len(every) else None
    if name.startswith("MIG-"):
        with contextlib.suppress(nvml.NVMLError):
            return nvml.nvmlDeviceGetHandleByUUID(name)
        return None
    if not name:
        return None
    uuids = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in every}
    return next((handle for uuid, handle in uuids.items() if uuid.startswith(name)), None)


def _text(value: str | bytes) -> str:
    """Return text; older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
