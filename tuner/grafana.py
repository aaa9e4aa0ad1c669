"""A Grafana dashboard: what the study measured beside what a running vLLM engine says of itself.

Grafana's classic JSON model, to be imported as it is; the data source is chosen there. What the
study measured comes from ``compare.prom`` (see ``prometheus``), the rest from the engine's
``/metrics``. Only metrics that the installed vLLM defines are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tuner.config import Json, digest
from tuner.prometheus import gauge_name

_VLLM = re.compile(r"vllm:\w+")
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: A dashboard is 24 columns wide.
_WIDTH, _HEIGHT = 24, 8
_ENGINE = '{model_name=~"$model_name"}'
_RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of the dashboard: our gauges on the left, the engine's metrics on the right."""

    title: str
    #: Grafana's name of the unit.
    unit: str
    ours: Sequence[str]
    #: Legend -> expression; ``vllm:`` names in it stand for metrics of the engine.
    engine: Mapping[str, str]


def _quantiles(histogram: str) -> dict[str, str]:
    buckets = f"sum by (le, model_name) (rate({histogram}_bucket{_ENGINE}{_RATE}))"
    return {f"P{q}": f"histogram_quantile({q / 100}, {buckets})" for q in (50, 99)}


def _rate(counter: str) -> str:
    return f"sum by (model_name) (rate({counter}_total{_ENGINE}{_RATE}))"


TOPICS = (
    Topic(
        "Time to first token",
        "s",
        ("paced.ttft.p50", "paced.ttft.p99"),
        _quantiles("vllm:time_to_first_token_seconds"),
    ),
    Topic(
        "Inter-token latency",
        "s",
        ("paced.itl.p50", "paced.itl.p99"),
        _quantiles("vllm:inter_token_latency_seconds"),
    ),
    Topic(
        "Time per output token",
        "s",
        ("paced.tpot.p50", "paced.tpot.p99"),
        _quantiles("vllm:request_time_per_output_token_seconds"),
    ),
    Topic(
        "End-to-end latency",
        "s",
        ("paced.e2e.p50", "paced.e2e.p99"),
        _quantiles("vllm:e2e_request_latency_seconds"),
    ),
    Topic(
        "Output tokens per second",
        "short",
        ("saturated.output_tokens_per_s", "paced.output_tokens_per_s"),
        {"output": _rate("vllm:generation_tokens")},
    ),
    Topic(
        "Requests per second",
        "reqps",
        ("saturated.requests_per_s", "capacity.requests_per_s", "paced.goodput"),
        {"finished": _rate("vllm:request_success")},
    ),
    Topic(
        "Requests at the engine",
        "short",
        ("paced.running_max", "paced.waiting_max"),
        {
            "running": f"vllm:num_requests_running{_ENGINE}",
            "waiting": f"vllm:num_requests_waiting{_ENGINE}",
        },
    ),
    Topic(
        "KV cache use",
        "percentunit",
        ("saturated.kv_usage_max_share", "paced.kv_usage_max_share"),
        {"now": f"vllm:kv_cache_usage_perc{_ENGINE}"},
    ),
    Topic(
        "Prefix cache hits",
        "percentunit",
        ("saturated.prefix_hit_share", "paced.prefix_hit_share"),
        {"hits": f"{_rate('vllm:prefix_cache_hits')} / {_rate('vllm:prefix_cache_queries')}"},
    ),
    Topic(
        "Preemptions",
        "short",
        ("saturated.preemptions", "paced.preemptions"),
        {"per second": _rate("vllm:num_preemptions")},
    ),
)


def dashboard(
    study: str, measured: Collection[str], engine_metrics: Collection[str], version: str
) -> dict[str, Json]:
    """Return the dashboard of a study.

    ``measured`` are our metrics that there are values of; ``engine_metrics`` the names that vLLM
    ``version`` defines (none: the engine's half stays out).
    """
    said = (
        f"Engine metrics are those of vLLM {version}." if engine_metrics else "No vLLM installed."
    )
    return {
        "id": None,
        "uid": f"tuner-{digest(study)}",
        "title": f"vLLM tuner: {study}",
        "description": f"compare.prom of the study beside a running engine. {said}",
        "tags": ["vllm", "tuner"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "panels": _panels(study, measured, engine_metrics),
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "refresh": "30s",
        "schemaVersion": 39,
        "version": 0,
        "links": [],
    }


def _panels(
    study: str, measured: Collection[str], engine_metrics: Collection[str]
) -> list[dict[str, Json]]:
    queries = {"{{metric}}": f'tuner_ratio{{study="{study}", estimate="mean"}}'}
    at = {"x": 0, "y": 0, "w": _WIDTH, "h": _HEIGHT // 2}
    panels = [{**_panel(1, "B / A", "none", queries, at), "type": "stat"}]
    for topic in TOPICS:
        ours = {_legend(m): _gauge(m, study) for m in topic.ours if m in measured}
        engine = {k: query for k, query in topic.engine.items() if _exists(query, engine_metrics)}
        above = panels[-1]["gridPos"]
        at = {"x": 0, "y": above["y"] + above["h"], "w": _WIDTH // 2, "h": _HEIGHT}
        halves = ((f"{topic.title}: study {study}", ours), (f"{topic.title}: engine", engine))
        for half, (title, wanted) in enumerate(halves):
            if wanted:
                place = {**at, "x": half * _WIDTH // 2}
                panels.append(_panel(len(panels) + 1, title, topic.unit, wanted, place))
    return panels


def _legend(metric: str) -> str:
    return f"{{{{side}}}} ({{{{name}}}}) {metric}"


def _gauge(metric: str, study: str) -> str:
    return f'{gauge_name(metric)}{{study="{study}", estimate="mean"}}'


def _exists(query: str, engine_metrics: Collection[str]) -> bool:
    """Whether the engine defines every metric of a query, its exposed endings aside."""
    exposed = {name + end for name in engine_metrics for end in ("", "_total", "_bucket")}
    return set(_VLLM.findall(query)) <= exposed


def _panel(
    number: int, title: str, unit: str, queries: Mapping[str, str], at: Mapping[str, int]
) -> dict[str, Json]:
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": dict(at),
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": {},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": query,
             "legendFormat": legend}
            for i, (legend, query) in enumerate(queries.items())
        ],
    }  # fmt: skip


def _variables() -> list[dict[str, Json]]:
    model = "label_values(vllm:num_requests_running, model_name)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "model_name", "label": "Model", "type": "query", "datasource": _SOURCE,
            "definition": model, "query": {"query": model, "refId": "model_name"},
            "refresh": 2, "includeAll": True, "allValue": ".*", "multi": True,
        },
    ]  # fmt: skip
