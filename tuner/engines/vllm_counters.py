"""What an engine counts about itself, gathered from vLLM's statistics. Imports vLLM."""

from __future__ import annotations

import asyncio
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

_SETTLE_S = 2.0


class Counters:
    """Totals over all schedulers of one engine since the last ``reset``."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.reset()

    def reset(self) -> None:
        """Start from zero."""
        self.finished = self.preemptions = self.queries = self.hits = 0
        self.running_max = self.waiting_max = self.generated = 0
        self.kv_usage_max_share = 0.0

    def logger(self, vllm_config: Any, engine_index: int = 0) -> StatLoggerBase:
        """Return the statistics logger of one scheduler (vLLM calls this once per scheduler)."""
        return _Feed(self)

    def add_schedule(self, stats: Any) -> None:
        """Count one step of a scheduler."""
        waiting = stats.num_waiting_reqs + getattr(stats, "num_skipped_waiting_reqs", 0)
        self.running_max = max(self.running_max, stats.num_running_reqs)
        self.waiting_max = max(self.waiting_max, waiting)
        self.kv_usage_max_share = max(self.kv_usage_max_share, float(stats.kv_cache_usage))
        self.queries += stats.prefix_cache_stats.queries
        self.hits += stats.prefix_cache_stats.hits

    def add_iteration(self, stats: Any) -> None:
        """Count what came out of one step."""
        self.generated += stats.num_generation_tokens
        self.preemptions += stats.num_preempted_reqs
        self.finished += len(stats.finished_requests)
        self._news.set()

    async def settle(self, answered: int) -> None:
        """Wait until ``answered`` requests are counted: an answer is out just before its count."""
        try:
            async with asyncio.timeout(_SETTLE_S):
                while self.finished < answered:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass  # what is known so far is still true

    def totals(self) -> dict[str, float]:
        """Return the totals under the metrics' names; a share of nothing is absent."""
        totals: dict[str, float] = {
            "generated_tokens": self.generated,
            "preemptions": self.preemptions,
            "running_max": self.running_max,
            "waiting_max": self.waiting_max,
            "kv_usage_max_share": self.kv_usage_max_share,
        }
        if self.queries:
            totals["prefix_hit_share"] = self.hits / self.queries
        return totals


class _Feed(StatLoggerBase):  # type: ignore[misc]  # vLLM's types are not followed
    """Hands one scheduler's statistics to the counters of the whole engine."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, *_args: Any, **_later: Any
    ) -> None:
        if scheduler_stats is not None:
            self._counters.add_schedule(scheduler_stats)
        if iteration_stats is not None:
            self._counters.add_iteration(iteration_stats)

    def log_engine_initialized(self) -> None:
        pass
