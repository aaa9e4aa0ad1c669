"""Pools: where jobs run."""

from __future__ import annotations

from typing import Protocol

from tuner.job import Job
from tuner.records import Cost, Outcome

Result = tuple[Job, Outcome, Cost]


class Pool(Protocol):
    """Runs jobs on slots. A context manager: leaving it ends everything that it started."""

    def has_room(self, gpus: int) -> bool:
        """Whether a job that needs this many GPUs would start at once."""

    @property
    def busy(self) -> int:
        """Jobs submitted and not collected yet."""

    @property
    def live(self) -> frozenset[str]:
        """Cold keys of idle engines that live on: a job with one of these keys needs no start."""

    def submit(self, job: Job) -> None:
        """Start a job. Only called while ``has_room``."""

    def collect(self, timeout_s: float) -> Result | None:
        """Wait for the next job to end; None when none has within the time.

        Never raises for a job: a worker that dies is ``Faulted("worker_lost", ...)``.
        """
