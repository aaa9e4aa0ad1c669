"""The GPU that a study is for, by its name or described, where it is not the one at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, ConfigDict

from tuner import study_values as values
from tuner.config import Json
from tuner.devices import DEVICES, GIB, Device, known, version
from tuner.study_sections import Natural, Positive, Text, parse
from tuner.yaml_file import Tree


def _capability(value: Json) -> str:
    """Return "9.0", which YAML may have read as a number."""
    written = str(value) if isinstance(value, float) else values.text(value)
    version(written)
    return written


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the study is for, where it is not the machine at hand. ``memory_gib``: per GPU.

    ``capability``: CUDA's compute capability ("9.0"); see ``devices`` for GPUs by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    gpu: Text | None = None
    gpus: Natural | None = None
    memory_gib: Positive | None = None
    capability: Annotated[str, BeforeValidator(_capability)] | None = None


def read_hardware(tree: Tree) -> Hardware | None:
    """Return ``hardware``: a GPU's name, or a mapping; None where it is left out or at fault."""
    at = ("hardware",)
    written = tree.get(at)
    if written is None:
        return None
    if not isinstance(written, str):
        return parse(Hardware, tree, at)
    if known(written) is None:
        names = ", ".join(DEVICES)
        tree.report(
            at,
            f"'{written}' is no GPU that we know ({names}): describe it, "
            "{memory_gib: 80, capability: '9.0', gpus: 1}.",
        )
        return None
    return Hardware(gpu=str(written))


def device_of(hardware: Hardware | None) -> Device | None:
    """Return the device that a section describes; None where memory or capability stay open."""
    if hardware is None:
        return None
    listed = known(hardware.gpu or "")
    if listed is None and (hardware.memory_gib is None or hardware.capability is None):
        return None
    device = listed or Device(hardware.gpu or "the described GPU", 0, (0, 0))
    if hardware.memory_gib is not None:
        device = replace(device, memory_bytes=int(hardware.memory_gib * GIB))
    if hardware.capability is not None:
        device = replace(device, capability=version(hardware.capability))
    return replace(device, gpus=hardware.gpus or device.gpus)
