"""A slot's GPUs are waited for until they are empty; who stays is named, the slot left alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.pools.fakes import a_job, a_spec
from tuner.config import EngineConfig
from tuner.errors import TunerError
from tuner.events import Event, Notice
from tuner.pools.clean import SLACK_BYTES, Gpus
from tuner.pools.host_process import Limits
from tuner.pools.ray import RayPool, _Slot
from tuner.pools.slots import Capacity, Held
from tuner.pools.worker import Place, SlotWorker
from tuner.records import Cost, Faulted, Outcome
from tuner.remedies import remedy

GIB = 1 << 30


class NVMLError(Exception):
    """As the binding's."""


@dataclass
class Device:
    """One fake GPU: bytes in use, and by whom, as functions of the time in seconds."""

    used: Callable[[float], int]
    holders: dict[int, int | None] = field(default_factory=dict)
    answers: bool = True
    total: int = 80 * GIB


@dataclass
class FakeNvml:
    """The part of ``pynvml`` that is used, and the clock by which its devices change."""

    devices: list[Device]
    now: float = 0.0
    tells_processes: bool = True
    NVMLError: type[Exception] = NVMLError

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index]

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:
        if not device.answers:
            raise NVMLError("lost")
        return SimpleNamespace(total=device.total, used=device.used(self.now))

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> Any:
        if not self.tells_processes:
            raise NVMLError("not supported")
        held = device.holders.items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held]

    def wait(self, seconds: float) -> None:
        self.now += seconds


def found(nvml: FakeNvml, **environment: str) -> Gpus:
    gpus = Gpus.found(environment, nvml)
    assert gpus is not None
    gpus.clock, gpus.sleep = lambda: nvml.now, nvml.wait
    return gpus


def test_an_empty_gpu_is_clean_at_once() -> None:
    nvml = FakeNvml([Device(lambda t: GIB)])
    assert found(nvml).occupied(30) == ""
    assert nvml.now == 0


def test_memory_that_is_given_back_is_waited_for() -> None:
    nvml = FakeNvml([Device(lambda t: 60 * GIB if 0 < t < 5 else GIB)])
    gpus = found(nvml)
    nvml.now = 0.1
    assert gpus.occupied(30) == ""
    assert 5 <= nvml.now < 6


def test_who_stays_is_named_with_process_and_bytes() -> None:
    nvml = FakeNvml(
        [Device(lambda t: GIB), Device(lambda t: 70 * GIB if t else GIB, {1: 69 * GIB})]
    )
    gpus = found(nvml)
    nvml.now = 1.0
    said = gpus.occupied(10)
    assert said.startswith("GPU 1: 70.0 of 80.0 GiB in use, 1.5 when it is empty, ")
    assert f"{10 * GIB} bytes free: PID 1 (" in said
    assert said.endswith("69.0 GiB")
    assert 10 < nvml.now < 12
    assert remedy("gpu_busy", [said]) == "end the processes that hold GPU memory: 1"


def test_who_was_there_from_the_first_is_not_taken_for_emptiness() -> None:
    assert "in use" in found(FakeNvml([Device(lambda t: 70 * GIB)])).occupied(1)
    assert found(FakeNvml([Device(lambda t: 3 * GIB)])).occupied(1) == ""  # a desktop


def test_what_moves_a_little_is_no_engine() -> None:
    gpus = found(nvml := FakeNvml([Device(lambda t: GIB + (SLACK_BYTES if t else 0))]))
    nvml.now = 1.0
    assert gpus.occupied(1) == ""


def test_processes_of_other_containers_are_not_seen() -> None:
    nvml = FakeNvml([Device(lambda t: 70 * GIB)], tells_processes=False)
    assert found(nvml).occupied(1).endswith("held by processes that cannot be seen from here")


def test_only_the_visible_gpus_count() -> None:
    nvml = FakeNvml([Device(lambda t: 70 * GIB), Device(lambda t: GIB)])
    assert found(nvml, CUDA_VISIBLE_DEVICES="1").occupied(1) == ""
    assert found(nvml, CUDA_VISIBLE_DEVICES="").occupied(1) == ""
    assert found(nvml, CUDA_VISIBLE_DEVICES="0").occupied(1) != ""


def test_a_device_that_stops_to_answer_is_not_held_against_the_slot() -> None:
    nvml = FakeNvml([Device(lambda t: GIB)])
    gpus = found(nvml)
    nvml.devices[0].answers = False
    assert gpus.occupied(1) == ""


def test_without_a_driver_nothing_is_looked_at() -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError("no driver")

    assert Gpus.found({}, NoDriver([])) is None


def test_a_worker_starts_no_engine_on_a_gpu_that_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = found(FakeNvml([Device(lambda t: 70 * GIB, {4711: None})]))
    monkeypatch.setattr(Gpus, "found", lambda environment: gpus)
    monkeypatch.setattr("tuner.pools.worker._end_with", lambda parent: None)
    worker = SlotWorker(a_spec(), Place(0), Limits())
    outcome, cost = worker.run(a_job(0, tmp_path))
    assert isinstance(outcome, Faulted)
    assert (outcome.reason, outcome.slot_ok) == ("gpu_busy", False)
    assert "PID 4711" in outcome.detail
    assert cost.start_s == 0
    assert not (tmp_path / "0" / "host.log").exists()


class Watcher:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


@dataclass
class Pool:
    """A Ray pool of two slots without a Ray: what its workers answer is set by the test."""

    pool: RayPool
    watcher: Watcher
    folder: Path

    def ends(self, number: int, outcome: Outcome) -> None:
        """Let the job of a slot end with an outcome, and collect it."""
        slot = self.pool._slots[number]
        slot.job, slot.result = a_job(number, self.folder), Future()
        slot.held = Held(number, "node", 1, busy=True)
        slot.result.set_result((outcome, Cost()))
        done = self.pool._result(slot, slot.result)
        assert done[1] == outcome


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(RayPool, "_nodes", lambda self: {"node": 2})
    watcher = Watcher()
    pool = RayPool(a_spec(), Capacity(gpus=2), observer=watcher)
    for number in (0, 1):
        pool._slots[number] = _Slot(Held(number, "node", 1, busy=False), actor=None)
    return Pool(pool, watcher, tmp_path)


def test_a_slot_that_is_not_clean_takes_no_more_jobs_and_the_study_says_so(two: Pool) -> None:
    busy = Faulted("gpu_busy", "GPU 0: 70.0 GiB in use: PID 4711", slot_ok=False)
    two.ends(0, busy)
    assert two.pool.busy == 0
    said = [event.message for event in two.watcher.events if isinstance(event, Notice)]
    assert said == ["slot 0 on node is left alone, gpu_busy: GPU 0: 70.0 GiB in use: PID 4711"]
    placed = two.pool._placement(EngineConfig("m"), 1)
    assert placed is not None
    assert (placed.number, placed.new) == (1, False)
    two.ends(1, busy)
    with pytest.raises(TunerError, match="no clean slot is left") as caught:
        two.pool.has_room(1)
    assert "PID 4711" in str(caught.value)
    assert "run the study again" in caught.value.hint


def test_weather_of_another_kind_leaves_the_slot_in_use(two: Pool) -> None:
    two.ends(0, Faulted("engine_died", "x"))
    two.ends(1, Faulted("gpu_busy", "as the engine says: its share of memory was not free"))
    assert two.pool.has_room(1)
    assert not [event for event in two.watcher.events if isinstance(event, Notice)]
