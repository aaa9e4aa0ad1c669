"""Strategies: what to try next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from tuner.config import EngineConfig
from tuner.knobs import Point
from tuner.records import TrialRecord


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try, and the point of the space that it came from."""

    number: int
    point: Point
    config: EngineConfig


class Strategy(Protocol):
    """Chooses what to try and learns from what came out."""

    def ask(self, live: Collection[str] = ()) -> Proposal | None:
        """Return what to try next, None when nothing is left. ``live``: cold keys now running."""

    def tell(self, record: TrialRecord) -> None:
        """Learn an outcome. Each proposal is told exactly once."""
