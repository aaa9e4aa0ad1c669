"""What strategies learn from failed starts: ``python benchmarks/feasibility.py --seeds 20``.

The chat space of ``search.py`` with constraints that show at the launch only: memory beside
gpu_memory_utilization, and a block size that no attention backend takes with an fp8 KV cache.
Scores are closed forms of the simulated engine's cost model, so that a search takes seconds.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import optuna
from search import ROWS, noisy, record, store_of
from search_machine import CASES, Machine

from tuner.config import EngineConfig, Json
from tuner.engines.simulated_costs import DEFAULTS, SimulatedCosts
from tuner.knobs import Point
from tuner.records import Cost, Infeasible
from tuner.strategies import Strategy
from tuner.strategies.candidates import draw

TRIALS = 40
CASE, _ = CASES["chat"]
COSTS = SimulatedCosts()
#: KV tokens of a running sequence, and seconds of a trial's replays.
CONTEXT, REPLAY_S = 1700, 18.0
NO_BACKEND = (
    "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this "
    "configuration. Reason: ['block_size not supported']"
)
NO_MEMORY = (
    "ValueError: Free memory on device cuda:0 (136.8/139.8 GiB) on startup is less than desired "
    "GPU memory utilization (0.98, 137.0 GiB). Decrease GPU memory utilization"
)


def refused(point: Mapping[str, Json]) -> Infeasible | None:
    """Return why an engine of this point dies at the launch."""
    if point.get("gpu_memory_utilization", 0.0) > 0.96:
        return Infeasible("out_of_memory", NO_MEMORY)
    if point.get("block_size") == 128 and point.get("kv_cache_dtype") == "fp8":
        return Infeasible("unsupported_by_hardware", NO_BACKEND)
    return None


def scores(config: EngineConfig) -> tuple[float, float]:
    """Return output tokens per second at full batches, and the seconds of a step with prompts."""
    args = {**DEFAULTS, **config.args}
    pace, room = COSTS.pace(args), COSTS.kv_tokens(args) / CONTEXT
    running = int(min(int(args["max_num_seqs"]), 256, room))
    chunk = int(args["max_num_batched_tokens"])
    cached = 0.75 if args["enable_prefix_caching"] else 1.0
    decode = pace.decode(running) + running * CONTEXT * pace.kv_s
    prompts = running / 180 * CONTEXT * cached * pace.token_s
    mixed = pace.mixed(chunk, running, running * CONTEXT)
    return running / (decode + prompts), mixed


def infeasible(row: str, seed: int) -> list[bool]:
    """Run one search of ``TRIALS`` trials; return which of them failed at the launch."""
    strategy: Strategy = ROWS[row].make(store_of(CASE.objectives), CASE, seed)
    machine = Machine(CASE, ROWS[row].keeps)
    failed: list[bool] = []
    while len(failed) < TRIALS:
        proposal = strategy.ask([machine.live] if machine.keeps and machine.live else [])
        if proposal is None:
            break
        why = refused(proposal.config.args)
        start_s, change_s = machine.ready_s(proposal.config, why is None)
        other_s = CASE.prices.warm_up_s * (start_s > 0)
        cost = Cost(start_s, change_s, REPLAY_S, other_s, 1) if why is None else Cost(start_s)
        told = why or noisy(proposal.config, scores(proposal.config), CASE, seed)
        strategy.tell(record(proposal, told, cost))
        failed.append(why is not None)
    return failed


def volume(n: int = 20_000) -> float:
    """Return the share of evenly drawn points that die at the launch."""
    random = np.random.default_rng(0)
    points: list[Point] = [
        {knob.name: draw(knob.domain, random) for knob in CASE.space.knobs} for _ in range(n)
    ]
    return float(np.mean([refused(point) is not None for point in points]))


def main(arguments: Sequence[str]) -> None:
    """Print the share of failed starts in both halves of a study, per strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    print(f"{volume():.0%} of the space dies at the launch; {TRIALS} trials, {given.seeds} seeds\n")
    print("| strategy | first half | second half | worst seed's second half |")
    print("|---|---|---|---|", flush=True)
    for row in (name for name in ROWS if ROWS[name].random):
        runs = np.array([infeasible(row, seed) for seed in range(given.seeds)])
        first, second = runs[:, : TRIALS // 2], runs[:, TRIALS // 2 :]
        worst = second.mean(axis=1).max()
        print(f"| {row} | {first.mean():.1%} | {second.mean():.1%} | {worst:.0%} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
