"""The replayed traffic as the report draws it: arrivals over time and lengths."""

from __future__ import annotations

import numpy as np

from tuner.job import Workload
from tuner.report_figures import Figure, layout
from tuner.report_text import number, seconds
from tuner.traces.describe import gap_cv, length_histogram, rate_over_time


def workload_figures(workload: Workload) -> dict[str, Figure]:
    """Return figures by name; none for an empty trace."""
    if not len(workload.trace):
        return {}
    return {"arrivals": _arrivals(workload), "lengths": _lengths(workload)}


def _arrivals(workload: Workload) -> Figure:
    starts, rates = rate_over_time(workload.trace, 60)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "fill": "tozeroy",
                "line": {"shape": "hv", "color": "@front", "width": 1.5},
                "x": np.round(starts, 3).tolist(),
                "y": np.round(rates, 4).tolist(),
                "hovertemplate": "from %{x:.3~r} s: %{y:.3~r} requests/s<extra></extra>",
            }
        ],
        "layout": layout(
            height=260,
            showlegend=False,
            xaxis={"title": {"text": "seconds from the start"}},
            yaxis={"title": {"text": "requests/s"}, "rangemode": "tozero", "automargin": True},
        ),
    }


def _lengths(workload: Workload) -> Figure:
    trace, traces = workload.trace, []
    columns = (
        ("prompt", trace.prompt_tokens, "@front"),
        ("output", trace.output_tokens, "@base"),
    )
    for name, tokens, colour in columns:
        edges, counts = length_histogram(tokens)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name} tokens",
                "line": {"shape": "hv", "color": colour, "width": 2},
                "x": np.round(edges, 2).tolist(),
                "y": [*np.asarray(counts).tolist(), 0],
            }
        )
    return {
        "data": traces,
        "layout": layout(
            height=260,
            xaxis={"title": {"text": "tokens"}, "type": "log", "tickformat": ",~r"},
            yaxis={"title": {"text": "requests"}, "rangemode": "tozero", "automargin": True},
        ),
    }


def workload_text(workload: Workload) -> str:
    """Return in one sentence what was replayed."""
    trace = workload.trace
    burst = gap_cv(trace.arrival_us)
    rate = f"{len(trace):,} requests in {seconds(trace.span_s)}"
    spread = (
        "" if burst is None else f", gaps vary by {number(burst)} times their mean (Poisson: 1)"
    )
    return f"{rate}{spread}; replayed {' and '.join(workload.measures)}."
