"""The device that a study is for, beside the one at hand: what is checked for, what is run on."""

from __future__ import annotations

from tuner import machine
from tuner.devices import Device, known
from tuner.study import StudySpec
from tuner.study_hardware import device_of


def stand_in(spec: StudySpec) -> Device | None:
    """Return the device that a check stands in for; None where it asks the machine at hand.

    That is so where this machine has GPUs, where others do the work, and for a study of the CPU.
    """
    elsewhere = spec.ray.address is not None or bool(machine.gpus())
    if spec.engine.kind == "simulated" or spec.engine.cpus is not None or elsewhere:
        return None
    return device_of(spec.hardware)


def elsewhere(spec: StudySpec) -> str:
    """Say that a run is on another device than the study is for; '' where it is not, or unknown."""
    device = device_of(spec.hardware)
    if device is None or spec.engine.kind == "simulated" or spec.ray.address is not None:
        return ""
    names = sorted({gpu.name for gpu in machine.gpus()}) if spec.engine.cpus is None else []
    if any(name == device.name or known(name) == known(device.name) for name in names):
        return ""
    here = ", ".join(names) or "a CPU"
    return (
        f"the study is for {device.name}, this run is on {here}: what is refused and what is "
        "measured holds for the latter"
    )
