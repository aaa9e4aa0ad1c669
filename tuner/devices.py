"""GPUs that a study can name: their memory as torch reports it, and their compute capability.

Memory differs by some hundredths of a GiB between drivers and boards (ECC, firmware); the margin of
the memory model is wider. Where each size was seen as ``total_memory`` or in torch's out-of-memory
message ("GPU 0 has a total capacity of ..."): h200: 139.80 GiB in the log of our own start and
143,156 MiB in a public listing of torch's device properties; b200: 178.35 GiB, 148 processors
(pytorch/ao pull request 4002); h100: 79.11 GiB (vllm issue 27508); a100-80: 79.25 GiB (vllm issue
20581); a100-40: 40,536 MiB in PaddlePaddle's documentation of the same call, 39.59 GiB; l40s:
45,589 MiB in a listing, 44.52 GiB in out-of-memory messages; a10: 22.18 GiB (MiniCPM-V issue 640);
rtx4090: 23.64 GiB (VGen issue 104); rtx3090: 23.69 GiB (vllm issue 2140); t4: 14.75 GiB (Open-Sora
issue 697). Capabilities are those of NVIDIA's list of CUDA GPUs. A GPU that is not here is
described by its memory and capability.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU, and how many of them a host has."""

    name: str
    memory_bytes: int
    #: Compute capability: (9, 0) is Hopper.
    capability: tuple[int, int]
    gpus: int = 8


def _device(name: str, memory_gib: float, capability: str) -> Device:
    return Device(name, int(memory_gib * GIB), version(capability))


def version(capability: str) -> tuple[int, int]:
    """Return "9.0" as (9, 0). Raises ValueError for anything else."""
    major, _, minor = capability.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise ValueError(f"a compute capability looks like 9.0, found {capability}")
    return int(major), int(minor)


#: Name in a study -> device.
DEVICES = {
    "h200": _device("NVIDIA H200", 139.80, "9.0"),
    "h100": _device("NVIDIA H100 80GB HBM3", 79.11, "9.0"),
    "b200": _device("NVIDIA B200", 178.35, "10.0"),
    "a100-80": _device("NVIDIA A100-SXM4-80GB", 79.25, "8.0"),
    "a100-40": _device("NVIDIA A100-SXM4-40GB", 39.59, "8.0"),
    "l40s": _device("NVIDIA L40S", 44.52, "8.9"),
    "a10": _device("NVIDIA A10", 22.18, "8.6"),
    "rtx4090": _device("NVIDIA GeForce RTX 4090", 23.64, "8.9"),
    "rtx3090": _device("NVIDIA GeForce RTX 3090", 23.69, "8.6"),
    "t4": _device("Tesla T4", 14.75, "7.5"),
}


def known(name: str) -> Device | None:
    """Return the device that a study or a driver calls so, None for one that is not in the table.

    "H200", "NVIDIA H200" and "nvidia-h200" are the same; what one of several sizes is
    ("A100" without its memory) is not guessed.
    """
    wanted = _plain(name)
    for short, device in DEVICES.items():
        if wanted in (_plain(short), _plain(device.name)):
            return device
    return None


def _plain(name: str) -> str:
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters.replace("nvidia", "").replace("geforce", "")
