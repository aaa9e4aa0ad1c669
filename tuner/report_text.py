"""Numbers and names as people read them: milliseconds, three to four digits, plain words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.config import EngineConfig, Json
from tuner.objectives import Objective

_WORDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
    "lateness": "send lateness",
    "output_tokens_per_s": "output throughput",
    "total_tokens_per_s": "total throughput",
    "requests_per_s": "request throughput",
    "kv_usage_max_share": "peak KV cache use",
    "prefix_hit_share": "prefix cache hits",
    "error_share": "failed requests",
    "short_share": "short answers",
    "attainment": "requests within every latency bound",
    "gpu_memory_max_bytes": "peak GPU memory",
    "gpu_utilization_share": "GPU activity",
    "energy_j": "energy",
    "tokens_per_joule": "output tokens per joule",
    "cost_per_million_tokens": "cost of a million output tokens",
}
_TIMES = ("ttft", "tpot", "itl", "e2e", "lateness")


@dataclass(frozen=True, slots=True)
class Unit:
    """How a metric is shown: base value times ``scale``, in ``symbol``; ``suffix`` of a column."""

    scale: float = 1.0
    symbol: str = ""
    suffix: str = ""


_MS = Unit(1e3, "ms", "_ms")
#: Part of a metric's name -> unit.
_UNITS = {
    "tokens_per_s": Unit(symbol="tok/s"),
    "requests_per_s": Unit(symbol="req/s"),
    "goodput": Unit(symbol="req/s"),
    "_share": Unit(100.0, "%"),
    "attainment": Unit(100.0, "%"),
    "_bytes": Unit(2.0**-30, "GiB"),
    "energy_j": Unit(symbol="J"),
}


def unit(metric: str) -> Unit:
    """Return the unit at the human edge of a metric in base units."""
    parts = metric.split(".")
    name = next((p for p in reversed(parts) if p not in {"mean", "max"} and p[1:2] != "9"), metric)
    known = next((unit for part, unit in _UNITS.items() if part in name), None)
    if known is not None:
        return known
    if any(part in _TIMES for part in parts) or name.endswith("_s"):
        return _MS
    return Unit()


def title(metric: str) -> str:
    """Return a metric's name in words: "P99 end-to-end latency (paced)"."""
    measure, _, rest = metric.partition(".")
    name, _, statistic = rest.partition(".")
    words = _WORDS.get(name, name.replace("_", " "))
    known = {"mean": "mean ", "max": "longest ", "p50": "median "}
    front = known.get(statistic, f"{statistic.upper()} " if statistic else "")
    text = f"{front}{words}"
    return f"{text[:1].upper()}{text[1:]} ({measure})" if rest else metric.replace("_", " ")


def short(metric: str) -> str:
    """Return a metric's name for the middle of a sentence: "P99 end-to-end latency"."""
    text = title(metric).partition(" (")[0]
    return text if text[1:2].isdigit() else f"{text[:1].lower()}{text[1:]}"


def axis(metric: str) -> str:
    """Return a metric's name with its unit, for an axis or a column."""
    symbol = unit(metric).symbol
    return f"{title(metric)}, {symbol}" if symbol else title(metric)


def number(value: float) -> str:
    """Return a number with three significant digits, whole from 100 on, thousands apart."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = abs(float(f"{value:.2e}"))  # 0.9999 is 1.00, not 1.000
    digits = max(0, 2 - math.floor(math.log10(rounded)))
    if digits > 8:
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"


def quantity(value: float, metric: str) -> str:
    """Return a metric's value with its unit: "512 ms"."""
    shown = unit(metric)
    return f"{number(value * shown.scale)} {shown.symbol}".rstrip()


def half_width(bounds: tuple[float, float] | None, metric: str) -> str:
    """Return half of an interval's width with its unit: "± 12 ms"; '' without an interval.

    An interval of a positive metric that reaches below 0 comes from too few, unlike repeats.
    """
    if bounds is None:
        return ""
    if bounds[0] < 0 < bounds[1]:
        return "± over 100 %"
    half = (bounds[1] - bounds[0]) / 2
    # Below that, equal repeats differ by the rounding of floats.
    return f"± {quantity(half if half > 1e-9 * abs(bounds[1]) else 0.0, metric)}"


def seconds(value: float) -> str:
    """Return a duration: "85 ms", "7.2 s", "12 min 05 s", "2 h 03 min"."""
    if value < 1:
        return f"{value * 1e3:.0f} ms"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def change(ratio: float) -> str:
    """Return a ratio as the change it is: "+32 %", "-7.5 %", "3.1 x"."""
    if ratio >= 2:
        return f"{ratio:.3g} x"
    percent = (ratio - 1) * 100
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.1f} %"


def better(ratio: float, objective: Objective) -> bool:
    """Whether a ratio to a baseline is a gain."""
    return ratio > 1 if objective.maximize else ratio < 1


def value_text(value: Json) -> str:
    """Return an argument's value as people write it: on, off, 0.9, JSON for what is nested."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def flat(args: Mapping[str, Json], head: str = "") -> dict[str, Json]:
    """Return nested arguments flat, with dotted names; an empty mapping stays a value."""
    out: dict[str, Json] = {}
    for name, value in args.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{head}{name}.")
        else:
            out[head + name] = value
    return out


def differences(config: EngineConfig, default: EngineConfig | None) -> dict[str, Json]:
    """Return the flat arguments and environment that differ from the default's; None: not set.

    Without a default it is everything that is set.
    """
    if default is None:
        return _settings(config)
    ours, theirs = _settings(config), _settings(default)
    names = sorted(set(ours) | set(theirs))
    return {n: ours.get(n) for n in names if ours.get(n) != theirs.get(n)}


def shared(configs: Sequence[EngineConfig]) -> dict[str, Json]:
    """Return the settings that are the same in all of several configurations; none for one."""
    if len(configs) < 2:
        return {}
    every = [_settings(config) for config in configs]
    return {n: v for n, v in every[0].items() if all(n in e and e[n] == v for e in every)}


def _settings(config: EngineConfig) -> dict[str, Json]:
    return {**flat(config.args), **{f"${name}": value for name, value in config.env.items()}}


def settings_text(settings: Mapping[str, Json]) -> str:
    """Return settings in one line; "vLLM's defaults" where there are none."""
    parts = [f"{name}={value_text(value)}" for name, value in settings.items()]
    return ", ".join(parts) or "vLLM's defaults"
