"""Strategies: what to try next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from tuner.config import EngineConfig
from tuner.knobs import Point, SearchSpace
from tuner.records import TrialRecord


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try, and the point of the space that it came from."""

    number: int
    point: Point
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy searches, and what it may know before the first trial."""

    space: SearchSpace
    #: What every configuration builds on: the model and the study's engine arguments.
    base: EngineConfig
    #: Knobs that a live engine changes. None of them: every trial is a start.
    hot: frozenset[str] = frozenset()
    #: Knobs that need a start, but one that finds its compiled code in the cache.
    warm: frozenset[str] = frozenset()
    #: Name of the sampler behind full proposals, for the strategies that have one.
    sampler: str = "tpe"
    seed: int = 0
    #: How many trials there will be, None where another budget decides.
    trials: int | None = None

    @property
    def all_hot(self) -> bool:
        """Whether one live engine can serve every point."""
        return all(name in self.hot for name in self.space.names)


class Strategy(Protocol):
    """Chooses what to try and learns from what came out."""

    def ask(self, live: Collection[str] = ()) -> Proposal | None:
        """Return what to try next, None when nothing is left. ``live``: cold keys now running."""

    def tell(self, record: TrialRecord) -> None:
        """Learn an outcome. Each proposal is told exactly once."""
