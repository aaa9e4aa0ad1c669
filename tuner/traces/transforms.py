"""Cut, thin and scale a trace. Each step says what it distorts and is kept in the provenance."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tuner.config import Json
from tuner.errors import Problem, TraceError
from tuner.trace import IntArray, Trace
from tuner.traces.groups import hashed_share, prefix_groups, session_groups
from tuner.traces.lengths import length_scale, max_tokens

ThinBy = Literal["auto", "session", "prefix", "request"]
#: From this step of the recorded times on, ties are spread unless one says otherwise.
COARSE_US = 1_000_000


def window(
    trace: Trace, start_s: float = 0.0, duration_s: float | None = None, lead_in_s: float = 0.0
) -> Trace:
    """Keep the sessions that start in [start - lead-in, start + duration), whole.

    The scored part begins at ``lead_in_s`` on the new clock; what arrives before (``lead_in_us``)
    is sent to warm the caches but not scored. Times in seconds of the trace.

    Distorts: sessions that began earlier are missing, so the load at the start is low and the
    caches are colder than they were (5 minutes of lead-in gave 0.33-0.36 of the prefix hits where
    the full history gave 0.36-0.40, and no lead-in 0.26); later turns spill past the end. The
    choice of the window moves rates and lengths more than most settings do.
    """
    if start_s < 0 or lead_in_s < 0 or (duration_s is not None and duration_s <= 0):
        raise ValueError("start_s and lead_in_s must be >= 0 and duration_s > 0")
    lead_in = min(_us(lead_in_s), _us(start_s))
    first = _us(start_s) - lead_in
    end = np.iinfo(np.int64).max if duration_s is None else _us(start_s) + _us(duration_s)
    starts = _group_starts(trace)
    kept = trace.take(np.flatnonzero((starts >= first) & (starts < end)))
    moved = replace(kept, arrival_us=kept.arrival_us - first, lead_in_us=lead_in)
    return moved.recorded("window", start_s=start_s, duration_s=duration_s, lead_in_s=lead_in_s)


def head(trace: Trace, n: int) -> Trace:
    """Keep the first ``n`` requests.

    Distorts: cuts sessions and starts on a cold cache, like any slice.
    """
    if n < 1:
        raise ValueError("n must be at least 1")
    return trace.take(np.arange(min(n, len(trace)))).recorded("head", n=n)


def rate_scale(trace: Trace, k: float, scale_gaps: bool = False) -> Trace:
    """Let everything arrive ``k`` times as fast (t / k). Think times stay unless ``scale_gaps``.

    Distorts: keeps order, CV and infinite-cache hits, but moves bursts and slow drift to another
    time scale; speeding up raises the overlap, so that a shared prefix may not be computed yet.
    """
    if k <= 0:
        raise ValueError("k must be > 0")
    gaps = trace.gap_us
    if scale_gaps and gaps is not None:
        gaps = np.where(gaps < 0, gaps, np.rint(gaps / k).astype(np.int64))
    scaled = replace(
        trace,
        arrival_us=np.rint(trace.arrival_us / k).astype(np.int64),
        gap_us=gaps,
        lead_in_us=round(trace.lead_in_us / k),
        resolution_us=max(1, round(trace.resolution_us / k)),
    )
    return scaled.recorded("rate_scale", k=k, scale_gaps=scale_gaps)


def thin(trace: Trace, keep: float, by: ThinBy = "auto", seed: int = 0) -> Trace:
    """Keep a share of the traffic: whole sessions, or whole prefix groups, or single requests.

    "auto": sessions where the trace has them, else prefix groups, else requests. Deterministic,
    and a smaller share is a subset of a larger one. Arrival times do not move.

    Distorts: by session or prefix group prefix hits stay (their variance grows; scale the KV cache
    by the same share to keep evictions alike). By request they are destroyed (0.37 fell to 0.11 at
    a tenth), sessions break, and CV falls towards 1.
    """
    if not 0 < keep <= 1:
        raise ValueError("keep must be in (0, 1]")
    how = _thin_by(trace) if by == "auto" else by
    if how == "session":
        groups = session_groups(trace)
    elif how == "prefix":
        groups = prefix_groups(trace)
    elif how == "request":
        groups = np.arange(len(trace), dtype=np.int64)
    else:
        raise ValueError(f"by: expected auto, session, prefix or request, found {by!r}")
    rows = np.flatnonzero(hashed_share(groups, seed) < keep)
    return trace.take(rows).recorded("thin", keep=keep, by=how, seed=seed)


def spread_ties(trace: Trace, resolution_s: float | None = None, seed: int = 0) -> Trace:
    """Spread requests of one recorded time over the step of the clock, in their order.

    ``resolution_s`` defaults to the trace's own. Requests with a time of their own do not move.

    Distorts: invents times inside the step. Not doing it distorts more: 3 s batches that never
    existed (median TTFT 0.74 s instead of 0.21 s in a model of one server at half load).
    """
    step = trace.resolution_us if resolution_s is None else _us(resolution_s)
    rows = len(trace)
    _, inverse, counts = np.unique(trace.arrival_us, return_inverse=True, return_counts=True)
    tied = counts[inverse] > 1
    offsets = np.zeros(rows, np.int64)
    draws = np.random.Generator(np.random.Philox(seed)).random(rows)
    order = np.lexsort((draws, inverse))
    offsets[tied] = np.floor(draws[order] * step).astype(np.int64)[tied]
    moved = replace(trace, arrival_us=trace.arrival_us + offsets, resolution_us=1)
    ordered = moved.take(np.argsort(moved.arrival_us, kind="stable"))
    return ordered.recorded("spread_ties", resolution_s=step / 1e6, seed=seed)


def hold_out(trace: Trace, share: float, lead_in_s: float = 0.0) -> tuple[Trace, Trace]:
    """Split by time: (earlier part to tune on, last ``share`` of the scored time to confirm on).

    A session belongs to the part it starts in. The held-out part begins with ``lead_in_s`` of
    unscored requests from before the split.

    Distorts: both parts are shorter; the held-out part sees another time of day. That is its use.
    """
    if not 0 < share < 1:
        raise ValueError("share must be between 0 and 1")
    begin = trace.lead_in_us
    end = int(trace.arrival_us.max(initial=0))
    split = begin + round((end - begin) * (1 - share))
    lead_in = min(_us(lead_in_s), split)
    starts = _group_starts(trace)
    early = trace.take(np.flatnonzero(starts < split))
    late = trace.take(np.flatnonzero(starts >= split - lead_in))
    late = replace(late, arrival_us=late.arrival_us - (split - lead_in), lead_in_us=lead_in)
    step = {"share": share, "lead_in_s": lead_in_s}
    return (
        early.recorded("hold_out", part="tune", **step),
        late.recorded("hold_out", part="held_out", **step),
    )


#: Step name -> function. The one positional parameter of each is what ``{name: value}`` sets.
STEPS: dict[str, Callable[..., Trace]] = {
    "window": window,
    "head": head,
    "rate_scale": rate_scale,
    "thin": thin,
    "length_scale": length_scale,
    "max_tokens": max_tokens,
    "spread_ties": spread_ties,
}


def apply(trace: Trace, steps: Sequence[Mapping[str, Json]], *, seed: int = 0) -> Trace:
    """Apply steps in order: ``{"head": 100}``, ``{"window": {"start_s": 60, ...}}``.

    A step as the provenance keeps it (``{"op": "head", "n": 100}``) does too. Times recorded in
    steps of a second or more are spread first, unless ``{"spread_ties": false}`` is given or a
    ``spread_ties`` step is (``seed`` is for that alone). TraceError lists every unknown step and
    parameter.
    """
    problems: list[Problem] = []
    plan = [_parsed(step, n, problems) for n, step in enumerate(steps)]
    if problems:
        raise TraceError(problems)
    if trace.resolution_us >= COARSE_US and not any(name == "spread_ties" for name, _ in plan):
        trace = spread_ties(trace, seed=seed)
    for n, (name, parameters) in enumerate(plan):
        if name == "spread_ties" and parameters is None:
            continue
        try:
            trace = STEPS[name](trace, **(parameters or {}))
        except (ValueError, TypeError) as error:
            raise TraceError(Problem(trace.name, f"transforms[{n}].{name}", str(error))) from error
        if not len(trace):
            fault = Problem(trace.name, f"transforms[{n}].{name}", "leaves no request")
            raise TraceError(fault)
    return trace


def _parsed(
    step: Mapping[str, Json], n: int, problems: list[Problem]
) -> tuple[str, dict[str, Json] | None]:
    if "op" in step:
        step = {str(step["op"]): {key: value for key, value in step.items() if key != "op"}}
    if len(step) != 1:
        problems.append(Problem("", f"transforms[{n}]", f"expected one step, found {list(step)}"))
        return "", {}
    name, value = next(iter(step.items()))
    at = f"transforms[{n}].{name}"
    if name not in STEPS:
        near = difflib.get_close_matches(name, STEPS, 1)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(STEPS)}"
        problems.append(Problem("", at, f"no such transform; {guess}"))
        return name, {}
    if name == "spread_ties" and isinstance(value, bool):
        return name, {} if value else None
    known = list(inspect.signature(STEPS[name]).parameters)[1:]
    given = dict(value) if isinstance(value, Mapping) else {known[0]: value}
    # What a step found out (counts, shares) is in its record, but is no parameter.
    found = {key for key in given if key.startswith("found_")}
    unknown = [key for key in given if key not in known and key not in found]
    if unknown:
        text = f"no parameter {', '.join(unknown)}; there are {', '.join(known)}"
        problems.append(Problem("", at, text))
    return name, {key: value for key, value in given.items() if key in known}


def _thin_by(trace: Trace) -> ThinBy:
    if trace.session is not None or trace.parents is not None:
        return "session"
    return "request" if trace.blocks is None else "prefix"


def _group_starts(trace: Trace) -> IntArray:
    """Return the first arrival of each request's session."""
    groups = session_groups(trace)
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    starts: IntArray = trace.arrival_us[first][inverse]
    return starts


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
