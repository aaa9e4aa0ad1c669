"""vLLM's own CUDA platform for a device that is only described: for configurations, not to run.

Importing this module needs vLLM, and changes this process for good: compiled extensions of the CUDA
build are replaced by empty modules, and those of their operators that tell what is supported by
answers for the device. That is enough to build configurations and to ask attention backends.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.devices import Device
from tuner.engines import vllm_device

_EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
#: Namespaces of their operators.
_OPERATORS = (
    "_C", "_C_cache_ops", "_C_custom_ar", "_C_stable_libtorch", "_moe_C", "_qutlass_C",
    "_vllm_fa2_C", "_vllm_fa3_C",
)  # fmt: skip
#: Comes with the CUDA build of vLLM; its backend only says what it supports once it imports.
_LIBRARY = "flashinfer"


def _device() -> Device:
    device = vllm_device.wanted()
    assert device is not None  # else nobody imports this module
    return device


DEVICE = _device()


class _Anything:
    """Stands for a class, function or operator that is named but never used."""

    def __init__(self, *given: Any, **more: Any) -> None: ...

    def __call__(self, *given: Any, **more: Any) -> Any:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Operator(_Anything):
    """An operator of the CUDA build. Asked whether it is supported, it answers for the device."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *given: Any, **more: Any) -> Any:
        if "fp4" in self.__name__:
            return DEVICE.capability >= (10, 0)
        return DEVICE.capability >= (8, 9) if "fp8" in self.__name__ else True


class _Module(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {})


class _Library(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the library's modules where they are not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != _LIBRARY:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _stand_in_for_extensions() -> None:
    # Not tried first: one of them cannot be imported before another one can.
    for name in _EXTENSIONS:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)


@contextlib.contextmanager
def library_named() -> Iterator[None]:
    """Let vLLM import the library's names in the body, where it is not installed.

    Only to ask its backend what it supports: building a configuration with it goes on to use it.
    """
    if importlib.util.find_spec(_LIBRARY) is not None:
        yield
        return
    finder = _Library()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def stand_in_for_triton() -> None:
    """Let vLLM choose its model runner as where Triton finds a driver, which it does on a GPU."""
    module: Any = importlib.import_module("vllm.config.vllm")
    if hasattr(module, "HAS_TRITON"):
        module.HAS_TRITON = True


def _stand_in_for_operators() -> None:
    import torch._ops

    namespace: Any = torch._ops._OpNamespace
    own = namespace.__getattr__

    def found(self: Any, name: str) -> Any:
        try:
            return own(self, name)
        except AttributeError:
            if self.name not in _OPERATORS or "support" not in name:
                raise
            return _Operator(name)

    namespace.__getattr__ = found


class _Properties:
    """What torch says of a CUDA device."""

    name = DEVICE.name
    major, minor = DEVICE.capability
    total_memory = DEVICE.memory_bytes
    multi_processor_count = 132
    is_integrated = False


def _stand_in_for_torch() -> None:
    import torch

    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda *_: _Properties()
    cuda.get_device_capability = lambda *_: DEVICE.capability
    cuda.get_device_name = lambda *_: DEVICE.name
    cuda.device_count = lambda: DEVICE.gpus


_stand_in_for_extensions()
_stand_in_for_operators()
_stand_in_for_torch()

from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402


class StandIn(NonNvmlCudaPlatform):  # type: ignore[misc]  # vLLM is untyped here
    """The CUDA platform, asked about ``DEVICE``."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:
        return DeviceCapability(*DEVICE.capability)

    @classmethod
    def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
        major, minor = DEVICE.capability
        if isinstance(capability, tuple):
            return (major, minor) >= tuple(capability)
        return bool(major * 10 + minor >= capability)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return DEVICE.name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return DEVICE.memory_bytes

    @classmethod
    def device_count(cls) -> int:
        return DEVICE.gpus

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
        return True

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return _Properties.multi_processor_count

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:
        return False

    @classmethod
    def log_warnings(cls) -> None: ...
