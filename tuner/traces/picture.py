"""A trace at a glance: in the terminal (rich), as an HTML page (plotly) or a PNG (matplotlib)."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from tuner.config import Json
from tuner.trace import Trace
from tuner.traces.describe import length_histogram, rate_over_time

_BARS = " ▁▂▃▄▅▆▇█"


def terminal(trace: Trace, facts: dict[str, Json]) -> Any:
    """Return a rich renderable of what ``describe`` found."""
    from rich.console import Group
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for label, value in _lines(facts):
        table.add_row(label, value)
    _, rates = rate_over_time(trace, 48)
    pictures = Table(show_header=False, box=None, pad_edge=False)
    pictures.add_column(style="bold")
    pictures.add_column()
    pictures.add_column(style="dim")
    pictures.add_row("arrivals", sparkline(rates), f"up to {max(rates):.3g}/s")
    for label, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        edges, counts = length_histogram(tokens)
        pictures.add_row(label, sparkline(counts), f"{edges[0]:.0f} to {edges[-1]:.0f} tokens, log")
    return Group(table, "", pictures)


def sparkline(values: Any) -> str:
    """Return one character per value, scaled to the largest; what is not zero shows."""
    top = max(values, default=0)
    if not top:
        return _BARS[0] * len(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[0 if v <= 0 else max(1, round(v / top * steps))] for v in values)


def _lines(facts: dict[str, Json]) -> list[tuple[str, str]]:
    dropped = ", ".join(f"{count} {reason}" for reason, count in facts["dropped"].items())
    idc = ", ".join(f"{_number(value)} at {w} s" for w, value in facts["idc"].items())
    lines = [
        ("format", f"{facts['format']}  ({facts['digest']})"),
        ("requests", f"{facts['requests']} of {facts['rows_read']} rows read"),
        ("dropped", dropped or "none"),
        ("span", f"{facts['span_s']:.1f} s at {_number(facts['rate_per_s'])} requests/s"),
        ("burstiness", f"CV {_number(facts['cv'])}; dispersion {idc} (1 = Poisson)"),
        ("time step", f"{facts['resolution_s']:g} s, {facts['tied_share']:.0%} tied"),
        ("prompt tokens", _lengths(facts["prompt_tokens"])),
        ("output tokens", _lengths(facts["output_tokens"])),
        ("correlation", _number(facts["correlation"])),
    ]
    lines += _reuse_lines(facts)
    return lines + [("note", note) for note in facts["notes"]]


def _reuse_lines(facts: dict[str, Json]) -> list[tuple[str, str]]:
    lines = []
    if prefix := facts["prefix"]:
        blocks = prefix["block_tokens"]
        size = "segments" if blocks is None else f"blocks of {blocks} tokens"
        lines.append(("prefix hits", f"{prefix['hit_share']:.1%} with an infinite cache ({size})"))
    if sessions := facts["sessions"]:
        turns = f"{sessions['turns_mean']:.2f} turns each, at most {sessions['turns_max']}"
        lines.append(("sessions", f"{sessions['count']}, {turns}"))
        if early := sessions["too_early_share"]:
            shares = ", ".join(f"{share:.0%} at {k}x" for k, share in early.items())
            lines.append(("sent too early", f"open loop, by slowdown of the server: {shares}"))
    if limit := facts["fits"]:
        text = f"{limit['too_long']} need more than {limit['max_model_len']} tokens"
        share = f"{limit['too_long_token_share']:.1%} of all tokens"
        lines.append(("does not fit", f"{text} ({share}; longest {limit['longest_tokens']})"))
    return lines


def _lengths(found: dict[str, float]) -> str:
    if not found:
        return "-"
    names = ("mean", "p50", "p90", "p99", "max")
    return "  ".join(
        f"{name.upper() if name[0] == 'p' else name} {found[name]:.0f}" for name in names
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def page(trace: Trace, facts: dict[str, Json]) -> str:
    """Return an HTML page with the facts and three charts; it loads nothing from elsewhere."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=3, cols=1, subplot_titles=("Arrivals per second", "Prompt tokens", "Output tokens")
    )
    starts, rates = rate_over_time(trace, 200)
    figure.add_trace(graph_objects.Bar(x=starts.tolist(), y=rates.tolist()), row=1, col=1)
    for row, tokens in ((2, trace.prompt_tokens), (3, trace.output_tokens)):
        edges, counts = length_histogram(tokens, 60)
        bars = graph_objects.Bar(
            x=edges[:-1].tolist(),
            y=counts.tolist(),
            width=(edges[1:] - edges[:-1]).tolist(),
            offset=0,
        )
        figure.add_trace(bars, row=row, col=1)
        figure.update_xaxes(type="log", row=row, col=1)
    figure.update_layout(showlegend=False, height=900, template="plotly_white")
    chart = figure.to_html(full_html=False, include_plotlyjs=True)
    rows = "".join(
        f"<tr><th>{html.escape(label)}</th><td>{html.escape(value)}</td></tr>"
        for label, value in _lines(facts)
    )
    title = html.escape(str(facts["name"]))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>"
        "body{font:15px system-ui;max-width:960px;margin:2em auto}th{text-align:left;"
        "padding-right:1.5em;vertical-align:top}</style></head><body>"
        f"<h1>{title}</h1><table>{rows}</table>{chart}</body></html>"
    )


def png(trace: Trace, facts: dict[str, Json], path: Path) -> None:
    """Write arrivals, gaps, prompt and output lengths as one picture of 1200 x 800 pixels.

    Gaps of zero (ties) have no place on a logarithmic axis: their share is in the panel's title.
    A bare figure is drawn by Agg, which needs no display.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=100, layout="constrained")
    # Names come from files: a dollar sign in one starts no formula.
    figure.suptitle(_headline(facts), parse_math=False)
    (arrivals, gaps), (prompts, outputs) = figure.subplots(2, 2)
    starts, rates = rate_over_time(trace, 120)
    width = float(starts[1] - starts[0]) if len(starts) > 1 else 1.0
    arrivals.bar(starts, rates, width, align="edge")
    arrivals.set(title="Arrivals per second", xlabel="s", ylim=(0, None))
    between = np.diff(trace.arrival_us)
    tied = f", {facts['tied_share']:.0%} are zero" if facts["tied_share"] else ""
    panels = (
        (gaps, between[between > 0], f"Gaps between arrivals{tied}", 1e6, "s"),
        (prompts, trace.prompt_tokens, "Prompt lengths", 1, "tokens"),
        (outputs, trace.output_tokens, "Output lengths", 1, "tokens"),
    )
    for axes, values, title, unit, label in panels:
        axes.set(title=title, xlabel=label, ylabel="requests")
        if len(values):
            edges, counts = length_histogram(values, 40)
            axes.stairs(counts, edges / unit, fill=True)
            axes.set_xscale("log")
    figure.savefig(path, format="png")


def _headline(facts: dict[str, Json]) -> str:
    rate = f"{facts['span_s']:.0f} s, {_number(facts['rate_per_s'])} requests/s"
    return f"{facts['name']}: {facts['requests']} requests in {rate}, CV {_number(facts['cv'])}"
