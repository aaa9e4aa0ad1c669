"""Staged: the four stages that people follow by hand, each starting from the best so far."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tuner import pareto
from tuner.knobs import Point
from tuner.records import TrialRecord
from tuner.store import Store
from tuner.strategies import Search
from tuner.strategies.plain import Choice
from tuner.strategies.riding import DRAWN, Riding

LOAD, CONCURRENCY, MEMORY, REST = range(4)
#: Share of the trials that each stage gets; a stage without a knob in the space gives its share up.
SHARES = (0.1, 0.35, 0.3, 0.25)
#: Trials over all stages where no number of trials is given; the last stage then goes on.
TRIALS = 40

#: Knob -> stage. A dotted knob goes where its first part goes; one that is not here is of the rest.
STAGES: dict[str, int] = {
    **dict.fromkeys(
        ("load_format", "dtype", "max_model_len", "tokenizer_mode", "attention_backend"), LOAD
    ),
    **dict.fromkeys(
        (
            "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens",
            "long_prefill_token_threshold", "enable_chunked_prefill", "scheduling_policy",
            "async_scheduling", "stream_interval", "prefill_schedule_interval",
        ),
        CONCURRENCY,
    ),
    **dict.fromkeys(
        (
            "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
            "enable_expert_parallel", "gpu_memory_utilization", "block_size",
            "enable_prefix_caching", "num_gpu_blocks_override", "kv_cache_memory_bytes",
            "kv_offloading_size", "cpu_offload_gb", "watermark", "swap_space",
        ),
        MEMORY,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """The knobs that vary in a stage, and the number of trials after which it ends."""

    knobs: tuple[str, ...]
    ends: float


def stages(search: Search) -> list[Stage]:
    """Return the stages that have knobs in the space, in order."""
    total = TRIALS if search.trials is None else search.trials
    knobs = [
        tuple(n for n in search.space.names if STAGES.get(n.split(".")[0], REST) == stage)
        for stage in range(len(SHARES))
    ]
    whole = sum(share for names, share in zip(knobs, SHARES, strict=True) if names)
    found: list[Stage] = []
    spent = 0.0
    for names, share in zip(knobs, SHARES, strict=True):
        if names:
            spent += total * share / whole
            found.append(Stage(names, spent))
    return found


class Staged(Riding):
    """Varies one stage's knobs, the others as in the best trial so far (the front's knee)."""

    def __init__(self, store: Store, search: Search) -> None:
        super().__init__(store, search)
        self._stages = stages(search)

    def _choose(self, live: Collection[str]) -> Choice | None:
        best = self._best_so_far()
        if best is None:
            return super()._choose(live)
        done = sum(r.cost.total_s > 0 for r in self._records) + len(self._running)
        for stage in self._stages:
            last = stage is self._stages[-1]
            if done < stage.ends or last:
                points = self._around(best.point, stage)
                if points:
                    origin = self._origin(best.number, best.point)
                    return self._changed(origin, self._best(points), stage.knobs)
        return super()._choose(live)

    def _best_so_far(self) -> TrialRecord | None:
        front = self._front()
        return front[pareto.knee(self._losses(front))] if front else None

    def _around(self, best: Point, stage: Stage) -> list[Point]:
        seen = self._seen()
        even = self._candidates.variants(best, DRAWN, seen, stage.knobs)
        return even + self._candidates.near([best], DRAWN, seen, stage.knobs)
