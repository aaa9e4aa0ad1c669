"""Connecting to a Ray cluster, or starting a quiet one of our own on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

import tuner
from tuner.errors import TunerError
from tuner.pools.slots import Capacity

#: For the Ray that we start: end what a dead worker leaves, start no idle workers, report nothing
#: to anyone, and leave device visibility alone where a worker asks for no GPU.
_RAY_ENVIRONMENT = {
    "RAY_process_group_cleanup_enabled": "1",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
#: Would make every engine take the first GPU.
_NOT_FOR_RAY = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
#: Jobs travel in the object store; the largest traces take some tens of MiB.
_OBJECT_STORE_BYTES = 512 << 20


@contextlib.contextmanager
def connected(address: str | None, capacity: Capacity) -> Iterator[None]:
    """Connect to a cluster, or start a local Ray without a dashboard; disconnect or end it."""
    package = Path(tuner.__file__).parent
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    options: dict[str, Any] = {"runtime_env": {"py_modules": [str(package)]}}
    with contextlib.ExitStack() as stack:
        if address is None:
            scratch = tempfile.mkdtemp(prefix="tuner-ray-", dir=_short_temporary_directory())
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            options = {**_local_resources(capacity), "_temp_dir": scratch}
        with _environment({**_RAY_ENVIRONMENT, "PYTHONPATH": path}), _same_signal_handlers():
            stack.callback(ray.shutdown)
            try:
                ray.init(
                    address or "local",  # None would join whatever Ray it finds
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    namespace=f"tuner-{os.getpid()}",
                    **options,
                )
            except (ConnectionError, RuntimeError, ValueError, RayError) as error:
                where = f"Ray at {address}" if address else "a local Ray"
                raise TunerError(f"cannot use {where}: {first_line(error)}") from error
        yield


def _local_resources(capacity: Capacity) -> dict[str, Any]:
    cores = capacity.cpus_per_engine
    options: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "num_gpus": capacity.gpus if cores is None else 0,
    }
    if cores is not None:
        fit = max(1, len(os.sched_getaffinity(0)) // cores)
        options["num_cpus"] = (capacity.slots or fit) * cores
    return options


def cores_of(slot: int, count: int) -> Sequence[int]:
    """Return this machine's cores for a slot's engine; none to choose where they overlap."""
    mine = sorted(os.sched_getaffinity(0))[slot * count : (slot + 1) * count]
    return mine if len(mine) == count else ()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Let children started meanwhile inherit ``changes``."""
    before = dict(os.environ)
    os.environ.update(changes)
    for name in _NOT_FOR_RAY:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name in {*changes, *_NOT_FOR_RAY}:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


@contextlib.contextmanager
def _same_signal_handlers() -> Iterator[None]:
    """Undo Ray's change of the driver's SIGTERM handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _short_temporary_directory() -> str:
    """Return a directory whose path leaves room for socket names (107 bytes in all)."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= 24 else "/tmp"


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
