"""The memory part of ``tuner check``: does it fit, how many tokens, how many requests at once."""

from __future__ import annotations

from rich.table import Table

from tuner.cli import out
from tuner.config import Json
from tuner.devices import GIB
from tuner.preview import Preview


def tell_memory(found: Preview) -> None:
    """Print what the memory model answers, nothing for a simulated engine."""
    memory = found.memory
    if not memory:
        return
    told = [one for one in memory["configurations"] if "fit" in one]
    for one in memory["configurations"]:
        if "not_modelled" in one:
            why = one["not_modelled"] or "nothing was built"
            out.print(f"memory     not predicted ({one['label']}): {why}", soft_wrap=True)
    if told:
        out.print(_table(told))
    for one in told:
        if one["detail"]:
            out.print(f"           {one['label']}: {one['detail']}", markup=False, soft_wrap=True)
    sizes = memory["request_tokens"]
    if told and sizes:
        out.print(
            f"a request has {sizes['mean']:,.0f} tokens in the mean, {sizes['p99']:,.0f} at P99; "
            "shared prefixes let more of them in"
        )
    if memory["space"]:
        out.print(f"over the space: {_ranges(memory['space'])}", soft_wrap=True)


def _table(told: list[dict[str, Json]]) -> Table:
    table = Table(
        "memory", "fits", "weights", "activations", "KV cache", "tokens", "requests at once",
        "of P99 length", box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for one in told:
        on_gpu, at_once = one["gpu_bytes"] > 0, one["requests_at_once"]
        activations = _gib(one["activation_bytes"]) + ("" if one["calibrated"] else " (formula)")
        table.add_row(
            one["label"],
            one["fit"],
            _gib(one["weight_bytes"]),
            activations if on_gpu else "",
            _gib(one["kv_cache_bytes"]),
            f"{one['kv_cache_tokens']:,}",
            f"{at_once['mean']:,}" if "mean" in at_once else "",
            f"{at_once['p99']:,}" if "p99" in at_once else "",
        )
    return table


def _ranges(space: dict[str, Json]) -> str:
    names = {
        "kv_cache_tokens": "tokens of KV cache",
        "requests_at_once.mean": "requests at once",
        "requests_at_once.p99": "of P99 length",
    }
    said = [
        f"{low:,} to {high:,} {names[name]}" if low != high else f"{low:,} {names[name]}"
        for name, (low, high) in space.items()
    ]
    return ", ".join(said)


def _gib(amount: int) -> str:
    return f"{amount / GIB:.2f} GiB"
