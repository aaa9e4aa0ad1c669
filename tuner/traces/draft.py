"""From rows as a file gives them to a Trace: what is left out, why, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tuner.trace import UNKNOWN_GAP, IntArray, Provenance, Ragged, Trace
from tuner.traces.source import MOST, Source

FloatArray = NDArray[np.floating[Any]]
#: What to do with a request that got no output (a failed call): leave it out and count it, or
#: send it for its prefill alone (one token).
ZeroOutput = Literal["drop", "prefill"]
_MOST_TOKENS = 2**31 - 1
SECOND_US = 1_000_000
_POWERS = (1, 10, 100, 1_000, 10_000, 100_000, SECOND_US)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Columns of all rows of a file, as floats: NaN is "not given", nothing is left out yet."""

    #: Microseconds on any clock.
    arrival_us: Any
    prompt_tokens: Any
    output_tokens: Any
    #: Rows whose status says that they failed.
    failed: Any = None
    #: Further columns of ``Trace``.
    columns: Mapping[str, Any] = field(default_factory=dict)
    #: Step of the times as the format declares it; 0 to look at the data.
    resolution_us: int = 0
    #: Reason -> rows that the reader itself left out.
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Start the clock at the first arrival.
    rebase: bool = True
    #: Each request of a session waits for the one before it.
    chain: bool = False
    #: Recorded microseconds from arrival to end per row, NaN where unknown: tells think times.
    duration_us: Any = None


def finish(
    source: Source, fmt: str, draft: Draft, *, zero_output: ZeroOutput = "drop", name: str = ""
) -> Trace:
    """Drop what cannot be replayed, count it, and build the trace.

    Dropped, each under its own reason: a missing or non-finite value, a negative or absurd time,
    negative or fractional tokens, more tokens than 2**31 - 1, an empty prompt, a failed request,
    no output. TraceError where nothing is left.
    """
    if zero_output not in ("drop", "prefill"):
        raise source.fail(f"zero_output: expected 'drop' or 'prefill', found {zero_output!r}")
    arrival, prompt, output = (
        np.asarray(column, np.float64)
        for column in (draft.arrival_us, draft.prompt_tokens, draft.output_tokens)
    )
    faults = _faults(arrival, prompt, output, draft.failed)
    notes = draft.notes
    if zero_output == "prefill":
        empty = np.count_nonzero(faults.pop("zero_output"))
        output = np.maximum(output, 1)
        notes += (f"{empty} requests without output are replayed for their prefill (1 token)",)
    keep, dropped = _kept(faults, len(arrival))
    rows_read = len(arrival) + sum(draft.dropped.values())
    dropped = {**draft.dropped, **dropped}
    if not keep.any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise source.fail(f"no request can be used of {rows_read} rows read ({reasons or 'empty'})")
    trace = _build(draft, keep, arrival, prompt, output)
    trace, notes = _ordered_parents(trace, notes)
    if draft.chain and trace.parents is not None:
        notes += ("a turn waits for the turn before it in its session",)
    provenance = Provenance(
        source=source.path.name,
        format=fmt,
        source_sha256=source.sha256(),
        rows_read=rows_read,
        dropped={reason: count for reason, count in dropped.items() if count},
        notes=notes,
    )
    return replace(trace, name=name or source.path.stem, provenance=provenance)


def _build(draft: Draft, keep: NDArray[np.bool_], arrival: Any, prompt: Any, output: Any) -> Trace:
    with np.errstate(invalid="ignore"):
        times = np.where(keep, np.rint(arrival), 0).astype(np.int64)
        prompts = np.where(keep, prompt, 0).astype(np.int32)
        outputs = np.where(keep, output, 0).astype(np.int32)
    raw = Trace(times, prompts, outputs, **draft.columns)
    kept = raw.take(np.flatnonzero(keep))
    if draft.chain and kept.session is not None:
        duration = None if draft.duration_us is None else np.asarray(draft.duration_us)[keep]
        parents, gap = chained(kept.arrival_us, kept.session, duration)
        kept = replace(kept, parents=parents, gap_us=gap)
    start = int(kept.arrival_us.min())
    trace = Trace.build(kept.arrival_us, kept.prompt_tokens, kept.output_tokens, **_rest(kept))
    if not draft.rebase:
        trace = replace(trace, arrival_us=trace.arrival_us + start)
    step = draft.resolution_us or seen_resolution(trace.arrival_us)
    return replace(trace, resolution_us=step)


def chained(arrival: Any, session: Any, duration: Any = None) -> tuple[Ragged, IntArray | None]:
    """Return the row before each in its session as its parent, and the think time between.

    A row that arrived a second or more before that one had ended did not wait for it: no parent.
    A duration below 0 or beyond 2**62 is unknown, session -1 is none. Rows may be in any order;
    ties keep it.
    """
    order = np.lexsort((arrival, session))
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    child, parent = order[1:][same], order[:-1][same]
    gap = None
    if duration is not None:
        known = np.where((duration >= 0) & (duration < MOST), duration, np.nan)
        think = arrival[child] - arrival[parent] - known[parent]
        waited = ~(think <= -SECOND_US)
        child, parent, think = child[waited], parent[waited], think[waited]
        gap = np.full(len(arrival), UNKNOWN_GAP, np.int64)
        gap[child] = np.where(np.isnan(think), UNKNOWN_GAP, np.rint(np.maximum(think, 0)))
    counts = np.zeros(len(arrival), np.int64)
    counts[child] = 1
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Ragged(offsets, parent[np.argsort(child)].astype(np.int64)), gap


def _rest(trace: Trace) -> dict[str, Any]:
    names = ("blocks", "block_tokens", "session", "parents", "gap_us", "slo_class")
    return {name: getattr(trace, name) for name in (*names, "class_names", "priority")}


def _faults(arrival: Any, prompt: Any, output: Any, failed: Any) -> dict[str, Any]:
    columns = (arrival, prompt, output)
    tokens = (prompt, output)
    with np.errstate(invalid="ignore"):
        return {
            "missing_value": ~np.logical_and.reduce([np.isfinite(c) for c in columns]),
            "negative_time": arrival < 0,
            "time_too_large": arrival >= MOST,
            "negative_tokens": np.logical_or.reduce([c < 0 for c in tokens]),
            "fractional_tokens": np.logical_or.reduce([c != np.rint(c) for c in tokens]),
            "too_many_tokens": np.logical_or.reduce([c > _MOST_TOKENS for c in tokens]),
            "zero_prompt": prompt == 0,
            "failed": np.zeros(len(arrival), bool) if failed is None else np.asarray(failed, bool),
            "zero_output": output == 0,
        }


def _kept(faults: Mapping[str, Any], rows: int) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return the rows without fault, and the count of each fault: a row counts under its first."""
    keep = np.ones(rows, bool)
    dropped = {}
    for reason, mask in faults.items():
        dropped[reason] = int(np.count_nonzero(mask & keep))
        keep &= ~mask
    return keep, dropped


def _ordered_parents(trace: Trace, notes: tuple[str, ...]) -> tuple[Trace, tuple[str, ...]]:
    """Forget parents that arrive after their child: no replay could wait for them."""
    if trace.parents is None:
        return trace, notes
    counts = np.diff(trace.parents.offsets)
    owner = np.repeat(np.arange(len(trace)), counts)
    earlier = trace.parents.values < owner
    lost = int(np.count_nonzero(~earlier))
    if not lost:
        return trace, notes
    kept = np.bincount(owner[earlier], minlength=len(trace))
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    parents = Ragged(offsets, trace.parents.values[earlier])
    note = f"{lost} parents that arrive after their child were forgotten"
    return replace(trace, parents=parents), (*notes, note)


def seen_resolution(arrival_us: IntArray) -> int:
    """Return the step of sorted times in microseconds, as far as the data shows it.

    A power of ten (1 .. 1,000,000) that divides all differences; or, where at least a tenth of
    the rows share their time with the row before and distinct times keep one distance of a second
    or more (Mooncake: 3000 ms +- 3), that distance. 1 for fewer than 16 rows: too few to tell.
    """
    if len(arrival_us) < 16:
        return 1
    steps = np.diff(np.asarray(arrival_us, np.int64))
    distinct = steps[steps > 0]
    if not len(distinct):
        return 1
    common = int(np.gcd.reduce(distinct))
    power = max(step for step in _POWERS if common % step == 0)
    low, middle = np.quantile(distinct, [0.05, 0.5])
    if len(distinct) <= 0.9 * len(steps) and middle >= SECOND_US and low >= 0.98 * middle:
        return max(power, round(float(middle) / 1000) * 1000)
    return power
