"""A port for a server that binds it only seconds later, kept free for it until then."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import psutil

from tuner.config import EngineConfig
from tuner.errors import EngineFault

HOST = "127.0.0.1"
#: Below the ports that Linux gives to outgoing connections (from 32768).
FIRST = 21_000
#: The first half is for API servers, the second for what vLLM opens inside of an engine.
PER_SLOT = 100
API_PORTS = PER_SLOT // 2
#: Which slot this process serves; set by the pools.
SLOT_VARIABLE = "TUNER_SLOT"


@contextlib.contextmanager
def reserved(slot: int | None = None) -> Iterator[int]:
    """Hold a port of this slot while a server starts on it. Raises EngineFault("port_taken").

    A socket is bound to it and does not listen. Linux lets a socket with SO_REUSEADDR (every
    server sets it) bind and listen besides, but no plain one: no other engine of ours can choose
    the port meanwhile, and the system gives it to nobody.
    """
    if slot is None:
        slot = int(os.environ.get(SLOT_VARIABLE, "0") or 0)
    first = _first(slot)
    with socket.socket() as holder:
        yield _bound(holder, range(first, first + API_PORTS))


def inner_ports(slot: str | None, config: EngineConfig) -> dict[str, str]:
    """Return the variables that keep the ports inside of an engine in its slot's own range.

    Without them engines that start together may choose the same free port and one of them dies.
    Empty outside of a pool, and for several replicas: there vLLM asks for many ports at once, which
    older versions look for beginning with one and the same.
    """
    if not slot or int(config.args.get("data_parallel_size") or 1) > 1:
        return {}
    return {"VLLM_PORT": str(_first(int(slot)) + API_PORTS)}


def _first(slot: int) -> int:
    return FIRST + slot * PER_SLOT % (32_768 - FIRST - PER_SLOT)


def _bound(holder: socket.socket, ports: range) -> int:
    for port in ports:
        try:
            holder.bind((HOST, port))
        except OSError:
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return port
    detail = f"no port from {ports.start} to {ports.stop - 1} is free on {HOST}"
    raise EngineFault("port_taken", detail, "end the servers of earlier runs")


def listens(port: int, family: list[psutil.Process]) -> bool | None:
    """Whether one of these processes listens on a port; None where that cannot be seen."""
    seen = False
    for process in family:
        with contextlib.suppress(psutil.Error, OSError):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
            seen = True
    return False if seen else None
