"""Hot knobs that measure otherwise live than from a start: found by the confirmation, and named.

A finalist that the search measured on an engine changed live is measured again from cold starts.
What else differs between both (the part of the workload, the kind of engine) shows in the
baselines, which the search started as they are: a finalist is held against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tuner.confirm import Confirmed
from tuner.intervals import LEVEL
from tuner.records import Measured, TrialRecord

#: Study attribute: knob -> live / cold of the objective that disagrees most.
ATTRIBUTE = "demoted"
#: Differences below this do not matter, however sure they are.
LEAST = math.log(1.02)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Offset:
    """A confirmed configuration: log(search / mean of its cold repeats) per objective."""

    changed: frozenset[str]
    log_ratio: Floats
    repeats: Floats


def demoted(
    confirmed: Sequence[Confirmed],
    search: Sequence[TrialRecord],
    repeats: Sequence[TrialRecord] = (),
) -> dict[str, float]:
    """Return the knobs to blame, with live / cold of the objective that disagrees most.

    A knob is to blame that was changed in a finalist that disagrees, and in none that agrees.
    Nothing is said without a baseline to compare with, and with one only where search and
    ``repeats`` replayed the same requests: one does not show how much another part differs.
    """
    first = {record.number: record for record in search}
    offsets = [
        _offset(one, first[one.trial])
        for one in confirmed
        if one.trial in first and _positive(one, first[one.trial])
    ]
    controls = [offset for offset in offsets if not offset.changed]
    live = [offset for offset in offsets if offset.changed]
    if not live or not controls or (len(controls) == 1 and not _same_workload(search, repeats)):
        return {}
    differences = _beyond_noise(live, controls)
    agree = frozenset().union(
        *(one.changed for one, off in zip(live, differences, strict=True) if off is None)
    )
    found: dict[str, float] = {}
    for one, off in zip(live, differences, strict=True):
        for name in one.changed - agree if off is not None else ():
            if off is not None and abs(off) > abs(math.log(found.get(name, 1.0))):
                found[name] = math.exp(off)
    return found


def cooled(
    warmth: Mapping[str, str], knobs: Mapping[str, float], say: Callable[[str], None]
) -> dict[str, str]:
    """Return temperatures in which no demoted knob is hot: it needs a start, compiled as it is."""
    if knobs:
        say(notice(knobs))
    return {n: "warm" if n in knobs and at == "hot" else at for n, at in warmth.items()}


def notice(knobs: Mapping[str, float]) -> str:
    """Return what a user should know of demoted knobs, in one sentence."""
    named = ", ".join(f"{name} (live / cold {ratio:.3f})" for name, ratio in sorted(knobs.items()))
    return f"measured otherwise live than from a start, so engines are restarted for it: {named}"


def _offset(one: Confirmed, record: TrialRecord) -> _Offset:
    logs = np.log(one.scores)
    found = np.log(np.array(record.scores)) - logs.mean(axis=0)
    return _Offset(_changed(record), found, logs - logs.mean(axis=0))


def _positive(one: Confirmed, record: TrialRecord) -> bool:
    return record.scores is not None and min(record.scores) > 0 and bool((one.scores > 0).all())


def _changed(record: TrialRecord) -> frozenset[str]:
    """Return the knobs that a live engine had other than it was started with."""
    if not isinstance(record.outcome, Measured):
        return frozenset()
    facts = record.outcome.measurement.facts
    changed, started = facts.get("live", {}).get("changed", {}), facts.get("started", {})
    return frozenset(n for n, v in changed.items() if n not in started or started[n] != v)


def _same_workload(search: Sequence[TrialRecord], repeats: Sequence[TrialRecord]) -> bool:
    digests = {
        record.outcome.measurement.facts.get("workload_digest")
        for record in (*search, *repeats)
        if isinstance(record.outcome, Measured)
    }
    return len(digests) == 1


def _beyond_noise(live: Sequence[_Offset], controls: Sequence[_Offset]) -> list[float | None]:
    """Return per finalist its largest log difference from the controls, None within the noise.

    The noise is that of the repeats or that between the controls, whichever is larger.
    """
    within = np.concatenate([one.repeats for one in (*live, *controls)])
    freedom = len(within) - len(live) - len(controls)
    spread = (within**2).sum(axis=0) / freedom
    base = np.array([one.log_ratio for one in controls])
    level = 1 - (1 - LEVEL) / (2 * len(live) * base.shape[1])
    found: list[float | None] = []
    for one in live:
        n = len(one.repeats)
        half = stats.t.ppf(level, freedom) * np.sqrt(spread * (1 + 1 / n) * (1 + 1 / len(controls)))
        if len(base) > 1:
            between = base.var(axis=0, ddof=1) * (1 + 1 / len(base))
            half = np.maximum(half, stats.t.ppf(level, len(base) - 1) * np.sqrt(between))
        off = one.log_ratio - base.mean(axis=0)
        beyond = np.abs(off) > np.maximum(half, LEAST)
        found.append(float(max(off[beyond], key=abs)) if beyond.any() else None)
    return found
