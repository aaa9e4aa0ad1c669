"""Measurements in Prometheus' text format: what a comparison found, for the monitoring at hand.

One gauge per metric, in its base unit (``tuner_paced_e2e_p99_seconds``), labelled by side,
configuration and study. node_exporter's textfile collector takes the file as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tuner.intervals import mean_interval
from tuner.metrics import DISTRIBUTIONS

if TYPE_CHECKING:
    from tuner.compare import Compared

_LABELS = ("side", "config", "study", "name")
#: Ends of our names -> ends with the base unit spelled out, as Prometheus' conventions have it.
_UNITS: Mapping[str, str] = {
    "_per_s": "_per_second",
    "_share": "_ratio",
    "_j": "_joules",
    "attainment": "attainment_ratio",
    "goodput": "goodput_requests_per_second",
}


def gauge_name(metric: str) -> str:
    """Return the name of a metric's gauge: "paced.e2e.p99" -> "tuner_paced_e2e_p99_seconds"."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", metric)
    if metric.split(".")[1] in DISTRIBUTIONS:
        return f"tuner_{name}_seconds"
    for end, spelled in _UNITS.items():
        if name.endswith(end):
            return f"tuner_{name.removesuffix(end)}{spelled}"
    return f"tuner_{name}"


def exposition(compared: Compared) -> str:
    """Return both sides of a comparison: means with their intervals, and the ratios B / A.

    ``estimate`` is "mean", and from two repeats on "low" and "high" (95 %).
    """
    registry = CollectorRegistry()
    for metric, pair in sorted(compared.values.items()):
        name = gauge_name(metric)
        gauge = Gauge(name, f"{metric} of a comparison", (*_LABELS, "estimate"), registry=registry)
        for letter, side, values in zip("ab", compared.sides, pair, strict=True):
            labels = (letter, side.config.key, compared.study, side.name)
            interval = mean_interval(values)
            gauge.labels(*labels, "mean").set(sum(values) / len(values))
            if interval is not None:
                gauge.labels(*labels, "low").set(interval.low)
                gauge.labels(*labels, "high").set(interval.high)
    _ratios(compared, registry)
    return generate_latest(registry).decode()


def _ratios(compared: Compared, registry: CollectorRegistry) -> None:
    labels = ("metric", "study", "name_a", "name_b", "estimate")
    gauge = Gauge("tuner_ratio", "value of b / value of a", labels, registry=registry)
    names = (side.name for side in compared.sides)
    common = (compared.study, *names)
    for row in compared.rows:
        if row.ratio is not None:
            bounds = {"mean": row.ratio.value, "low": row.ratio.low, "high": row.ratio.high}
            for estimate, value in bounds.items():
                gauge.labels(row.metric, *common, estimate).set(value)
