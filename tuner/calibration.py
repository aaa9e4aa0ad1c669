"""The memory model in a study: what it refuses before a start, and what real starts teach it.

Each measured trial keeps what was predicted of it (``Memory.noted``), so that the error is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tuner.config import EngineConfig, Json
from tuner.engines.keeping import to_start
from tuner.errors import EngineFault
from tuner.events import Event, TrialFinished
from tuner.memory import Demand, Forecast, forecast, solved_activation
from tuner.records import Cost, Infeasible, Measured, Outcome, TrialRecord

if TYPE_CHECKING:
    from tuner.engines.vllm_check import Verdict
    from tuner.store import Store

    Ask = Callable[[EngineConfig], Verdict]


@dataclass(slots=True)
class Memory:
    """Says what does not fit; as an observer of the study it learns from each first start.

    ``maxima``: hot arguments at the values that the engine of the search is started with (see
    ``to_start``): it has to fit, and so has the configuration alone. ``offsets``: key of a
    ``Demand`` -> bytes by which its true activations exceed the formula.
    """

    ask: Ask
    maxima: Mapping[str, Json] = field(default_factory=dict)
    store: Store | None = None
    offsets: dict[str, int] = field(default_factory=dict)

    def keep_in(self, store: Store) -> None:
        """Take over what an earlier run of the study learned, and keep there what is learned."""
        self.store = store
        self.knows(store.calibrations())

    def knows(self, stored: Mapping[str, Mapping[str, Json]]) -> None:
        """Take over calibrations as they are stored."""
        self.offsets.update({key: int(found["offset_bytes"]) for key, found in stored.items()})

    def forecast(self, demand: Demand | None) -> Forecast | None:
        """Predict a start, with what was learned; None where nothing can be said."""
        return None if demand is None else forecast(demand, self.offsets.get(demand.key))

    def refusal(self, config: EngineConfig, verdict: Verdict) -> Infeasible | None:
        """Return why this configuration, or the engine that is to serve it live, does not fit."""
        alone = self.forecast(verdict.demand)
        if alone is None:
            return None
        if not alone.possible:
            return Infeasible("out_of_memory", f"predicted: {alone.detail}")
        started = self._started(config)
        together = alone if started == config else self.forecast(self.ask(started).demand)
        if together is None or together.possible:
            return None
        raised = {k: v for k, v in started.args.items() if config.args.get(k) != v}
        how = f"started with {_listed(raised)}, for live changes"
        return Infeasible("out_of_memory", f"predicted: {together.detail} ({how})")

    def noted(self, config: EngineConfig, outcome: Outcome, cost: Cost) -> Outcome:
        """Return a trial's outcome with the tokens of KV cache that were predicted of it.

        Among its facts as ``kv_forecast``: ``started`` of the engine that the trial started,
        ``alone`` of one that is started with just this configuration, as it is confirmed. Each is
        (by the formula, calibrated or None). Absent where the cache is not what memory leaves.
        """
        if not isinstance(outcome, Measured):
            return outcome
        measurement = outcome.measurement
        try:
            begun, alone = self._begun(config, measurement.facts, cost), self.ask(config).demand
        except EngineFault:  # the check died; what was measured is not lost for that
            return outcome
        demands = {"started": begun, "alone": alone}
        said = {k: self._both(d) for k, d in demands.items() if d is not None and _left_over(d)}
        if not said:
            return outcome
        facts = {**measurement.facts, "kv_forecast": said}
        return Measured(replace(measurement, facts=facts))

    def _both(self, demand: Demand) -> list[int | None]:
        offset = self.offsets.get(demand.key)
        calibrated = None if offset is None else forecast(demand, offset).kv_tokens
        return [forecast(demand).kv_tokens, calibrated]

    def on_event(self, event: Event) -> None:
        """Learn from a trial that started an engine, if nothing is known of its kind yet."""
        if isinstance(event, TrialFinished) and isinstance(event.record.outcome, Measured):
            self._learn(event.record, event.record.outcome.measurement.facts)

    def _learn(self, record: TrialRecord, facts: Mapping[str, Any]) -> None:
        tokens, demand = (
            facts.get("kv_cache_tokens"),
            self._begun(record.config, facts, record.cost),
        )
        if demand is None or not isinstance(tokens, int) or not _left_over(demand):
            return
        if demand.key in self.offsets:
            return
        activation = solved_activation(demand, tokens)
        offset = activation - demand.activation_bytes
        self.offsets[demand.key] = offset
        if self.store is not None:
            found = {
                "offset_bytes": offset,
                "activation_bytes": activation,
                "predicted_kv_tokens": forecast(demand).kv_tokens,
                "kv_tokens": tokens,
                "trial": record.number,
            }
            self.store.calibrate(demand.key, found)

    def _begun(self, config: EngineConfig, facts: Mapping[str, Any], cost: Cost) -> Demand | None:
        """Return what the engine that a trial started asked for; None where it started none.

        Its pool is as large as if it had been started at the trial's own share of the memory, to
        which it was cut live.
        """
        live = facts.get("live") or {}
        if cost.start_s <= 0 or live.get("reused"):
            return None
        asked = self.ask(config).demand
        if not live or live.get("refused"):  # it was started as it was asked for
            return asked
        demand = self.ask(self._started(config)).demand
        if demand is None or asked is None:
            return None
        return replace(demand, utilization=asked.utilization, blocks=asked.blocks)

    def _started(self, config: EngineConfig) -> EngineConfig:
        return to_start(config, self.maxima, self.maxima)


def _left_over(demand: Demand) -> bool:
    """Whether the KV cache is what memory leaves, and was not set outright."""
    return demand.total_bytes > 0 and demand.kv_bytes is None and demand.blocks is None


def _listed(arguments: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(arguments.items()))
