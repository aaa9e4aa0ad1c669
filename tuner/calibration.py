"""The memory model in a study: what it refuses before a start, and what real starts teach it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tuner.config import EngineConfig, Json
from tuner.engines.live.ceiling import ceiling
from tuner.events import Event, TrialFinished
from tuner.memory import Demand, Forecast, forecast, solved_activation
from tuner.records import Infeasible, Measured, TrialRecord

if TYPE_CHECKING:
    from tuner.engines.vllm_check import Verdict
    from tuner.store import Store

    Ask = Callable[[EngineConfig], Verdict]


@dataclass(slots=True)
class Memory:
    """Says what does not fit; as an observer of the study it learns from each first start.

    ``maxima``: hot arguments at the values that the engine of the search is started with (see
    ``ceiling``): it has to fit, and so has the configuration alone. ``offsets``: key of a
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

    def on_event(self, event: Event) -> None:
        """Learn from a trial that started an engine, if nothing is known of its kind yet."""
        if isinstance(event, TrialFinished) and isinstance(event.record.outcome, Measured):
            self._learn(event.record, event.record.outcome.measurement.facts)

    def _learn(self, record: TrialRecord, facts: Mapping[str, Any]) -> None:
        tokens, live = facts.get("kv_cache_tokens"), facts.get("live") or {}
        if not isinstance(tokens, int) or record.cost.start_s <= 0 or live.get("reused"):
            return
        asked = self.ask(record.config).demand
        refused = bool(live.get("refused"))  # then it was started as it was asked for
        demand = asked if refused else self.ask(self._started(record.config)).demand
        if demand is None or asked is None or not _teaches(demand, asked):
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

    def _started(self, config: EngineConfig) -> EngineConfig:
        if not self.maxima:
            return config
        return replace(config, args=ceiling(config.args, self.maxima))


def _teaches(demand: Demand, asked: Demand) -> bool:
    """Whether a start's KV cache is what memory left, and was not made smaller live."""
    outright = (demand.kv_bytes, demand.blocks, asked.blocks)
    return (
        demand.total_bytes > 0
        and demand.utilization == asked.utilization
        and all(value is None for value in outright)
    )


def _listed(arguments: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(arguments.items()))
