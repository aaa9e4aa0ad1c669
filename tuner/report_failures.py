"""Why trials gave no result, how often, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.config import Json
from tuner.engines.vllm_args import flat
from tuner.records import Dominated, Faulted, Infeasible, Measured, TrialRecord
from tuner.remedies import remedy

#: What a trial that ran through but misses a bound is filed under.
CONSTRAINT = "constraint_missed"
#: What needs no mending, by reason; the rest is in ``remedies``.
_NOTHING_BROKE = {
    CONSTRAINT: "nothing to mend: it was measured, and is no candidate; loosen the constraint if"
    " that is not meant",
    "dominated": "nothing to mend: it could not have reached the front any more",
    "no_score": "check that the workload's measures give the objectives' metrics",
}

_PLAIN = (bool, int, float)
KINDS = {
    Infeasible: "can never run here",
    Faulted: "broke; the configuration may be fine",
    Dominated: "stopped early, proven worse",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """All trials that ended for one reason; ``detail`` is the first one's."""

    reason: str
    kind: str
    trials: tuple[int, ...]
    detail: str
    advice: str


def why(record: TrialRecord) -> tuple[str, str, str] | None:
    """Return reason, kind and detail of a trial without a usable result, None for a good one."""
    match record.outcome:
        case Infeasible(reason, detail) | Faulted(reason, detail):
            return reason, KINDS[type(record.outcome)], detail
        case Dominated(_, detail):
            return "dominated", KINDS[Dominated], detail
        case Measured() if record.scores is None:
            return "no_score", "ran, but an objective could not be measured", ""
        case Measured() if not record.feasible:
            missed = f"{sum(v > 0 for v in record.violations)} of {len(record.violations)} missed"
            return CONSTRAINT, "ran, but misses a constraint", missed
        case _:
            return None


def ran_otherwise(record: TrialRecord) -> Iterator[tuple[str, Json, Json]]:
    """Yield name, asked and ran of each argument that the engine silently replaced.

    By vLLM's own account where it gives one, which covers nested arguments; else by comparing plain
    values, for how an engine shows a nested one differs from how it is asked for.
    """
    if not isinstance(record.outcome, Measured):
        return
    facts = record.outcome.measurement.facts
    told, effective = facts.get("changed") or {}, facts.get("effective") or {}
    for name, asked in flat(record.config.args).items():
        before, after = told.get(name) or (None, None)
        plain = isinstance(asked, _PLAIN) and isinstance(effective.get(name), _PLAIN)
        if name in told and before == asked:
            yield name, asked, after
        elif plain and effective[name] != asked:
            yield name, asked, effective[name]


def advice(reason: str, details: Sequence[str] = ()) -> str:
    """Return what to do about a reason, by the numbers in its details."""
    return _NOTHING_BROKE.get(reason) or remedy(reason, details)


def failures(records: Sequence[TrialRecord]) -> list[Failure]:
    """Group trials without a usable result by reason, the most frequent first.

    The advice is that of all their details together.
    """
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for record in records:
        if (found := why(record)) is not None:
            reason, kind, detail = found
            groups.setdefault((reason, kind), []).append((record.number, detail))
    out = [
        Failure(
            reason,
            kind,
            tuple(n for n, _ in trials),
            trials[0][1],
            advice(reason, [detail for _, detail in trials]),
        )
        for (reason, kind), trials in groups.items()
    ]
    return sorted(out, key=lambda failure: (-len(failure.trials), failure.reason))
