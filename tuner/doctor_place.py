"""The doctor's checks of the place: folders, disk, ports, storage, model, limits, other Rays."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tuner.doctor_findings import Finding, Level

_GIB = 1 << 30
#: Below this much free disk a study may not end well; below a tenth of it, it will not.
ENOUGH_DISK_BYTES = 10 * _GIB
ENOUGH_FILES = 4096
ENOUGH_SHM_BYTES = 1 * _GIB
_NETWORK_FILES = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "beegfs"}
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "redis": 6379}


def folders(wanted: Mapping[str, Path]) -> Iterator[Finding]:
    """Whether we may write in each folder (or can make it), and how much room there is."""
    for purpose, path in wanted.items():
        at = _existing(path)
        try:
            with tempfile.TemporaryFile(dir=at):
                pass
        except OSError as error:
            reason = error.strerror or type(error).__name__
            yield Finding(
                "error",
                f"cannot write to the {purpose} folder {path}",
                f"{at}: {reason}",
                f"make it writable (chmod u+w {at}) or give another folder",
            )
            continue
        free = shutil.disk_usage(at).free
        text = f"{purpose} folder {path}: writable, {free / _GIB:.0f} GiB free"
        if free >= ENOUGH_DISK_BYTES:
            yield Finding("ok", text)
        else:
            level: Level = "warn" if free >= ENOUGH_DISK_BYTES // 10 else "error"
            yield Finding(
                level,
                text,
                "logs, request records and compile caches need room",
                f"free some disk on {at} or give another folder",
            )


def _existing(path: Path) -> Path:
    at = path.expanduser().absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    return at


def check_port(port: int, host: str = "127.0.0.1") -> Iterator[Finding]:
    """Whether the dashboard can have its port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            yield Finding(
                "warn",
                f"port {port} is taken",
                f"{host}: {error.strerror}",
                f"open the dashboard on another one: tuner dashboard DIR --port {port + 1}",
            )
            return
    yield Finding("ok", f"port {port} is free for the dashboard")


def check_storage(url: str | None) -> Iterator[Finding]:
    """Whether the storage can be reached; nothing to say for a study's own file."""
    if url is None:
        return
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite"):
        yield from _check_sqlite(Path(url.split("///", 1)[-1]))
        return
    shown = f"{parts.scheme}://{parts.hostname}"
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme.partition("+")[0], 0)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=3):
            pass
    except OSError as error:
        yield Finding(
            "error",
            f"the storage {shown} does not answer",
            f"port {port}: {error}",
            "start the database, or leave `storage` out of the study to use a local file",
        )
    else:
        yield Finding("ok", f"the storage {shown} answers on port {port}")


def _check_sqlite(path: Path) -> Iterator[Finding]:
    at = _existing(path)
    if not os.access(at, os.W_OK):
        yield Finding(
            "error",
            f"the storage {path} cannot be written",
            f"no right to write in {at}",
            f"chmod u+w {at}, or name another file",
        )
        return
    kind = _filesystem(at)
    if kind in _NETWORK_FILES:
        yield Finding(
            "warn",
            f"the storage {path} lies on a network file system ({kind})",
            "SQLite's locks do not hold there",
            "use a local disk, or PostgreSQL",
        )
    else:
        yield Finding("ok", f"the storage {path} can be written")


def _filesystem(path: Path) -> str:
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else ""


def check_model(model: str | None) -> Iterator[Finding]:
    """Whether the model's folder holds a model; a name on a hub is only named as such."""
    if model is None:
        return
    path = Path(model).expanduser()
    looks_local = path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1
    if (path / "config.json").is_file():
        yield Finding("ok", f"model {model}: config.json found")
    elif path.is_dir():
        yield Finding(
            "error",
            f"the model folder {model} has no config.json",
            "it is no model for vLLM",
            "give the folder that holds config.json and the weights",
        )
    elif looks_local:
        yield Finding(
            "error",
            f"there is no model at {model}",
            f"looked at {path.absolute()}",
            "give an existing folder, or a name on a model hub such as org/name",
        )
    else:
        yield Finding("ok", f"model {model}: no such folder here, so vLLM fetches it by this name")


def check_system() -> Iterator[Finding]:
    """Shared memory, open files, and other Rays on this machine."""
    yield from check_shared_memory(shutil.disk_usage("/dev/shm").total)
    yield from check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from check_other_rays(_raylets(), os.environ.get("RAY_ADDRESS"))


def check_shared_memory(size_bytes: int) -> Iterator[Finding]:
    """/dev/shm is where the engine's and Ray's processes meet; containers often have 64 MiB."""
    text = f"/dev/shm: {size_bytes / _GIB:.1f} GiB"
    if size_bytes >= ENOUGH_SHM_BYTES:
        yield Finding("ok", text)
    else:
        yield Finding(
            "warn",
            text,
            "Ray falls back to disk and tensor-parallel engines may fail",
            "start the container with --shm-size=8g, or: mount -o remount,size=8G /dev/shm",
        )


def check_open_files(limit: int) -> Iterator[Finding]:
    """Each request of a replay holds a connection."""
    if limit == resource.RLIM_INFINITY or limit >= ENOUGH_FILES:
        yield Finding("ok", f"open files: up to {limit}")
    else:
        yield Finding(
            "warn",
            f"only {limit} files may be open at once",
            "a large replay needs more",
            f"ulimit -n {ENOUGH_FILES * 4}",
        )


def _raylets() -> list[tuple[int, str]]:
    """Process id and user of every Ray node that runs here."""
    found = []
    for process in psutil.process_iter(["name", "username"]):
        if process.info["name"] == "raylet":
            found.append((process.pid, str(process.info["username"])))
    return found


def check_other_rays(raylets: list[tuple[int, str]], address: str | None) -> Iterator[Finding]:
    """A Ray that runs already competes for the machine, or is the one that is to be used."""
    if address:
        yield Finding(
            "warn",
            f"RAY_ADDRESS is set: {address}",
            "Ray would join that cluster",
            "unset RAY_ADDRESS to use this machine alone, or name it as ray.address in the study",
        )
    if raylets:
        who = ", ".join(f"process {pid} of {user}" for pid, user in raylets)
        yield Finding(
            "warn",
            "another Ray runs on this machine",
            who,
            "measure when it is idle; to run inside it, set ray.address: auto in the study",
        )
    if not address and not raylets:
        yield Finding("ok", "no other Ray runs here")
