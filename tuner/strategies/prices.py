"""What a trial costs, by how its configuration is reached: learned from the trials so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.config import EngineConfig
from tuner.records import Dominated, Measured, TrialRecord

LIVE, WARM, COLD = "live", "warm", "cold"
#: Seconds to get an engine ready, before any was: an 8B model on an H200, vLLM 0.24.
PRIOR_S: Mapping[str, float] = {LIVE: 0.7, WARM: 20.0, COLD: 60.0}
#: Seconds of a trial's replays, before any was measured.
PRIOR_REPLAY_S = 30.0


@dataclass(slots=True)
class _Mean:
    """A running mean that starts from one made-up observation, which the first real one replaces.

    A prior that stays would keep a study on a CPU, where everything costs otherwise, wrong for
    long.
    """

    value: float
    n: int = 0

    def add(self, value: float) -> None:
        self.n += 1
        self.value += (value - self.value) / self.n


@dataclass(frozen=True, slots=True)
class Keys:
    """Hashes of a configuration: what one live engine can serve, and what shares compiled code."""

    cold: str
    compile: str


@dataclass(slots=True)
class Prices:
    """Seconds by temperature. ``hot``: a live engine changes them; ``warm``: same compile hash."""

    hot: Collection[str]
    warm: Collection[str] = ()
    _ready: dict[str, _Mean] = field(
        default_factory=lambda: {name: _Mean(s) for name, s in PRIOR_S.items()}
    )
    _replay: _Mean = field(default_factory=lambda: _Mean(PRIOR_REPLAY_S))
    _compiled: set[str] = field(default_factory=set)

    def learn(self, record: TrialRecord) -> None:
        """Take a finished trial's costs in, in the order of the trials."""
        cost = record.cost
        if cost.start_s > 0:
            keys = self.keys(record.config)
            self._ready[self.temperature(keys)].add(cost.start_s)
            if isinstance(record.outcome, Measured | Dominated):
                self._compiled.add(keys.compile)
        elif cost.reconfigure_s > 0:
            self._ready[LIVE].add(cost.reconfigure_s)
        if cost.replay_s > 0 and record.scores is not None:
            self._replay.add(cost.replay_s + cost.other_s)

    def keys(self, config: EngineConfig) -> Keys:
        """Return what decides how an engine gets to ``config``."""
        return Keys(config.cold_key(self.hot), config.cold_key({*self.hot, *self.warm}))

    def temperature(self, keys: Keys, live: Collection[str] = ()) -> str:
        """Return how an engine gets there while engines of the ``live`` cold keys idle."""
        if keys.cold in live:
            return LIVE
        return WARM if keys.compile in self._compiled else COLD

    def ready_s(self, temperature: str) -> float:
        """Return seconds until an engine is ready, that way.

        A way not gone yet is taken to be as much cheaper or dearer than the prior says as the
        dearest way gone is.
        """
        mean = self._ready[temperature]
        gone = [name for name in (COLD, WARM) if self._ready[name].n]
        if mean.n or not gone:
            return mean.value
        return mean.value * self._ready[gone[0]].value / PRIOR_S[gone[0]]

    @property
    def replay_s(self) -> float:
        """Seconds of a trial once its engine is ready."""
        return self._replay.value

    def trial_s(self, temperature: str) -> float:
        """Return the whole trial's seconds."""
        return self.ready_s(temperature) + self.replay_s

    def summary(self) -> dict[str, float]:
        """Return the price list: seconds to ready by temperature, and of the replays."""
        return {**{name: self.ready_s(name) for name in self._ready}, "replay": self.replay_s}


def priced(records: Sequence[TrialRecord], hot: Collection[str], warm: Collection[str]) -> Prices:
    """Return the price list that these trials teach."""
    prices = Prices(hot, warm)
    for record in records:
        prices.learn(record)
    return prices
