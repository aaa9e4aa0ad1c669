"""What a comparison writes: compare.json, compare.prom and grafana.json, in its own folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tuner import machine
from tuner.compare import Compared, Row
from tuner.compare_sides import Side
from tuner.config import Json
from tuner.engines import vllm_metrics
from tuner.grafana import dashboard
from tuner.intervals import Interval, mean_interval
from tuner.prometheus import exposition


def write(compared: Compared) -> list[Path]:
    """Write the files of a comparison; return their paths."""
    version = machine.versions().get("vllm", "")
    board = dashboard(compared.study, compared.values, vllm_metrics.names(), version)
    texts = {
        "compare.json": _pretty(to_json(compared)),
        "compare.prom": exposition(compared),
        "grafana.json": _pretty(board),
    }
    compared.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (compared.folder / name).write_text(text, encoding="utf-8")
    return [compared.folder / name for name in texts]


def to_json(compared: Compared) -> dict[str, Json]:
    """Return a comparison for machines, values in base units."""
    question = compared.question
    return {
        "study": compared.study,
        "engine": compared.kind,
        "live": question.live,
        "repeats": question.repeats,
        "difference": question.difference,
        **{letter: _side(side) for letter, side in zip("ab", compared.sides, strict=True)},
        "metrics": [_row(row) for row in compared.rows],
        "notes": list(compared.notes),
        "folder": str(compared.folder),
    }


def _side(side: Side) -> dict[str, Json]:
    return {"name": side.name, "key": side.config.key, "config": side.config.to_json()}


def _row(row: Row) -> dict[str, Json]:
    return {
        "metric": row.metric,
        "direction": "maximize" if row.maximize else "minimize",
        "a": _values(row.a),
        "b": _values(row.b),
        "ratio": None if row.ratio is None else asdict(row.ratio),
        "verdict": row.verdict,
        "repeats_needed": row.needed,
    }


def _values(values: tuple[float, ...]) -> dict[str, Json]:
    interval: Interval | None = mean_interval(values)
    bounds = None if interval is None else [interval.low, interval.high]
    return {"mean": sum(values) / len(values), "interval": bounds, "values": list(values)}


def _pretty(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
