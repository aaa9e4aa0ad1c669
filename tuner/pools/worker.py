"""The worker of a slot: lives in a Ray actor, owns one engine host, knows nothing of Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuner.job import Job
from tuner.pools.clean import Gpus
from tuner.pools.host import CORES_VARIABLE
from tuner.pools.host_process import STARTING_HOST, HostProcess, Limits, log_tail
from tuner.pools.spec import HostSpec, OnPhase, import_path
from tuner.pools.supervisor import ProcessId, adopt_orphans, end_descendants
from tuner.records import Cost, Faulted, Outcome

IDLE = "idle"
#: Which slot an engine runs in, from 0; unique among the slots that live at one time.
SLOT_VARIABLE = "TUNER_SLOT"
#: Seconds between looks at whether the parent is still there.
_PARENT_POLL_S = 1.0
#: Seconds for a host that has done its work to end its engine and exit.
_LEAVE_S = 10.0
#: Seconds to wait for what an earlier worker of this slot left to its supervisor.
_CLEAN_S = 30.0
#: Set by Ray for its workers; they would change an engine.
_RAYS_OWN = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slot is."""

    slot: int
    #: Cores for its engine; empty for no restriction.
    cores: Sequence[int] = ()
    #: Supervisors of workers that died here; their engines must be gone before the next starts.
    before: Sequence[ProcessId] = ()


def _end_with(parent: int) -> None:
    """End this process when its parent (Ray's raylet) is gone; the supervisor then ends the rest.

    Ray's own way to end a worker waits for a running call, which here lasts as long as a trial.
    """
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


class SlotWorker:
    """Runs jobs on a host that it keeps for the next one, and replaces where it must.

    ``run`` is called by one thread, the rest by any.
    """

    def __init__(self, spec: HostSpec, place: Place, limits: Limits) -> None:
        self._spec = spec
        self._place = place
        self._limits = limits
        self._host: HostProcess | None = None
        self._env: Mapping[str, str] = {}
        self._phase = IDLE
        self._stopped = False
        self._running = threading.Lock()
        adopt_orphans()  # a host whose supervisor is killed becomes our child
        threading.Thread(target=_end_with, args=[os.getppid()], name="parent", daemon=True).start()
        self._not_ours = {child.pid for child in psutil.Process().children()}
        self._gpus = Gpus.found(os.environ)

    def state(self) -> tuple[str, ProcessId | None]:
        """Return the phase of the running job and the supervisor of the running host."""
        host = self._host
        return self._phase, host.id if host else None

    def run(self, job: Job) -> tuple[Outcome, Cost]:
        """Run a job to its outcome. Never raises for what goes wrong with the host or engine."""
        began = time.monotonic()
        with self._running:
            if self._stopped:
                return Faulted("cancelled", "the slot was stopped"), Cost()
            unclean = self._unclean(job)
            if unclean is not None:
                return unclean, Cost(other_s=time.monotonic() - began)
            try:
                outcome, cost = self._run(job, self._set_phase)
            finally:
                self._phase = IDLE
        seconds = time.monotonic() - began
        return outcome, cost if cost.total_s else Cost(other_s=seconds)

    def stop(self, grace_s: float) -> None:
        """Break off the running job and end the host, politely for ``grace_s`` seconds."""
        self._stopped = True
        host = self._host
        if host is not None:
            host.stop(grace_s)
        with self._running:
            self._drop()

    def _run(self, job: Job, on_phase: OnPhase) -> tuple[Outcome, Cost]:
        directory = Path(job.directory)
        host = self._ready_host(job.config.env, directory, on_phase)
        if self._stopped:  # by a thread that did not see this host yet
            self._drop()
            return Faulted("cancelled", "the slot was stopped"), Cost()
        result = host.run(job, self._limits, on_phase)
        if result is None:
            how = host.end(wait_s=_LEAVE_S)
            detail = "\n".join([how, *log_tail(directory)])
            result = Faulted("engine_died", detail), Cost()
        if (
            isinstance(result[0], Faulted) and not result[0].engine_ok
        ):  # nobody knows what is left in a host after a fault
            self._drop()
        return result

    def _ready_host(
        self, env: Mapping[str, str], directory: Path, on_phase: OnPhase
    ) -> HostProcess:
        """Return the host at hand, or a new one where there is none."""
        if self._host and not (self._host.alive and self._env == env):
            self._drop()
        if self._host is None:
            on_phase(STARTING_HOST)
            self._env = dict(env)
            complete = host_environment(self._spec, self._env, self._place)
            self._host = HostProcess.start(self._spec, complete, directory)
        return self._host

    def _drop(self) -> None:
        if self._host is not None:
            self._host.stop(_LEAVE_S)
            self._host.close()
            self._host = None
        end_descendants(0.0, self._not_ours)  # only where the supervisor itself was killed

    def _unclean(self, job: Job) -> Faulted | None:
        """Return why no engine may start here; None where one may, or lives on.

        Drops a host that is dead or has another environment, and waits for what is ending.
        """
        if self._host and not (self._host.alive and self._env == job.config.env):
            self._drop()
        if not self._clean():
            return Faulted("slot_not_clean", "an earlier engine did not end", slot_ok=False)
        if self._host is not None or self._gpus is None:
            return None
        held = self._gpus.occupied(_CLEAN_S)
        return Faulted("gpu_busy", held, slot_ok=False) if held else None

    def _clean(self) -> bool:
        """Wait until the engines of this slot's earlier workers are gone."""
        give_up = time.monotonic() + _CLEAN_S
        while any(process.alive for process in self._place.before):
            if time.monotonic() > give_up:
                return False
            time.sleep(0.1)
        return True

    def _set_phase(self, phase: str) -> None:
        self._phase = phase


def host_environment(spec: HostSpec, env: Mapping[str, str], place: Place) -> dict[str, str]:
    """Return a host's whole environment: the worker's without Ray's part, ours, the engine's.

    The package is found from wherever it was imported here; device visibility is as Ray set it.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and name not in _RAYS_OWN
    }
    merged = {**inherited, **spec.env, **env, SLOT_VARIABLE: str(place.slot)}
    merged.pop("VLLM_PORT", None)  # all slots would scan for free ports from the same one
    if place.cores:
        merged[CORES_VARIABLE] = ",".join(map(str, place.cores))
    return {**merged, "PYTHONPATH": import_path(merged)}
