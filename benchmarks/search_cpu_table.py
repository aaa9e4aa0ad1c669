"""Measures what ``search_cpu.py`` searches: every point of a small space, on real engines.

The points of ``search_cpu.yaml`` go through the tuner's own path (pool, launcher, evaluate): one
engine for each cold key, changed live to its hot points, in rounds whose order turns. What a folder
holds is not measured again, so that it can be done in pieces. Each trial adds a row to the table.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from tuner import machine
from tuner.again import Again, measure_again
from tuner.beforehand import at, checking, known_good, temperatures
from tuner.config import EngineConfig, Json
from tuner.events import Event, TrialFinished
from tuner.records import Measured, TrialRecord
from tuner.study import StudySpec
from tuner.surroundings import Surroundings
from tuner.tune import StopRequest


@dataclass(slots=True)
class Watch:
    """Adds a row for each trial, and stops the piece in time."""

    rows: Path
    names: Sequence[str]
    until: float
    stop: StopRequest = field(default_factory=StopRequest)
    clock: Callable[[], float] = time.monotonic

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
        if isinstance(event, TrialFinished):
            row = pd.DataFrame([self._row(event.record)])
            row.to_csv(self.rows, mode="a", header=not self.rows.exists(), index=False)
            self.stop.requested |= self.clock() > self.until

    def _row(self, record: TrialRecord) -> dict[str, Json]:
        outcome, cost = record.outcome, record.cost
        facts = outcome.measurement.facts if isinstance(outcome, Measured) else {}
        started = cost.start_s > 0
        # A process imports vLLM once, however many engines it starts.
        imported_s = facts.get("start", {}).get("import_s", 0.0) if started else 0.0
        scores = record.scores or (None, None)
        return {
            "round": record.point["repeat"],
            **{name: record.config.args[name] for name in self.names},
            "output_tokens_per_s": scores[0],
            "latency_s": scores[1],
            "start_s": round(cost.start_s - imported_s, 3),
            "import_s": round(imported_s, 3),
            "compiled": facts.get("compile", {}).get("how", "") if started else "",
            "change_s": round(cost.reconfigure_s, 3),
            "replay_s": round(cost.replay_s, 3),
            "other_s": round(cost.other_s, 3),
            "load": round(os.getloadavg()[0], 2),
            "ended": time.strftime("%F %T"),
            "problem": getattr(outcome, "reason", ""),
        }


def ordered(spec: StudySpec, hot: frozenset[str]) -> list[EngineConfig]:
    """Return the space's points, those of a cold key together, each lot in an order of its own."""
    configs = [spec.config(point) for point in spec.space.points()]
    np.random.default_rng(0).shuffle(configs)
    return sorted(configs, key=lambda config: config.cold_key(hot))


def measure(spec: StudySpec, folder: Path, rows: Path, rounds: int, minutes: float) -> bool:
    """Measure what is missing, for so many minutes; return whether that is all there is.

    Beside the rows a file of the same name says on what they were measured, and what the installed
    vLLM says of the space: its own values, and what a live engine changes.
    """
    around, workload = Surroundings(folder, cache=folder / "cache"), spec.workload()
    with checking(spec, around.cache) as checker:
        assert checker is not None, "the study runs on real engines"
        warmth = temperatures(spec, checker)
        effective = known_good(spec, checker, workload)[0].effective
    facts = {
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "default": {name: effective[name] for name in spec.space.names},
        "temperatures": warmth,
    }
    rows.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    watch = Watch(rows, spec.space.names, time.monotonic() + 60 * minutes)
    points = list(enumerate(ordered(spec, at(warmth, "hot"))))
    again = Again("table", points, rounds, workload, "vllm", "table", warmth)
    measure_again(spec, replace(around, observers=[watch], stop=watch.stop), again)
    return not watch.stop.requested
