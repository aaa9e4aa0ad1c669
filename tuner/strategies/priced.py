"""Priced: the expected gain of a trial, divided by the measured price of getting there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.config import canonical
from tuner.knobs import Point
from tuner.records import Infeasible
from tuner.store import Store
from tuner.strategies import Search
from tuner.strategies.plain import Choice
from tuner.strategies.prices import LIVE, Keys
from tuner.strategies.riding import DRAWN, Origin, Riding

#: Rides in a row on one engine that count in full; later ones count PATIENCE / rides. Filling a
#: front that a better cold key will move as a whole has small gains, cheap ones, without end.
PATIENCE = 2.0
#: Cold keys that the sampler chooses first. Prices alone would stay on the first engine, and learn
#: little of what needs a start, for longer than random search takes to find something better.
KEYS = 6
#: Best offers whose neighbours are looked at too, how many of each, and how often.
REFINED, NEIGHBOURS, ROUNDS = 6, 12, 2


@dataclass(frozen=True, slots=True)
class Offer:
    """A point that may be tried next: riding on a live engine, or from a start."""

    point: Point
    origin: Origin | None
    price_s: float


class Priced(Riding):
    """One model of all trials; whatever gives most front per GPU second comes next.

    A hot variant of a live key, a key whose code is compiled, or a fresh one: each is charged what
    such trials have cost so far (inverse cost weighting: Snoek et al., "Practical Bayesian
    optimization of machine learning algorithms", 2012, section 3.2). A start is charged in full
    to the trial that needs it: charging a share, as later trials ride on it, was slower.
    """

    def __init__(
        self, store: Store, search: Search, patience: float = PATIENCE, keys: int = KEYS
    ) -> None:
        super().__init__(store, search)
        self._patience = patience
        # Most of a short study must be left to the model, and of few keys half.
        most = min(keys, math.inf if search.trials is None else search.trials // 3)
        self._first_keys = 0 if search.all_hot else max(min(most, _keys_of(search) // 2), 1)
        self._keys: dict[str, Keys] = {}

    def _choose(self, live: Collection[str]) -> Choice | None:
        if self._begins():
            return None  # to the sampler
        seen, good = self._seen(), self._good()
        offers = [
            self._live_offer(point, origin)
            for origin in self._origins_of(live).values()
            for point in self._riders(origin, good, seen)
        ]
        names = self._space.names
        full = self._candidates.anywhere(DRAWN, seen)
        full += self._candidates.near(good, DRAWN, seen, names)
        offers += [self._offer(point, live) for point in full]
        if not offers:
            return None
        ranked = self._ranked(offers)
        for _ in range(ROUNDS if self._learn().ready else 0):
            best = [offer for _, offer in ranked[:REFINED]]
            ranked = self._merged(ranked, self._ranked(self._neighbours(best, live, seen)))
        chosen = ranked[0][1]
        return self._ride(chosen.origin, chosen.point) if chosen.origin else Choice(chosen.point)

    def _begins(self) -> bool:
        """Whether first keys are missing; but rules may leave the sampler fewer than there seem."""
        own = [record for record in self._records if not record.config.label]
        tried = [r.config for r in own if r.cost.start_s or not isinstance(r.outcome, Infeasible)]
        tried += [p.config for p in self._running.values() if not p.config.label]
        keys = {config.cold_key(self._search.hot) for config in tried}
        asked = len(own) + len(self._running)
        return len(keys) < self._first_keys and asked < 2 * self._first_keys

    def _ranked(self, offers: Sequence[Offer]) -> list[tuple[float, Offer]]:
        """Return offers with their gain per GPU second (without a model: novelty), best first."""
        model = self._learn()
        points = [offer.point for offer in offers]
        value = model.gain(points) if model.ready else model.novelty(points)
        ride = self._next_ride_counts()
        worth = value / np.array([offer.price_s for offer in offers])
        worth *= [ride if offer.origin else 1.0 for offer in offers]
        return [(float(worth[n]), offers[n]) for n in np.argsort(-worth, kind="stable")]

    def _next_ride_counts(self) -> float:
        """Return how much of one more ride's gain counts, after those since the last start."""
        rides = itertools.takewhile(lambda r: r.cost.start_s == 0, reversed(self._records))
        return min(1.0, self._patience / max(sum(1 for _ in rides), 1))

    def _merged(
        self, left: list[tuple[float, Offer]], right: list[tuple[float, Offer]]
    ) -> list[tuple[float, Offer]]:
        return sorted([*left, *right], key=lambda ranked: -ranked[0])

    def _neighbours(
        self, best: Sequence[Offer], live: Collection[str], seen: Collection[str]
    ) -> list[Offer]:
        found: list[Offer] = []
        for offer in best:
            near, hot = [offer.point], self._search.hot
            if offer.origin is None:
                points = self._candidates.near(near, NEIGHBOURS, seen, self._space.names)
                found += [self._offer(point, live) for point in points]
            else:
                points = self._candidates.near(near, NEIGHBOURS, seen, hot)
                found += [self._live_offer(point, offer.origin) for point in points]
        return found

    def _live_offer(self, point: Point, origin: Origin) -> Offer:
        gpus = max(self._base.with_args(self._space.arguments(point)).gpus, 1)
        return Offer(point, origin, self.prices.trial_s(LIVE) * gpus)

    def _offer(self, point: Point, live: Collection[str]) -> Offer:
        cold = canonical({k: v for k, v in point.items() if k not in self._search.hot})
        config = self._base.with_args(self._space.arguments(point))
        if cold not in self._keys:
            self._keys[cold] = self.prices.keys(config)
        temperature = self.prices.temperature(self._keys[cold], live)
        return Offer(point, None, self.prices.trial_s(temperature) * max(config.gpus, 1))


def _keys_of(search: Search) -> float:
    """Return how many cold keys a space has at most; inf where one of its ranges is continuous."""
    sizes = (knob.domain.size for knob in search.space.knobs if knob.name not in search.hot)
    return math.prod(math.inf if size is None else size for size in sizes)
