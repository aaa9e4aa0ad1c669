"""What happens during a study, for those who watch: progress lines, logs, tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.config import EngineConfig, Json
from tuner.records import TrialRecord


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """The loop begins; ``finished`` trials were already there. ``trials``: the budget, if any."""

    name: str
    trials: int | None
    finished: int


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial was given to the pool."""

    number: int
    config: EngineConfig
    point: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class SlotPhase:
    """A slot does something else now: "starting engine", "warm-up", "paced", "idle", ..."""

    slot: int
    trial: int | None
    phase: str


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A trial ended; ``front`` are the trial numbers of the front so far."""

    record: TrialRecord
    front: Sequence[int]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a user should know, in one sentence."""

    message: str


@dataclass(frozen=True, slots=True)
class StudyFinished:
    """The loop ended. ``reason`` is why, in plain words."""

    reason: str
    wall_s: float


Event = StudyStarted | TrialStarted | SlotPhase | TrialFinished | Notice | StudyFinished


class Observer(Protocol):
    """Anything that watches. It must not raise and cannot influence the study."""

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
