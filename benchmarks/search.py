"""Compares search strategies at equal GPU seconds: ``python benchmarks/search.py --seeds 20``.

Every trial is measured by the simulated engine and charged what it would cost on an H200: a start
that compiles, a start from the compile cache, a change of a live engine, and the replays as long as
they last. Hypervolumes are those of the true (noise-free) values of what was tried.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from search_machine import BASE, COLD_S, DEFAULT, METRICS, SPACE, WARM_UP_S, Machine, Truth

from tuner import pareto
from tuner.config import Json
from tuner.engines.simulated_costs import HOT
from tuner.objectives import Objective
from tuner.records import Cost, Infeasible, Measured, Measurement, TrialRecord
from tuner.store import Store
from tuner.strategies import Proposal, Search, Strategy
from tuner.strategies.plain import KnownGood, Plain
from tuner.strategies.table import STRATEGIES

#: GPU seconds of one search.
BUDGET_S = 5400.0
#: Relative spread of one measurement: throughput, P99 latency.
NOISE = (0.02, 0.05)

#: What auto_tune's loops and the best known front try of max_num_seqs.
SEQS = (16, 32, 64, 128, 256, 512, 1024)
Maker = Callable[[Store, int], Strategy]
#: True scores in the order of the objectives, and the replays' seconds; None where it cannot run.
True_ = list[float] | None


@dataclass(frozen=True, slots=True)
class Goal:
    """Throughput up, one latency down; what is known of every configuration stands in ``truth``."""

    truth: Truth
    latency: str

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return Objective(METRICS[0], True), Objective(self.latency, False)

    def scores(self, known: Sequence[float]) -> tuple[float, float]:
        """Return the objectives' values of a truth."""
        return known[0], known[METRICS.index(self.latency)]

    def volume(self, known: Sequence[Sequence[float]]) -> float:
        """Return the hypervolume up to half the default's throughput and twice its latency."""
        default = self.truth(BASE.with_args(DEFAULT))
        assert default is not None
        base = self.scores(default)
        relative = [[s / d for s, d in zip(self.scores(k), base, strict=True)] for k in known]
        if not relative:
            return 0.0
        return pareto.hypervolume(pareto.oriented(relative, [True, False]), (-0.5, 2.0))


def search(make: Maker, keeps: bool, goal: Goal, seed: int) -> Iterator[tuple[float, True_]]:
    """Run one search; yield GPU seconds spent and the truth after every trial."""
    directions = [objective.direction for objective in goal.objectives]
    store = Store(optuna.create_study(directions=directions), goal.objectives, ())
    strategy, machine, spent = make(store, seed), Machine(keeps), 0.0
    while spent < BUDGET_S:
        live = [machine.live] if keeps and machine.live else []
        proposal = strategy.ask(live)
        if proposal is None:
            return
        true = goal.truth(proposal.config)
        start_s, change_s = machine.ready_s(proposal.config, true is not None)
        replay_s, other_s = (true[-1], WARM_UP_S * (start_s > 0)) if true else (0.0, 0.0)
        cost = Cost(start_s, change_s, replay_s, other_s, 1)
        spent += cost.total_s
        strategy.tell(_record(proposal, goal.scores(true) if true else None, cost, seed))
        if spent <= BUDGET_S:
            yield spent, true


def _record(
    proposal: Proposal, true: tuple[float, float] | None, cost: Cost, seed: int
) -> TrialRecord:
    parts = proposal.number, proposal.config, proposal.point
    if true is None:
        return TrialRecord(*parts, Infeasible("out_of_memory"), cost=cost)
    random = np.random.default_rng([seed, int(proposal.config.key, 16)])
    noisy = np.array(true) * np.exp(random.normal(0.0, NOISE))
    scores = float(noisy[0]), float(noisy[1])
    return TrialRecord(*parts, Measured(Measurement({})), scores, cost=cost)


class Grid:
    """The loops of vLLM's auto_tune: max_num_seqs, in it max_num_batched_tokens."""

    def __init__(self) -> None:
        self._left = [
            {"max_num_seqs": s, "max_num_batched_tokens": t}
            for s in SEQS
            for t in SPACE["max_num_batched_tokens"].domain.values()
            if t >= s
        ]
        self._asked = 0

    def ask(self, live: object = ()) -> Proposal | None:
        """Return the next pair; the default comes first, as for everyone."""
        number, self._asked = self._asked, self._asked + 1
        point = {} if number == 0 else self._left.pop(0) if self._left else None
        if point is None:
            return None
        return Proposal(number, point, BASE.with_args({**DEFAULT, **point}))

    def tell(self, record: TrialRecord) -> None:
        """Learn nothing."""


def _ours(name: str, sampler: str = "tpe", hot: frozenset[str] = HOT, **options: Json) -> Maker:
    def make(store: Store, seed: int) -> Plain:
        named = hot & frozenset(SPACE.names)
        asked = Search(
            SPACE,
            BASE,
            named,
            frozenset({"gpu_memory_utilization"}) if hot else frozenset(),
            sampler,
            seed,
        )
        strategy = STRATEGIES[name](store, asked, **options)
        strategy.enqueue(KnownGood("baseline: vllm serve", DEFAULT, DEFAULT))
        return strategy

    return make


RANDOM, GRID = "random, a restart per trial", "auto_tune's grid of two knobs"
#: Row -> (strategy, whether engines are kept between trials).
ROWS: dict[str, tuple[Maker, bool]] = {
    "priced": (_ours("priced"), True),
    "ride-along": (_ours("ride-along"), True),
    "staged": (_ours("staged"), True),
    "TPE, a restart per trial": (_ours("plain", hot=frozenset()), False),
    RANDOM: (_ours("plain", "random", frozenset()), False),
    GRID: (lambda store, seed: Grid(), False),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """The true hypervolume over GPU seconds of one search, as a step function."""

    seconds: list[float]
    volume: list[float]

    def at(self, spent: float) -> float:
        """Return the volume after so many GPU seconds."""
        n = int(np.searchsorted(self.seconds, spent, side="right"))
        return self.volume[n - 1] if n else 0.0

    def reaches(self, volume: float) -> float:
        """Return the GPU seconds until a volume is reached, inf where it is not."""
        hit = [s for s, v in zip(self.seconds, self.volume, strict=True) if v >= volume]
        return hit[0] if hit else float("inf")


def curve(run: Iterator[tuple[float, True_]], goal: Goal) -> Curve:
    """Follow a search."""
    known: list[list[float]] = []
    seconds, volumes = [], []
    for spent, true in run:
        known += [true] if true is not None else []
        seconds.append(spent)
        volumes.append(goal.volume(known))
    return Curve(seconds, volumes)


def best_known(goal: Goal) -> float:
    """Return the volume of all that is known, and of every hot setting where all else is best."""
    hot = {name: list(SPACE[name].domain.values()) for name in SPACE.names if name in HOT}
    hot["max_num_seqs"] = list(SEQS)
    best = {**DEFAULT, "quantization": "fp8", "kv_cache_dtype": "fp8"}
    for values in itertools.product(*hot.values()):
        point = dict(zip(hot, values, strict=True))
        if point["enable_prefix_caching"]:
            for size in SPACE["block_size"].domain.values():
                goal.truth(BASE.with_args({**best, **point, "block_size": size}))
    return goal.volume([true for true in goal.truth.known.values() if true is not None])


def table(curves: Mapping[str, Sequence[Curve]], best: float) -> str:
    """Return the comparison as a Markdown table; volumes are shares of the best known one."""
    lines = [
        "| strategy | trials | s to 90 % | s to 95 % | at 1/3 | at 2/3 | at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in curves.items():
        cells = [name, f"{np.median([len(run.seconds) for run in runs]):.0f}"]
        for share in (0.90, 0.95):
            reached = np.array([run.reaches(share * best) for run in runs])
            middle = float(np.median(reached))
            text = f"{middle:.0f}" if np.isfinite(middle) else "-"
            cells.append(f"{text} ({np.isfinite(reached).mean():.0%})")
        for part in (1 / 3, 2 / 3, 1.0):
            volumes = np.array([run.at(part * BUDGET_S) / best for run in runs])
            error = volumes.std() / max(len(runs) - 1, 1) ** 0.5
            cells.append(f"{volumes.mean():.3f} ± {error:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def against_random(curves: Mapping[str, Sequence[Curve]], best: float) -> str:
    """Return, per row, the least lead of its mean volume over random's at equal GPU seconds."""
    times = np.linspace(COLD_S * 2, BUDGET_S, 100)
    means = {
        name: np.mean([[run.at(t) / best for t in times] for run in runs], axis=0)
        for name, runs in curves.items()
    }
    base = means.get(RANDOM)
    if base is None:
        return ""
    leads = [f"{name} {(mean - base).min():+.3f}" for name, mean in means.items() if name != RANDOM]
    return "Least lead over random at any time: " + "; ".join(leads)


def main(arguments: Sequence[str]) -> None:
    """Run every row over the seeds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--latency", choices=METRICS[1:], default=METRICS[1])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "search.jsonl")
    given = parser.parse_args(arguments)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    goal = Goal(Truth(given.cache).load(), given.latency)
    curves: dict[str, list[Curve]] = {name: [] for name in given.rows}
    for seed, name in itertools.product(range(given.seeds), given.rows):
        if name == GRID and seed:
            continue  # nothing in it is random
        make, keeps = ROWS[name]
        found = curve(search(make, keeps, goal, seed), goal)
        curves[name].append(found)
        volumes = (f"{found.at(BUDGET_S * part):.3f}" for part in (1 / 3, 2 / 3, 1))
        print(seed, name, *volumes, file=sys.stderr, flush=True)
    best = best_known(goal)
    print(table(curves, best), against_random(curves, best), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
