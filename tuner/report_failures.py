"""Why trials gave no result, how often, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.records import Dominated, Faulted, Infeasible, Measured, TrialRecord

#: What a trial that ran through but misses a bound is filed under.
CONSTRAINT = "constraint_missed"
#: Reason -> what to do. Every reason that the tuner itself gives has a line here.
ADVICE = {
    "out_of_memory": "Lower the upper end of gpu-memory-utilization, max-model-len or max-num-seqs,"
    " or raise tensor-parallel-size.",
    "invalid_arguments": "vLLM refuses this combination: add it to the space's rules so that it is"
    " not proposed (`tuner check` lists them all).",
    "model_too_long": "Raise max-model-len, or cut the trace's longest requests (a length_scale).",
    "unsupported": "This hardware or build does not have it: take the value out of the space.",
    "not_hot": "A knob was changed live that cannot be: mark it cold in the search space.",
    "launch_timeout": "The engine gave no first token in time: raise deadlines.start_s, or look for"
    " a download or a compile in the engine's log.",
    "stalled": "The engine stopped making tokens: read the engine's log; if it comes again with"
    " the same configuration, take that out of the space.",
    "deadline": "The replay ran longer than allowed: raise deadlines.replay_s or cut the trace.",
    "engine_died": "Read the end of the engine's log; the usual cause is the machine's memory"
    " running out.",
    "host_error": "Read the engine's log: the process around the engine broke, not the engine.",
    "worker_lost": "A node or an actor went away: look at Ray's logs and the machine's memory.",
    "slot_not_clean": "Processes of an earlier trial were left: end them, then resume the study.",
    "too_many_errors": "Read the first error in the detail: the requests do not fit the engine"
    " (length, model name, tokenizer).",
    "client_late": "The load generator could not keep the trace's times: leave it more CPU, or"
    " lower rate_scale.",
    "interrupted": "The study was stopped meanwhile: run it again to resume; the trial is retried.",
    "cancelled": "The study was stopped meanwhile: run it again to resume; the trial is retried.",
    CONSTRAINT: "Nothing to mend: it was measured, and is no candidate. If that is not meant,"
    " loosen the constraint.",
    "dominated": "Nothing to mend: it could not have reached the front any more.",
    "no_score": "Check that the workload's measures give the objectives' metrics.",
}
_OTHERWISE = (
    "Read the trial's engine.log; if it comes again with the same configuration, exclude it."
)

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


def advice(reason: str) -> str:
    """Return what to do about a reason."""
    return ADVICE.get(reason, _OTHERWISE)


def failures(records: Sequence[TrialRecord]) -> list[Failure]:
    """Group trials without a usable result by reason, the most frequent first."""
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for record in records:
        if (found := why(record)) is not None:
            reason, kind, detail = found
            groups.setdefault((reason, kind), []).append((record.number, detail))
    out = [
        Failure(reason, kind, tuple(n for n, _ in trials), trials[0][1], advice(reason))
        for (reason, kind), trials in groups.items()
    ]
    return sorted(out, key=lambda failure: (-len(failure.trials), failure.reason))
