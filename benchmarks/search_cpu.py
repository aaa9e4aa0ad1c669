"""Compares search strategies on the real CPU engine: ``python benchmarks/search_cpu.py``.

The quickstart study (a tiny model, its space, the head of its chat workload) is searched for equal
wall seconds, each run in a folder of its own, without early ends and without a confirmation. "A
restart per trial" keeps no engine. Scores are as measured, noise and all; volumes are shares of
what all runs together found. Runs are kept below --folder and not made again by the same code.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from search import RANDOM, SOURCES, TPE, Curve, Step, curve
from search_machine import CASES

from tuner.beforehand import checking, known_good, refusing, temperatures
from tuner.config import digest
from tuner.events import Event, StudyStarted, TrialFinished
from tuner.runner import Parts, make_loop, make_store, searching
from tuner.runner_pool import make_pool
from tuner.strategies.table import STRATEGIES
from tuner.study import StudySpec, load_study
from tuner.surroundings import Surroundings

STUDY = Path(__file__).parent.parent / "studies" / "quickstart.yaml"
#: Requests of the workload: a saturated and a paced replay of so many take 7.6 s on two free cores.
HEAD = 60
#: Shares of the budget at which the volumes are told.
MARKS = (0.25, 0.5, 0.75, 1.0)
#: Of this case only the volume is used: up to half the default's throughput, twice its latency.
CASE = CASES["chat"]


@dataclass(frozen=True, slots=True)
class Row:
    """A strategy of ours, the sampler behind it, and whether engines are kept between trials."""

    strategy: str
    sampler: str = "tpe"
    keeps: bool = True


ROWS = {
    "priced": Row("priced"),
    "ride-along": Row("ride-along"),
    TPE: Row("plain", keeps=False),
    RANDOM: Row("plain", "random", keeps=False),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one run left: trials that ended within the budget, and the load of the machine."""

    strategy: str
    #: Wall seconds since the first proposal, and scores; None where there are no valid ones.
    steps: Sequence[tuple[float, Sequence[float] | None]]
    #: Scores of vLLM's defaults, which come first; None where they never gave any.
    default: Sequence[float] | None
    starts: int
    changes: int
    #: Processes that ran or waited for a core, mean of the last minute: at the begin, at the end.
    load: tuple[float, float]

    def curve(self, default: Sequence[float]) -> Curve:
        """Return the volume over wall seconds."""
        steps = (Step(at, tuple(s) if s else None) for at, s in self.steps)  # type: ignore[arg-type]
        return curve(steps, CASE, default)


@dataclass(slots=True)
class Watch:
    """Notes when each trial ended."""

    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    ended: list[tuple[float, TrialFinished]] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
        match event:
            case StudyStarted():
                self.began = self.clock()
            case TrialFinished():
                self.ended.append((self.clock() - self.began, event))
            case _:
                pass


def study(row: Row, seconds: float, seed: int) -> StudySpec:
    """Return the quickstart study as one run needs it."""
    strategy = {"name": row.strategy, "sampler": row.sampler, "seed": seed}
    return load_study(
        STUDY,
        [
            f"strategy={json.dumps(strategy)}",
            f"budget={json.dumps({'minutes': seconds / 60})}",
            f"workload.transforms={json.dumps([{'head': HEAD}])}",
        ],
    )


def searched(name: str, seconds: float, seed: int, folder: Path) -> Run:
    """Run one search on real engines."""
    row, watch, before = ROWS[name], Watch(), os.getloadavg()[0]
    spec = study(row, seconds, seed)
    workload, around = spec.workload(), Surroundings(folder, [watch])
    with contextlib.ExitStack() as stack:
        checker = stack.enter_context(checking(spec, around.cache))
        assert checker is not None, "the study runs on real engines"
        warmth = temperatures(spec, checker)
        if not row.keeps:
            warmth = dict.fromkeys(warmth, "cold")
        store = make_store(spec, folder, spec.name)
        strategy = STRATEGIES[row.strategy](store, searching(spec, warmth))
        strategy.enqueue(known_good(spec, checker, workload)[0])
        pool = stack.enter_context(make_pool(spec, around, spec.engine.kind, warmth))
        parts = Parts(store, strategy, pool, refusing(checker, workload), spec.budget)
        make_loop(spec, around, parts, workload, folder).run()
    within = [(at, event.record) for at, event in watch.ended if at <= seconds]
    return Run(
        name,
        [(round(at, 2), record.scores if record.feasible else None) for at, record in within],
        next(
            (record.scores for _, record in within if record.config.label and record.scores), None
        ),
        sum(record.cost.start_s > 0 for _, record in within),
        sum(record.cost.reconfigure_s > 0 for _, record in within),
        (before, os.getloadavg()[0]),
    )


class Known:
    """Runs that are kept in a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._path = folder / "runs.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._runs = {key: Run(**fields) for key, fields in map(json.loads, lines)}

    def run(self, name: str, seconds: float, seed: int) -> Run:
        """Return a run, made now unless it was before."""
        key = digest([name, seconds, seed, HEAD, SOURCES])
        if key not in self._runs:
            place = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=self._folder))
            self._runs[key] = searched(name, seconds, seed, place)
            with self._path.open("a") as stream:
                stream.write(json.dumps([key, asdict(self._runs[key])]) + "\n")
        return self._runs[key]


def table(runs: Mapping[str, Sequence[Run]], seconds: float) -> str:
    """Return the comparison as a Markdown table: medians over the repetitions."""
    flat = [run for those in runs.values() for run in those]
    defaults = [run.default for run in flat if run.default]
    if not defaults:
        return "vLLM's defaults gave no result in any run"
    default = np.median(defaults, axis=0).tolist()
    curves = {name: [run.curve(default) for run in those] for name, those in runs.items()}
    each = [one for those in curves.values() for one in those]
    union = CASE.volume([scores for one in each for scores in one.front], default)
    best = max(one.at(seconds) for one in each)
    if not best:
        return "no run found anything within half the throughput and twice the latency of defaults"
    marks = [f"at {mark * seconds:g} s" for mark in MARKS]
    head = ["strategy", "trials", "starts", "live changes", *marks, "s to 95 % of the best", "load"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, those in runs.items():
        counts = [[len(run.steps), run.starts, run.changes] for run in those]
        cells = [name, *(f"{count:g}" for count in np.median(counts, axis=0))]
        for mark in MARKS:
            cells.append(f"{np.median([c.at(mark * seconds) / union for c in curves[name]]):.2f}")
        reached = float(np.median([c.reaches(0.95 * best) for c in curves[name]]))
        cells.append(f"{reached:.0f}" if reached < float("inf") else "-")
        loads = [load for run in those for load in run.load]
        cells.append(f"{min(loads):.1f} to {max(loads):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def order(names: Sequence[str], repetitions: int) -> Iterator[tuple[int, str]]:
    """Give each repetition's strategies, from another one on each time: a machine drifts."""
    for seed, shift in itertools.product(range(repetitions), range(len(names))):
        yield seed, names[(seed + shift) % len(names)]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="wall seconds of one run")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--strategies", nargs="*", choices=list(ROWS), default=list(ROWS))
    folder = Path(tempfile.gettempdir()) / "vllm-tuner-search-cpu"
    parser.add_argument("--folder", type=Path, default=folder)
    given = parser.parse_args(arguments)
    known = Known(given.folder)
    runs: dict[str, list[Run]] = {name: [] for name in given.strategies}
    for seed, name in order(given.strategies, given.repetitions):
        runs[name].append(known.run(name, given.seconds, seed))
        print(f"{name}, repetition {seed}", file=sys.stderr, flush=True)
    print(f"{given.repetitions} x {given.seconds:g} s each, {HEAD} requests", end="\n\n")
    print(table(runs, given.seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
