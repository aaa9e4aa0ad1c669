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
from search_machine import BASE, CASES, DEFAULT, WARM, WARM_UP_S, Case, Machine, Truth
from search_machine import default_config as configured

import tuner.strategies
from tuner import pareto
from tuner.config import digest
from tuner.objectives import Objective
from tuner.records import Cost, Infeasible, Measured, Measurement, TrialRecord
from tuner.store import Store
from tuner.strategies import Proposal, Search, Strategy
from tuner.strategies.plain import KnownGood
from tuner.strategies.table import STRATEGIES

#: GPU seconds of one search, and those at which the volumes are told.
BUDGET_S = 3600.0
MARKS_S = (300, 600, 1200, 2400, 3600)
#: Relative spread of one measurement: throughput, P99 latency.
NOISE = (0.02, 0.05)

Maker = Callable[[Store, Case, int], Strategy]


@dataclass(frozen=True, slots=True)
class Step:
    """GPU seconds spent after a trial, and its true scores; none where it cannot run."""

    spent_s: float
    scores: tuple[float, float] | None


def search(row: Row, case: Case, truth: Truth, seed: int) -> Iterator[Step]:
    """Run one search until its GPU seconds are spent."""
    strategy = row.make(store_of(case.objectives), case, seed)
    machine, spent = Machine(row.keeps), 0.0
    while True:
        live = [machine.live] if row.keeps and machine.live else []
        proposal = strategy.ask(live)
        if proposal is None:
            return
        true = truth(proposal.config)
        start_s, change_s = machine.ready_s(proposal.config, true is not None)
        replay_s, other_s = (true[-1], WARM_UP_S * (start_s > 0)) if true else (0.0, 0.0)
        cost = Cost(start_s, change_s, replay_s, other_s, 1)
        spent += cost.total_s
        if spent > BUDGET_S:
            return
        scores = case.scores(true) if true else None
        told = scores or Infeasible("out_of_memory")
        strategy.tell(record(proposal, told, cost, seed))
        yield Step(spent, scores)


def store_of(objectives: Sequence[Objective]) -> Store:
    """Return a store in memory."""
    directions = [objective.direction for objective in objectives]
    return Store(optuna.create_study(directions=directions), tuple(objectives), ())


def record(
    proposal: Proposal, true: tuple[float, float] | Infeasible, cost: Cost, seed: int
) -> TrialRecord:
    """Return what a strategy is told: scores with noise."""
    parts = proposal.number, proposal.config, proposal.point
    if isinstance(true, Infeasible):
        return TrialRecord(*parts, true, cost=cost)
    random = np.random.default_rng([seed, int(proposal.config.key, 16)])
    noisy = np.array(true) * np.exp(random.normal(0.0, NOISE))
    scores = float(noisy[0]), float(noisy[1])
    return TrialRecord(*parts, Measured(Measurement({})), scores, cost=cost)


class Grid:
    """The loops of vLLM's auto_tune: max_num_seqs, in it max_num_batched_tokens."""

    def __init__(self, case: Case) -> None:
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
        return None if point is None else Proposal(number, point, configured(point))

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
        hot, warm = (case.hot, WARM & {*case.space.names}) if keeps else (frozenset(), frozenset())
        asked = Search(case.space, BASE, hot, warm, sampler, seed)
        strategy = STRATEGIES[name](store, asked)
        strategy.enqueue(KnownGood("baseline: vllm serve", DEFAULT, DEFAULT))
        return strategy

    return Row(make, keeps)


TPE, RANDOM = "TPE, a restart per trial", "random, a restart per trial"
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


@dataclass(frozen=True, slots=True)
class Curve:
    """The true hypervolume over GPU seconds of one search, as a step function."""

    seconds: Sequence[float]
    volume: Sequence[float]
    #: True scores of the trials that no other one dominates.
    front: Sequence[Sequence[float]]

    def at(self, spent: float) -> float:
        """Return the volume after so many GPU seconds."""
        n = int(np.searchsorted(self.seconds, spent, side="right"))
        return self.volume[n - 1] if n else 0.0

    def reaches(self, volume: float) -> float:
        """Return the GPU seconds until a volume is reached, inf where it is not."""
        hit = [s for s, v in zip(self.seconds, self.volume, strict=True) if v >= volume]
        return hit[0] if hit else float("inf")


def curve(run: Iterator[Step], case: Case, default: Sequence[float]) -> Curve:
    """Follow a search."""
    front: list[tuple[float, float]] = []
    seconds, volumes = [], []
    for step in run:
        if step.scores is not None:
            front.append(step.scores)
            keep = pareto.non_dominated(pareto.oriented(front, [True, False]))
            front = [scores for scores, stays in zip(front, keep, strict=True) if stays]
        seconds.append(round(step.spent_s, 2))
        volumes.append(case.volume(front, default))
    return Curve(seconds, volumes, front)


def _sources() -> str:
    """Return a digest of the strategies' code: what was found by other code does not count."""
    files = sorted(Path(tuner.strategies.__file__).parent.glob("*.py"))
    return digest([f.read_text() for f in files if f.stem not in ("table", "expected")])


#: Of the code that runs: its files may change before the run ends.
SOURCES = _sources()


class Bench:
    """One case, and what is known of it: truths and curves, both kept in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.case = CASES[name]
        self.truth = Truth(self.case, folder / f"{name}-truths.jsonl")
        default = self.truth(configured())
        assert default is not None
        self._default = self.case.scores(default)
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
            self._known[key] = curve(run, self.case, self._default)
            with self._path.open("a") as stream:
                stream.write(json.dumps([key, asdict(self._known[key])]) + "\n")
        return self._known[key]

    def best(self, curves: Mapping[str, Sequence[Curve]]) -> float:
        """Return the volume of all fronts found, and of every hot setting on the best engine."""
        known = [scores for runs in curves.values() for run in runs for scores in run.front]
        space = self.case.space
        hot = {name: list(space[name].domain.values()) for name in sorted(self.case.hot)}
        hot["max_num_seqs"] = list(self.case.seqs)
        for values in itertools.product(*hot.values()):
            point = dict(zip(hot, values, strict=True))
            true = self.truth(configured({**self.case.best, **point}))
            known += [self.case.scores(true)] if true else []
        return self.case.volume(known, self._default)


def table(curves: Mapping[str, Sequence[Curve]], best: float) -> str:
    """Return the comparison as a Markdown table; volumes are shares of the best known one."""
    marks = [f"at {mark} s" for mark in MARKS_S]
    head = ["strategy", "trials", "s to 90 %", "s to 95 %", *marks]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in curves.items():
        cells = [name, f"{np.median([len(run.seconds) for run in runs]):.0f}"]
        cells += [_quartiles([run.reaches(share * best) for run in runs]) for share in (0.9, 0.95)]
        for mark in MARKS_S:
            cells.append(f"{np.median([run.at(mark) / best for run in runs]):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _quartiles(values: Sequence[float]) -> str:
    """Return the median with the quartiles; values that are not reached are the largest."""
    picked = np.percentile(np.minimum(values, 1e9), (50, 25, 75), method="nearest")
    middle, low, high = (f"{v:.0f}" if v < 1e9 else "-" for v in picked)
    return f"{middle} ({low} to {high})" if middle != "-" else f"- ({low} to -)"


def against_random(curves: Mapping[str, Sequence[Curve]], best: float) -> str:
    """Return, per row, the least lead of its mean volume over random's at equal GPU seconds.

    From the moment on at which every search has its first result.
    """
    first = max(run.seconds[0] for runs in curves.values() for run in runs)
    times = np.arange(first, BUDGET_S, 10.0)
    means = {
        name: np.mean([[run.at(t) / best for t in times] for run in runs], axis=0)
        for name, runs in curves.items()
    }
    base = means.get(RANDOM)
    if base is None:
        return ""
    leads = [
        f"{name} {(mean - base).min():+.3f} at {times[(mean - base).argmin()]:.0f} s"
        for name, mean in means.items()
        if name != RANDOM
    ]
    return "Least lead of the mean volume over random's at any time: " + "; ".join(leads) + "."


def main(arguments: Sequence[str]) -> None:
    """Run every row over the seeds, print one table per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    folder = Path(tempfile.gettempdir()) / "vllm-tuner-search"
    parser.add_argument("--folder", type=Path, default=folder)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    for name in given.cases:
        bench = Bench(name, given.folder)
        curves: dict[str, list[Curve]] = {row: [] for row in given.rows}
        for seed, row in itertools.product(range(given.seeds), given.rows):
            if ROWS[row].random or seed == 0:
                curves[row].append(bench.curve(row, seed))
                print(f"{name}: {row}, seed {seed}", file=sys.stderr, flush=True)
        best = bench.best(curves)
        print(f"{name}, {given.seeds} seeds", table(curves, best), sep="\n\n", end="\n\n")
        print(against_random(curves, best), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
