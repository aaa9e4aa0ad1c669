"""What is in a trace, as plain numbers: rate, burstiness, lengths, sessions, reuse, what fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.config import Json
from tuner.trace import IntArray, Trace
from tuner.traces.groups import session_groups, share_too_early
from tuner.traces.lengths import block_size
from tuner.traces.reuse import predicted_hit_share

#: Widths in seconds of the bins whose counts' dispersion is told (1 = Poisson).
IDC_WINDOWS_S = (1, 10, 60)
#: Slowdowns against the source at which early turns are told.
_SLOWDOWNS = (1, 2, 4)
#: vLLM's usual cache block.
_VLLM_BLOCK = 16


def describe(trace: Trace, max_model_len: int | None = None) -> dict[str, Json]:
    """Return the facts of a trace. None stands for what it cannot tell.

    Times in seconds, lengths in tokens, shares 0..1. ``cv``: standard deviation over mean of the
    gaps between arrivals. ``idc``: variance over mean of the counts in windows of that many
    seconds, whole windows only. ``prefix.hit_share``: see ``predicted_hit_share``.
    """
    origin = trace.provenance
    return {
        "name": trace.name,
        "format": origin.format,
        "digest": trace.digest,
        "rows_read": origin.rows_read,
        "requests": len(trace),
        "dropped": dict(origin.dropped),
        "span_s": trace.span_s,
        "rate_per_s": trace.rate_per_s,
        "resolution_s": trace.resolution_us / 1e6,
        "tied_share": tied_share(trace.arrival_us),
        "lead_in_s": trace.lead_in_us / 1e6,
        "cv": gap_cv(trace.arrival_us),
        "idc": {str(w): dispersion(trace.arrival_us, w) for w in IDC_WINDOWS_S},
        "prompt_tokens": length_facts(trace.prompt_tokens),
        "output_tokens": length_facts(trace.output_tokens),
        "correlation": correlation(trace.prompt_tokens, trace.output_tokens),
        "prefix": _prefix(trace),
        "sessions": _sessions(trace),
        "classes": _classes(trace),
        "fits": None if max_model_len is None else fits(trace, max_model_len),
        "notes": [*origin.notes, *_advice(trace)],
        "transforms": list(origin.transforms),
    }


def tied_share(arrival_us: IntArray) -> float:
    """Return the share of requests that share their time with the one before."""
    return float(np.mean(np.diff(arrival_us) == 0)) if len(arrival_us) > 1 else 0.0


def gap_cv(arrival_us: IntArray) -> float | None:
    """Return the coefficient of variation of the gaps; None for fewer than 3 or no span."""
    gaps = np.diff(arrival_us).astype(np.float64)
    if len(gaps) < 2 or not gaps.mean():
        return None
    return float(gaps.std() / gaps.mean())


def dispersion(arrival_us: IntArray, window_s: float) -> float | None:
    """Return variance over mean of counts per window; None for fewer than two whole windows."""
    if not len(arrival_us):
        return None
    since = arrival_us - arrival_us[0]
    width = round(window_s * 1e6)
    bins = int(since[-1]) // width
    if bins < 2:
        return None
    # Only windows with requests are stored: a span of years must not cost a bin per second.
    _, counts = np.unique(since[since < bins * width] // width, return_counts=True)
    mean = counts.sum() / bins
    return float((np.square(counts, dtype=np.float64).sum() / bins - mean**2) / mean)


def length_facts(tokens: IntArray) -> dict[str, float]:
    """Return total, mean, percentiles (linear interpolation) and extremes; {} for no request."""
    if not len(tokens):
        return {}
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99])
    return {
        "total": int(tokens.sum(dtype=np.int64)),
        "mean": float(tokens.mean()),
        "min": int(tokens.min()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": int(tokens.max()),
    }


def correlation(left: IntArray, right: IntArray) -> float | None:
    """Return Pearson's correlation; None where one side does not vary."""
    if len(left) < 2 or left.min() == left.max() or right.min() == right.max():
        return None
    return float(np.corrcoef(left, right)[0, 1])


def fits(trace: Trace, max_model_len: int) -> dict[str, Json]:
    """Return how many requests need more than ``max_model_len`` tokens, and what they hold."""
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    over = total > max_model_len
    return {
        "max_model_len": max_model_len,
        "longest_tokens": int(total.max(initial=0)),
        "too_long": int(np.count_nonzero(over)),
        "too_long_share": float(over.mean()) if len(trace) else 0.0,
        "too_long_token_share": float(total[over].sum() / max(1, int(total.sum()))),
    }


def _prefix(trace: Trace) -> dict[str, Json] | None:
    if trace.blocks is None:
        return None
    return {
        "block_tokens": block_size(trace),
        "distinct_blocks": len(np.unique(trace.blocks.values)),
        "hit_share": predicted_hit_share(trace),
        "hit_share_vllm": predicted_hit_share(trace, _VLLM_BLOCK),
    }


def _sessions(trace: Trace) -> dict[str, Json] | None:
    if trace.session is None and trace.parents is None:
        return None
    _, turns = np.unique(session_groups(trace), return_counts=True)
    known = None if trace.gap_us is None else trace.gap_us[trace.gap_us >= 0]
    early = {str(k): share_too_early(trace, k) for k in _SLOWDOWNS}
    return {
        "count": len(turns),
        "turns_mean": float(turns.mean()),
        "turns_max": int(turns.max()),
        "waiting_turns": 0
        if trace.parents is None
        else int((np.diff(trace.parents.offsets) > 0).sum()),
        "think_s_p50": None if known is None or not len(known) else float(np.median(known)) / 1e6,
        #: Open-loop replay would send this share of turns too early, by slowdown of the server.
        "too_early_share": early if any(v is not None for v in early.values()) else None,
    }


def _classes(trace: Trace) -> dict[str, int]:
    if trace.slo_class is None:
        return {trace.class_names[0]: len(trace)}
    counts = np.bincount(trace.slo_class, minlength=len(trace.class_names)).tolist()
    return dict(zip(trace.class_names, counts, strict=True))


def _advice(trace: Trace) -> list[str]:
    """Return what to know before believing a replay of this trace."""
    out: list[str] = []
    if trace.resolution_us >= 1_000_000 and tied_share(trace.arrival_us) > 0:
        step = trace.resolution_us / 1e6
        out.append(f"times are recorded in steps of {step:g} s: ties are spread unless told not to")
    if len(trace) < 100:
        out.append(f"P99 of {len(trace)} requests is nearly their maximum")
    return out


def rate_over_time(trace: Trace, bins: int = 60) -> tuple[Any, Any]:
    """Return (start of each bin in seconds, arrivals per second in it); one bin for no span."""
    if not trace.span_s:
        return np.zeros(1), np.asarray([float(len(trace))])
    first = float(trace.arrival_us[0]) / 1e6
    counts, edges = np.histogram(
        trace.arrival_us / 1e6, bins=bins, range=(first, first + trace.span_s)
    )
    return edges[:-1], counts / (edges[1] - edges[0])


def length_histogram(tokens: IntArray, bins: int = 24) -> tuple[Any, Any]:
    """Return (edges, counts) over bins of equal ratio: lengths spread over orders of magnitude."""
    values = np.maximum(tokens, 1)
    low, high = int(values.min(initial=1)), int(values.max(initial=1))
    edges = np.geomspace(low, max(high, low + 1), bins + 1)
    # The ends are exact powers only up to rounding: keep the extremes inside.
    edges[0], edges[-1] = low, max(high, low + 1)
    counts, _ = np.histogram(values, bins=edges)
    return edges, counts
