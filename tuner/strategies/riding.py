"""What strategies share that ride along on live engines: who runs, who rides on whom, the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner import pareto
from tuner.config import Json, canonical
from tuner.knobs import Point
from tuner.records import TrialRecord
from tuner.rules import names_in
from tuner.store import Store
from tuner.strategies import Proposal, Search
from tuner.strategies.blocks import Blocks
from tuner.strategies.candidates import Candidates
from tuner.strategies.distinct import tried
from tuner.strategies.model import Model, Targets
from tuner.strategies.plain import Choice, Plain
from tuner.strategies.prices import priced

#: Points per kind that the model is asked about.
DRAWN = 120


@dataclass(frozen=True, slots=True)
class Origin:
    """The latest trial of a cold key: hot variants change it and leave the rest as it is.

    ``arguments`` are set for a known-good configuration, whose engine was not started from a
    point of the space.
    """

    number: int
    point: Point
    arguments: Mapping[str, Json] | None = None


class Riding(Plain):
    """A strategy with a price list, a model, and a memory of which trial runs on which key."""

    def __init__(self, store: Store, search: Search) -> None:
        named = set().union(*map(names_in, search.space.rules))
        self._ruled = [name for name in search.space.names if name in named]
        self._judged: dict[str, bool] = {}
        self._texts: dict[int, str] = {}
        super().__init__(
            store, search.space, search.base, search.sampler, search.seed, search.trials
        )
        self._search = search
        self._records = store.records()
        self.prices = priced(self._records, search.hot, search.warm)
        self._running: dict[int, Proposal] = {}
        self._origins: dict[str, Origin] = {}
        for record in self._records:
            self._remember(Proposal(record.number, record.point, record.config))
        self._random = np.random.default_rng([search.seed, len(self._records)])
        self._blocks = Blocks(search.space)
        self._blocks.learn(self._records)
        self._candidates = Candidates(search.space, self._open, self._random)
        self._model = Model(search.space, Targets(store.objectives, store.constraints))
        self._learned: tuple[int, frozenset[int]] = (-1, frozenset())

    def ask(self, live: Collection[str] = ()) -> Proposal | None:
        """Return the next proposal: queued ones first. None when the space is exhausted."""
        proposal = super().ask(live)
        if proposal is not None:
            self._running[proposal.number] = proposal
            self._remember(proposal)
        return proposal

    def tell(self, record: TrialRecord) -> None:
        """Store the outcome, and learn its price."""
        super().tell(record)
        self._running.pop(record.number, None)
        self._records.append(record)
        self.prices.learn(record)
        self._blocks.learn(self._records)

    def _remember(self, proposal: Proposal) -> None:
        key = proposal.config.cold_key(self._search.hot)
        self._origins[key] = self._origin(proposal.number, proposal.point)

    def _origin(self, number: int, point: Point) -> Origin:
        attrs: Mapping[str, Any] = self._study.get_trials(deepcopy=False)[number].user_attrs
        return Origin(number, point, attrs.get("arguments"))

    def _allowed(self, point: Mapping[str, Json]) -> bool:
        """Whether a point keeps the rules; remembered, as a rule takes a millisecond to judge."""
        key = canonical({name: point[name] for name in self._ruled if name in point})
        if key not in self._judged:
            self._judged[key] = super()._allowed(point)
        return self._judged[key]

    def _blocked(self, point: Point) -> bool:
        return point in self._blocks

    def _open(self, point: Point) -> bool:
        return self._allowed(point) and not self._blocked(point)

    def _seen(self) -> set[str]:
        return tried(self._study, self._space, self._texts)

    def _learn(self) -> Model:
        """Return the model, up to date with what ended and what runs."""
        state = len(self._records), frozenset(self._running)
        if state != self._learned:
            self._model.learn(self._records, [p.point for p in self._running.values()])
            self._learned = state
        return self._model

    def _origins_of(self, live: Collection[str]) -> dict[str, Origin]:
        """Return the live keys on which a trial of this study ran."""
        return {key: self._origins[key] for key in live if key in self._origins}

    def _front(self) -> list[TrialRecord]:
        """Return the feasible trials that no other one dominates."""
        feasible = [record for record in self._records if record.feasible]
        if not feasible:
            return []
        keep = pareto.non_dominated(self._losses(feasible))
        return [record for record, stays in zip(feasible, keep, strict=True) if stays]

    def _losses(self, feasible: Sequence[TrialRecord]) -> pareto.Scores:
        maximize = [objective.maximize for objective in self._store.objectives]
        return pareto.oriented([record.scores or () for record in feasible], maximize)

    def _good(self) -> list[Point]:
        """Return the points of the front so far."""
        return [record.point for record in self._front()]

    def _riders(self, origin: Origin, good: Sequence[Point], seen: Collection[str]) -> list[Point]:
        """Return hot variants of ``origin`` to choose from."""
        hot = self._search.hot
        even = self._candidates.variants(origin.point, DRAWN, seen, hot)
        near = self._candidates.near(
            self._candidates.grafted(origin.point, good, (), hot) or [origin.point],
            DRAWN, seen, hot,
        )  # fmt: skip
        return even + near + self._candidates.grafted(origin.point, good, seen, hot)

    def _best(self, points: Sequence[Point]) -> Point:
        """Return the point of largest expected gain, the least like the others without a model."""
        model = self._learn()
        value = model.gain(points) if model.ready else model.novelty(points)
        return points[int(np.argmax(value))]

    def _ride(self, origin: Origin, point: Point) -> Choice:
        """Return the choice of a hot variant."""
        choice = self._changed(origin, point, self._search.hot)
        return replace(choice, attributes={**choice.attributes, "rides": origin.number})

    def _changed(self, origin: Origin, point: Point, names: Collection[str]) -> Choice:
        """Return the choice of ``point``, which differs from ``origin`` in ``names`` only."""
        if origin.arguments is None:
            return Choice(point)
        changed = {name: value for name, value in point.items() if name in names}
        arguments = {**origin.arguments, **changed}
        return Choice(point, {"arguments": arguments, "teaches": list(point)})
