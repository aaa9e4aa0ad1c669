"""GPU telemetry against devices whose memory, activity and power are known on paper."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.config import EngineConfig
from tuner.engines import Completion
from tuner.engines.gpu import Gpus, Meter, gpus_of, handles_of
from tuner.engines.metered import MeteredEngine, MeteredLauncher, Sampler
from tuner.trace import Request

GIB = 2**30


class NVMLError(Exception):
    """As the binding's."""


@dataclass
class Device:
    """What one fake device shows, as functions of the time in seconds."""

    uuid: str = "GPU-0"
    power_mw: Callable[[float], float] | None = None
    energy_mj: Callable[[float], float] | None = None
    memory: Callable[[float], int] | None = None
    busy: Callable[[float], float] | None = None


@dataclass
class FakeNvml:
    """The part of ``pynvml`` that is used, over fake devices and a clock that is set."""

    devices: Sequence[Device] = (Device(),)
    driver: bool = True
    now: float = 0.0
    open: int = 0
    NVMLError: type[Exception] = NVMLError
    uuid_as_bytes: bool = False
    calls: list[str] = field(default_factory=list)

    def _value(self, of: Callable[[float], float] | None) -> Any:
        if of is None:
            raise NVMLError("not supported")
        return of(self.now)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        if not uuid.startswith("MIG-known"):
            raise NVMLError("not found")
        return Device(uuid)

    def nvmlDeviceGetUUID(self, device: Device) -> str | bytes:
        return device.uuid.encode() if self.uuid_as_bytes else device.uuid

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:
        return SimpleNamespace(used=self._value(device.memory))

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:
        return SimpleNamespace(gpu=self._value(device.busy))

    def nvmlDeviceGetPowerUsage(self, device: Device) -> Any:
        return self._value(device.power_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Device) -> Any:
        return self._value(device.energy_mj)


def metered(nvml: FakeNvml, times: Sequence[float]) -> dict[str, float]:
    """Return what looks at these times add up to."""
    gpus, meter = Gpus(nvml, nvml.devices, lambda: nvml.now), Meter()
    for at in times:
        nvml.now = at
        meter.add(gpus.look())
    return meter.values()


def test_a_power_ramp_gives_its_joules() -> None:
    # From 100 W at 0 s to 500 W at 4 s: 300 W x 4 s, exact by trapezoids at any spacing.
    ramp = Device(power_mw=lambda t: 100_000 + 100_000 * t)
    for times in ((0, 4), (0, 1, 4), (0, 0.5, 1, 3.25, 4)):
        assert metered(FakeNvml([ramp]), times) == {"energy_j": pytest.approx(1200)}


def test_the_devices_own_counter_goes_before_sampled_power() -> None:
    device = Device(power_mw=lambda t: 100_000, energy_mj=lambda t: 7_000_000 + 250_000 * t)
    assert metered(FakeNvml([device]), (2, 4))["energy_j"] == pytest.approx(500)


def test_memory_is_the_most_and_activity_the_mean_over_all_devices() -> None:
    one = Device(memory=lambda t: int(t) * GIB, busy=lambda t: 50)
    other = Device(memory=lambda t: (5 - int(t)) * GIB + int(t == 2) * GIB, busy=lambda t: 100)
    found = metered(FakeNvml([one, other]), (1, 2, 3))
    assert found == {"gpu_memory_max_bytes": 6 * GIB, "gpu_utilization_share": 0.75}


@pytest.mark.parametrize("power", [None, lambda t: 100_000])
def test_what_a_device_does_not_tell_is_absent(power: Callable[[float], float] | None) -> None:
    both = [Device(power_mw=lambda t: 100_000), Device(power_mw=power)]
    found = metered(FakeNvml(both), (0, 1))
    assert found == ({} if power is None else {"energy_j": pytest.approx(200)})


def test_power_that_fails_for_a_moment_gives_no_energy() -> None:
    def gap(at: float) -> float:
        if at == 1:
            raise NVMLError("lost")
        return 100_000

    assert metered(FakeNvml([Device(power_mw=gap)]), (0, 1, 2)) == {}
    assert metered(FakeNvml([Device(power_mw=gap)]), (0,)) == {}


UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33")


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, UUIDS),
        ("", ()),
        ("2,0", ("GPU-cc33", "GPU-aa11")),
        (" 1 ", ("GPU-ab22",)),
        ("0,-1,1", ("GPU-aa11",)),
        ("0,7,1", ("GPU-aa11",)),
        ("GPU-cc33,GPU-ab", ("GPU-cc33", "GPU-ab22")),
        ("MIG-known,0", ("MIG-known", "GPU-aa11")),
        ("MIG-unknown,0", ()),
    ],
)
def test_the_devices_are_those_that_cuda_would_use(
    visible: str | None, found: tuple[str, ...], as_bytes: bool
) -> None:
    nvml = FakeNvml([Device(uuid) for uuid in UUIDS], uuid_as_bytes=as_bytes)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert tuple(device.uuid for device in handles_of(nvml, environment)) == found


def test_an_engine_has_as_many_of_the_visible_devices_as_it_asks_for() -> None:
    nvml = FakeNvml([Device(uuid) for uuid in UUIDS])
    two = EngineConfig("m", {"tensor_parallel_size": 2}, {"CUDA_VISIBLE_DEVICES": "2,1,0"})
    with gpus_of(two, nvml) as gpus:
        assert gpus is not None
        assert [device.uuid for device in gpus.handles] == ["GPU-cc33", "GPU-ab22"]
        assert nvml.open == 1
    assert nvml.open == 0
    four = EngineConfig("m", {"tensor_parallel_size": 4}, {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    with gpus_of(four, nvml) as gpus:
        assert gpus is None


class Engine:
    """Answers at once; two tokens a request."""

    def __init__(self) -> None:
        self.facts = {"version": "1"}
        self.tokens = 0.0

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        self.tokens += 2
        return Completion((0.0, 0.0), 2)

    async def reset(self) -> None:
        self.tokens = 0.0

    async def reconfigure(self, hot: Mapping[str, Any]) -> Mapping[str, Any]:
        return hot

    async def counters(self) -> Mapping[str, float]:
        return {"generated_tokens": self.tokens}


class PreparingEngine(Engine):
    def prepare(self, request: Request, prompt: Sequence[int]) -> Sequence[int]:
        return [*prompt, 99]


@dataclass
class Launcher:
    engine: Engine

    @contextlib.asynccontextmanager
    async def launch(self, config: EngineConfig, log: str) -> Any:
        yield self.engine


def through(engine: Engine, nvml: FakeNvml) -> Any:
    @contextlib.contextmanager
    def gpus(config: EngineConfig) -> Iterator[Gpus | None]:
        with gpus_of(config, nvml) as found:
            yield None if found is None else Gpus(nvml, found.handles, lambda: nvml.now)

    return MeteredLauncher(Launcher(engine), gpus).launch(EngineConfig("m"), "log")


REQUEST = Request(0, 0.0, 4, 2)


async def test_the_window_is_from_the_first_request_after_a_reset_to_the_counters() -> None:
    nvml = FakeNvml([Device(power_mw=lambda t: 100_000, energy_mj=lambda t: 100_000 * t)])
    async with through(Engine(), nvml) as engine:
        assert await engine.counters() == {"generated_tokens": 0}
        await engine.reset()
        nvml.now = 10.0  # prompts are made
        await engine.generate(REQUEST, [1])
        nvml.now = 14.0
        found = await engine.counters()
        assert found["energy_j"] == pytest.approx(400)
        assert found["tokens_per_joule"] == pytest.approx(2 / 400)
        nvml.now = 20.0
        await engine.reset()
        assert await engine.counters() == {"generated_tokens": 0}
        await engine.generate(REQUEST, [1])
        nvml.now = 21.0
        assert (await engine.counters())["energy_j"] == pytest.approx(100)
    assert nvml.open == 0


@pytest.mark.parametrize("nvml", [FakeNvml(driver=False), FakeNvml(devices=())])
async def test_without_a_gpu_the_engine_is_as_it_was(nvml: FakeNvml) -> None:
    bare = Engine()
    async with through(bare, nvml) as engine:
        assert engine is bare
        await engine.generate(REQUEST, [1])
        assert await engine.counters() == {"generated_tokens": 2}


async def test_what_an_engine_prepares_passes_through_and_nothing_is_made_up() -> None:
    async with through(PreparingEngine(), FakeNvml()) as engine:
        assert engine.prepare(REQUEST, [1]) == [1, 99]
        assert engine.facts == {"version": "1"}
        assert await engine.reconfigure({"a": 1}) == {"a": 1}
    async with through(Engine(), FakeNvml()) as engine:
        assert isinstance(engine, MeteredEngine)
        assert not hasattr(engine, "prepare")


def test_the_thread_looks_while_a_window_is_open_and_ends_with_the_engine() -> None:
    looked = threading.Semaphore(0)

    def memory(at: float) -> int:
        looked.release()
        return GIB

    sampler = Sampler(Gpus(FakeNvml([Device(memory=memory)]), [Device(memory=memory)]))
    with sampler.running(every_s=0.001):
        assert not looked.acquire(timeout=0.02)  # no window is open
        sampler.open_window()
        for _ in range(4):
            assert looked.acquire(timeout=30)
    assert "gpu-sampler" not in [thread.name for thread in threading.enumerate()]
    assert sampler.values() == {"gpu_memory_max_bytes": GIB}
