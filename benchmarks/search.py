"""Compares search strategies at equal GPU seconds: ``python benchmarks/search.py --seeds 20``.

Every trial is measured by the simulated engine and charged what it would cost on an H200: a start
that compiles, a start from the compile cache, a change of a live engine, and the replays as long as
they last. Hypervolumes are those of the true (noise-free) values of what was tried, as shares of
the best known one. What is done is kept below --folder, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import optuna
from search_curves import BUDGET_S, RANDOM, Curve, Step, against_random, curve, table
from search_machine import CASES, Case, Machine, Simulated, Truth

import tuner.strategies
from tuner.config import EngineConfig, digest
from tuner.objectives import Objective
from tuner.records import Cost, Infeasible, Measured, Measurement, TrialRecord
from tuner.store import Store
from tuner.strategies import Proposal, Search, Strategy
from tuner.strategies.plain import KnownGood
from tuner.strategies.table import STRATEGIES

Maker = Callable[[Store, Case, int], Strategy]


def search(row: Row, case: Case, truth: Truth, seed: int) -> Iterator[Step]:
    """Run one search until its GPU seconds are spent."""
    strategy = row.make(store_of(case.objectives), case, seed)
    machine, spent = Machine(case, row.keeps), 0.0
    while True:
        live = [machine.live] if row.keeps and machine.live else []
        proposal = strategy.ask(live)
        if proposal is None:
            return
        true = truth(proposal.config)
        start_s, change_s = machine.ready_s(proposal.config, true is not None)
        warm_up_s = case.prices.warm_up_s if true and start_s else 0.0
        cost = Cost(start_s, change_s, true.seconds if true else 0.0, warm_up_s, 1)
        spent += cost.total_s
        if spent > BUDGET_S:
            return
        told = noisy(proposal.config, true.scores, case, seed) if true else None
        strategy.tell(record(proposal, told or Infeasible("out_of_memory"), cost))
        yield Step(spent, true.scores if true else None)


def store_of(objectives: Sequence[Objective]) -> Store:
    """Return a store in memory."""
    directions = [objective.direction for objective in objectives]
    return Store(optuna.create_study(directions=directions), tuple(objectives), ())


def noisy(
    config: EngineConfig, true: tuple[float, float], case: Case, seed: int
) -> tuple[float, float]:
    """Return what one measurement says of true scores."""
    random = np.random.default_rng([seed, int(config.key, 16)])
    scores = np.array(true) * np.exp(random.normal(0.0, case.noise))
    return float(scores[0]), float(scores[1])


def record(proposal: Proposal, told: tuple[float, float] | Infeasible, cost: Cost) -> TrialRecord:
    """Return what a strategy is told."""
    parts = proposal.number, proposal.config, proposal.point
    if isinstance(told, Infeasible):
        return TrialRecord(*parts, told, cost=cost)
    return TrialRecord(*parts, Measured(Measurement({})), told, cost=cost)


class Grid:
    """The loops of vLLM's auto_tune: max_num_seqs, in it max_num_batched_tokens."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._left = [
            {"max_num_seqs": s, "max_num_batched_tokens": t}
            for s in case.seqs
            for t in case.space["max_num_batched_tokens"].domain.values()
            if t >= s
        ]
        self._asked = 0

    def ask(self, live: object = ()) -> Proposal | None:
        """Return the next pair; the default comes first, as for everyone."""
        number, self._asked = self._asked, self._asked + 1
        point = {} if number == 0 else self._left.pop(0) if self._left else None
        return None if point is None else Proposal(number, point, self._case.configured(point))

    def tell(self, record: TrialRecord) -> None:
        """Learn nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A strategy, whether its engines are kept between trials, and whether seeds matter."""

    make: Maker
    keeps: bool = True
    random: bool = True


def named(name: str, sampler: str = "tpe", keeps: bool = True) -> Row:
    """Return one of our strategies; one that does not keep engines takes every knob as cold."""

    def make(store: Store, case: Case, seed: int) -> Strategy:
        hot, warm = (case.hot, case.warm) if keeps else (frozenset(), frozenset())
        asked = Search(case.space, case.base, hot, warm, sampler, seed)
        strategy = STRATEGIES[name](store, asked)
        strategy.enqueue(KnownGood("baseline: vllm serve", case.default, case.default))
        return strategy

    return Row(make, keeps)


TPE = "TPE, a restart per trial"
ROWS: dict[str, Row] = {
    "priced": named("priced"),
    "ride-along": named("ride-along"),
    "staged": named("staged"),
    TPE: named("plain", keeps=False),
    RANDOM: named("plain", "random", keeps=False),
    "auto_tune's grid of two knobs": Row(
        lambda store, case, seed: Grid(case), keeps=False, random=False
    ),
}


def _sources() -> str:
    """Return a digest of the strategies' code: what was found by other code does not count."""
    files = sorted(Path(tuner.strategies.__file__).parent.glob("*.py"))
    return digest([f.read_text() for f in files if f.stem not in ("table", "expected")])


#: Of the code that runs: its files may change before the run ends.
SOURCES = _sources()


class Bench:
    """One case, and the curves known of it, which are kept in a folder."""

    def __init__(self, name: str, case: Case, truth: Truth, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.case, self.truth = name, case, truth
        default = truth(case.configured())
        assert default is not None
        self._default = default.scores
        self._path = folder / f"{name}-curves.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._known = {key: Curve(**fields) for key, fields in map(json.loads, lines)}

    def curve(self, row: str, seed: int) -> Curve:
        """Run a search, or return what the same code gave before."""
        key = digest([row, seed, str(self.case), BUDGET_S, SOURCES])
        if key not in self._known:
            gc.collect()
            gc.freeze()  # every replay collects garbage, which need not walk through all of this
            run = search(ROWS[row], self.case, self.truth, seed)
            self._known[key] = curve(run, self.case.volume, self._default)
            with self._path.open("a") as stream:
                stream.write(json.dumps([key, asdict(self._known[key])]) + "\n")
        return self._known[key]

    def best(self, curves: Mapping[str, Sequence[Curve]]) -> float:
        """Return the volume of all fronts found, and of the reference."""
        known = [scores for runs in curves.values() for run in runs for scores in run.front]
        found = filter(None, map(self.truth, self.truth.reference()))
        return self.case.volume([*known, *(true.scores for true in found)], self._default)

    def compared(self, rows: Sequence[str], seeds: int) -> str:
        """Run every row over the seeds; return the tables."""
        curves: dict[str, list[Curve]] = {row: [] for row in rows}
        for seed, row in itertools.product(range(seeds), rows):
            if ROWS[row].random or seed == 0:
                curves[row].append(self.curve(row, seed))
                print(f"{self.name}: {row}, seed {seed}", file=sys.stderr, flush=True)
        best = self.best(curves)
        head = f"{self.name}, {seeds} seeds"
        return "\n\n".join([head, table(curves, best), against_random(curves, best)])


def parsing(doc: str | None, folder: str) -> argparse.ArgumentParser:
    """Return a parser of what every comparison takes."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / folder)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return parser


def main(arguments: Sequence[str]) -> None:
    """Print the tables of each case."""
    parser = parsing(__doc__, "vllm-tuner-search")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    given = parser.parse_args(arguments)
    for name in given.cases:
        case, simulation = CASES[name]
        truth = Simulated(case, simulation, given.folder / f"{name}-truths.jsonl")
        bench = Bench(name, case, truth, given.folder)
        print(bench.compared(given.rows, given.seeds), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
