"""Latencies of the finalists from their request records: distributions, percentiles, SLO shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tuner.config import Json
from tuner.job import Slo
from tuner.records import TrialRecord
from tuner.report_figures import Figure, Shown, Trace, layout, names_of
from tuner.report_text import number
from tuner.results_requests import Floats, requests_frame, token_gaps

#: Most configurations that one picture holds.
MOST = 6
#: What is drawn: name -> words.
LATENCIES = {
    "ttft": "Time to first token",
    "e2e": "End-to-end latency",
    "itl": "Gap between tokens",
}
#: Shares at which a distribution is drawn: every half percent, finer in the tail.
_SHARES = np.unique(np.concatenate([np.linspace(0, 0.99, 199), np.linspace(0.99, 1, 21)]))
#: A request's value of what an SLO bounds.
_COLUMNS = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_max_s", "e2e": "e2e_s"}
_COLOURS = ("@front", "@base", "@start", "@good", "@bad", "@soft")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True, slots=True)
class Sampled:
    """The requests of one configuration under one measure, pooled over its replays."""

    trial: int
    name: str
    measure: str
    replays: int
    requests: pd.DataFrame
    #: Seconds, by ``LATENCIES``.
    values: Mapping[str, Floats]


def sampled(
    shown: Shown, folder: Path, repeats: Sequence[TrialRecord], trials: Sequence[int]
) -> list[Sampled]:
    """Return the request records of some trials: of their repeats where there are, else their own.

    Paced replays where there were any. A trial without readable records is left out.
    """
    out = []
    by_trial = {record.number: record for record in shown.records}
    for trial in list(dict.fromkeys(trials))[:MOST]:
        own = [
            folder / "confirm" / "trials" / str(repeat.number)
            for repeat in repeats
            if repeat.point.get("member") == trial and repeat.scores is not None
        ]
        files = [d / "requests.parquet" for d in own or [folder / "trials" / str(trial)]]
        label = by_trial[trial].config.label.partition(":")[2].strip()
        name = label or names_of(by_trial[trial], shown.presets) or f"trial {trial}"
        found = _sample(trial, name, [file for file in files if file.is_file()])
        out += [found] if found is not None else []
    return out


def _sample(trial: int, name: str, files: Sequence[Path]) -> Sampled | None:
    if not files:
        return None
    frames = [requests_frame(file) for file in files]
    every = pd.concat(frames, ignore_index=True)
    measure = "paced" if (every["measure"] == "paced").any() else str(every["measure"].iloc[0])
    scored = every[(every["measure"] == measure) & every["scored"]]
    good = scored[scored["ok"]]
    if not len(good):
        return None
    values = {
        "ttft": good["ttft_s"].to_numpy(float),
        "e2e": good["e2e_s"].to_numpy(float),
        "itl": np.concatenate([token_gaps(file, measure) for file in files]),
    }
    return Sampled(trial, name, measure, len(files), scored, values)


def latency_figure(samples: Sequence[Sampled], which: str, bound_s: float | None) -> Figure | None:
    """Return the cumulative distribution of one latency, and its histogram, hidden at first.

    The page's buttons show the traces whose ``meta`` they name.

    ``bound_s``: the default class's SLO bound, drawn as an upright. None without any values.
    """
    having = [sample for sample in samples if len(sample.values[which])]
    if not having:
        return None
    curves = [_cdf(sample, which, at) for at, sample in enumerate(having)]
    counts = _histograms(having, which)
    arranged = layout(
        height=300,
        xaxis={
            "title": {"text": f"{LATENCIES[which]}, ms"},
            "type": "log",
            "tickformat": ",~r",
            "dtick": "D2",
        },
        yaxis={"title": {"text": "% of requests"}, "rangemode": "tozero", "automargin": True},
        showlegend=False,
        shapes=[] if bound_s is None else [_bound(bound_s * 1e3)],
        margin={"l": 64, "r": 16, "t": 8, "b": 52},
        hovermode="closest",
    )
    if which == "itl":
        arranged["yaxis"]["title"]["text"] = "% of gaps"
    return {"data": [*curves, *counts], "layout": arranged}


def _style(at: int) -> dict[str, Json]:
    return {"color": _COLOURS[at % len(_COLOURS)], "dash": _DASHES[at % len(_DASHES)], "width": 2}


def _cdf(sample: Sampled, which: str, at: int) -> Trace:
    quantiles = np.quantile(sample.values[which], _SHARES) * 1e3
    return {
        "type": "scatter",
        "mode": "lines",
        "name": sample.name,
        "meta": "cumulative",
        "line": _style(at),
        "x": [float(f"{value:.4g}") for value in quantiles],
        "y": [round(float(share) * 100, 2) for share in _SHARES],
        "hovertemplate": f"{sample.name}<br>%{{y:.4~r}} % within %{{x:.4~r}} ms<extra></extra>",
    }


def _histograms(samples: Sequence[Sampled], which: str) -> list[Trace]:
    """Return step lines over bins of equal width on the logarithmic axis, as shares."""
    pooled = np.concatenate([sample.values[which] for sample in samples])
    positive = pooled[pooled > 0]
    if not len(positive) or positive.min() == positive.max():
        return []
    edges = np.geomspace(positive.min(), positive.max(), 41)
    edges[-1] *= 1 + 1e-9
    out: list[Trace] = []
    for at, sample in enumerate(samples):
        counts = np.histogram(sample.values[which], edges)[0] / len(sample.values[which]) * 100
        out.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": sample.name,
                "meta": "histogram",
                "line": {**_style(at), "shape": "hv"},
                "x": [float(f"{edge * 1e3:.4g}") for edge in edges],
                "y": [*np.round(counts, 2).tolist(), 0],
                "visible": False,
                "hoverinfo": "name+x+y",
            }
        )
    return out


def _bound(value_ms: float) -> dict[str, Json]:
    return {
        "type": "line",
        "x0": value_ms,
        "x1": value_ms,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": "@bad", "width": 1, "dash": "dot"},
        "label": {"text": f"SLO {number(value_ms)} ms", "font": {"size": 11, "color": "@bad"}},
    }


def legend(samples: Sequence[Sampled]) -> list[tuple[str, str]]:
    """Return each configuration's name and colour in the pictures."""
    return [(sample.name, _style(at)["color"].lstrip("@")) for at, sample in enumerate(samples)]


def percentiles(samples: Sequence[Sampled]) -> list[tuple[str, list[str]]]:
    """Return per configuration its name, and P50 / P90 / P99 of each latency in milliseconds."""
    return [
        (
            sample.name,
            [
                " / ".join(number(v * 1e3) for v in np.percentile(values, (50, 90, 99)))
                if len(values := sample.values[which])
                else "–"
                for which in LATENCIES
            ],
        )
        for sample in samples
    ]


def attainment(
    samples: Sequence[Sampled], slo: Slo
) -> tuple[list[str], list[tuple[str, list[tuple[str, bool]]]]]:
    """Return the classes with bounds, and per configuration the share of each that met all of them.

    A share comes with whether it reaches the wanted attainment. A failed request meets nothing; a
    latency that a request does not have (TPOT of one token) is not held against it. Behind them
    stand the percentiles that the SLO bounds, over the answered requests of all classes.
    """
    classes = sorted({str(c) for sample in samples for c in sample.requests["slo_class"]})
    bounded = [name for name in classes if slo.of(name)]
    whole = [(q, name, s) for q, inner in slo.percentiles.items() for name, s in inner.items()]
    if not bounded and not whole:
        return [], []
    rows = []
    for sample in samples:
        met = met_bounds(sample.requests, slo)
        shares = []
        for name in bounded:
            mine = met[sample.requests["slo_class"] == name]
            share = float(mine.mean()) if len(mine) else 0.0
            shares.append((f"{share * 100:.1f} % of {len(mine):,}", share >= slo.attainment))
        shares += [_kept(sample, *bound) for bound in whole]
        rows.append((sample.name, shares))
    heads = [f"{name} ({_bounds_text(slo.of(name))})" for name in bounded]
    return [*heads, *(f"{q.upper()} {_bounds_text({name: s})}" for q, name, s in whole)], rows


def _kept(sample: Sampled, quantile: str, metric: str, bound_s: float) -> tuple[str, bool]:
    """Return a percentile in words, and whether it keeps its bound; no values break none."""
    values = sample.values.get(metric)
    if values is None:
        good = sample.requests[sample.requests["ok"]]
        values = good[_COLUMNS[metric]].dropna().to_numpy(float)
    if not len(values):
        return "–", True
    value = float(np.percentile(values, int(quantile.removeprefix("p"))))
    return f"{number(value * 1e3)} ms", value <= bound_s


def met_bounds(requests: pd.DataFrame, slo: Slo) -> pd.Series[bool]:
    """Return, per request, whether it succeeded and met every bound of its class."""
    met = requests["ok"].copy()
    for name in requests["slo_class"].unique():
        mine = requests["slo_class"] == name
        for metric, bound in slo.of(str(name)).items():
            met &= ~(mine & (requests[_COLUMNS[metric]] > bound))
    return met


def _bounds_text(bounds: Mapping[str, float]) -> str:
    return ", ".join(f"{name.upper()} ≤ {number(s * 1e3)} ms" for name, s in bounds.items())
