"""Connecting to a Ray cluster, or starting a quiet one of our own on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray
from ray._private import worker

import tuner
from tuner.errors import TunerError
from tuner.pools.ray_guard import guarded
from tuner.pools.slots import Capacity
from tuner.pools.spec import import_path

#: For the Ray that we start: end what a dead worker leaves, start no idle workers, report nothing
#: to anyone, leave device visibility alone where a worker asks for no GPU, and leave it to the
#: kernel to end something when memory runs out (Ray ends a worker as soon as 5 % are left).
_RAY_ENVIRONMENT = {
    "RAY_process_group_cleanup_enabled": "1",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
#: Would make every engine take the first GPU.
_NOT_FOR_RAY = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
#: Jobs travel in the object store; the largest traces take some tens of MiB.
_OBJECT_STORE_BYTES = 512 << 20
#: Seconds for a cluster to accept a connection.
_REACH_S = 10.0


def connected(address: str | None, capacity: Capacity) -> AbstractContextManager[None]:
    """Connect to a cluster, or start a local Ray without a dashboard; disconnect or end it.

    Raises TunerError where Ray cannot be used, or is in use by this process already.
    """
    if ray.is_initialized():
        raise TunerError("this process uses Ray already", "one Ray pool at a time")
    return _started(capacity) if address is None else _joined(address)


@contextlib.contextmanager
def _started(capacity: Capacity) -> Iterator[None]:
    scratch = tempfile.mkdtemp(prefix="tuner-ray-", dir=_short_temporary_directory())
    changes = {**_RAY_ENVIRONMENT, "PYTHONPATH": import_path(os.environ)}
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(guarded(scratch))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.enter_context(_silent())
        stack.callback(ray.shutdown)
        with _environment(changes), _same_signal_handlers():
            # An address of None would join whatever Ray it finds.
            _initialize("local", {**_local_resources(capacity), "_temp_dir": scratch})
        started()
        yield


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    _reach(address)
    package = str(Path(tuner.__file__).parent)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_silent())
        stack.callback(ray.shutdown)
        with _same_signal_handlers():
            _initialize(address, {"runtime_env": {"py_modules": [package]}})
        yield


def _reach(address: str) -> None:
    """Raise TunerError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto": Ray looks for itself, quickly
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        hint = "check ray.address; leave it out to use this machine alone"
        raise TunerError(f"cannot use Ray ({address}): {error}", hint) from error


def _initialize(address: str, options: Mapping[str, Any]) -> None:
    try:
        ray.init(
            address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace=f"tuner-{os.getpid()}",
            **options,
        )
    except Exception as error:  # Ray raises a bare Exception where its start takes over 30 s
        hint = "try again when the machine is less busy" if "timed out" in str(error) else ""
        raise TunerError(f"cannot use Ray ({address}): {first_line(error)}", hint) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray from printing about workers that die: the pool reports them as outcomes.

    Ray has no switch for these messages (``log_to_driver`` is about the workers' own output).
    """
    before = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = before


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
