"""What a worker and its engine host say to each other, pickled over an inherited socket."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.job import Job
from tuner.records import Cost, Outcome


@dataclass(frozen=True, slots=True)
class Run:
    """Worker to host: measure this."""

    job: Job


@dataclass(frozen=True, slots=True)
class Stop:
    """Worker to host: break off what runs, end the engine, exit."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Host to worker: imports are done, jobs may start."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Host to worker: the running job does something else now."""

    name: str


@dataclass(frozen=True, slots=True)
class Done:
    """Host to worker: the job ended."""

    outcome: Outcome
    cost: Cost
