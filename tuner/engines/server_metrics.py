"""What a vLLM server counts about itself, from its Prometheus page."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Samples that are read, as vLLM names them: counters, then gauges.
_TOTALS = {
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "queries",
    "vllm:prefix_cache_hits_total": "hits",
    "vllm:generation_tokens_total": "generated_tokens",
}
_LEVELS = {
    "vllm:num_requests_running": "running_max",
    "vllm:num_requests_waiting": "waiting_max",
    "vllm:kv_cache_usage_perc": "kv_usage_max_share",
    "vllm:gpu_cache_usage_perc": "kv_usage_max_share",  # its name until 0.10
}
#: A level that is a share: the fullest engine counts, not the sum over engines.
_SHARES = frozenset({"kv_usage_max_share"})


def read(page: str) -> dict[str, float]:
    """Return our names -> values, summed over data-parallel engines; empty for another page."""
    from prometheus_client.parser import text_string_to_metric_families

    names = {**_TOTALS, **_LEVELS}
    # Hundreds of histogram lines surround the few that count: parsing all takes 20 ms.
    kept = [line for line in page.splitlines() if line.partition("{")[0].split(" ")[0] in names]
    values: dict[str, float] = {}
    with contextlib.suppress(ValueError):
        for family in text_string_to_metric_families("\n".join([*kept, ""])):
            for sample in family.samples:
                name = names[sample.name]
                known = values.get(name, 0.0)
                joined = max(known, sample.value) if name in _SHARES else known + sample.value
                values[name] = joined
    return values


@dataclass(slots=True)
class Tally:
    """Differences of the totals since ``reset``, and the highest levels seen since."""

    _before: Mapping[str, float] = field(default_factory=dict)
    _last: Mapping[str, float] = field(default_factory=dict)
    _highest: dict[str, float] = field(default_factory=dict)

    def reset(self, values: Mapping[str, float]) -> None:
        """Start from these totals."""
        self._before = self._last = dict(values)
        self._highest = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Take the next look at the server."""
        if not values:
            return
        self._last = values
        for name in set(_LEVELS.values()) & set(values):
            self._highest[name] = max(values[name], self._highest.get(name, 0.0))

    def totals(self) -> dict[str, float]:
        """Return the totals under the metrics' names; what the server does not say is absent."""
        gained = {
            name: self._last[name] - self._before.get(name, 0.0)
            for name in _TOTALS.values()
            if name in self._last
        }
        queries, hits = gained.pop("queries", 0.0), gained.pop("hits", 0.0)
        share = {"prefix_hit_share": hits / queries} if queries > 0 else {}
        return {**gained, **self._highest, **share}
