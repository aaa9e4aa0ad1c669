"""What went wrong in a study, which knob explains it, and what to try: from its results alone.

Three questions that people ask: why is memory short so often, why does latency jitter, what did
quantization cost in accuracy. Each answer shows the counts it rests on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tuner.accuracy import Drift, changes_numbers, changing
from tuner.blame import Blame, Split, level_explained, share_explained
from tuner.doctor_findings import Finding
from tuner.records import Dominated, Faulted, Infeasible, Measured, TrialRecord
from tuner.report_failures import failures, ran_otherwise
from tuner.results import load_results

#: Gaps between tokens jitter where the longest percent is this many times the median.
JITTERY = 5.0
#: Fewest failures of one kind that are looked into.
ENOUGH = 3
#: What ends a trial without saying anything of its configuration.
_OF_NO_MEANING = ("interrupted", "cancelled")
#: What to keep to -> why it is calmer; nothing is known of the other direction.
_CALMER = {
    "max_num_batched_tokens <=": "a long prompt's piece delays everybody's next token: a smaller "
    "max_num_batched_tokens or long_prefill_token_threshold keeps pieces short",
    "enable_chunked_prefill = true": "unchunked prompts delay everybody's next token",
    "enable_chunked_prefill other than false": "unchunked prompts delay everybody's next token",
    "max_num_seqs <=": "fewer sequences at once share a step, and preempt each other less",
    "gpu_memory_utilization >": "a larger KV cache preempts less",
    "num_gpu_blocks_override >": "a larger KV cache preempts less",
}


def diagnose_results(folder: Path) -> list[Finding]:
    """Look at a study's results. Raises StudyError or StoreError where the folder holds none."""
    results = load_results(folder)
    return [*examine(results.records), *accuracy(results.records, results.drifts)]


def examine(records: Sequence[TrialRecord]) -> list[Finding]:
    """Return what failed, what jitters and what the engine replaced, and why."""
    if not records:
        return [Finding("warn", "no trial has finished yet", "", "run the study first")]
    return [*_failures(records), *_jitter(records), *_replaced(records)]


def _failures(records: Sequence[TrialRecord]) -> Iterator[Finding]:
    ended = [
        one for one in failures(records) if isinstance(_of(records, one.trials[0]), Infeasible)
    ]
    broke = [one for one in failures(records) if isinstance(_of(records, one.trials[0]), Faulted)]
    for failure in [*ended, *broke]:
        if failure.reason in _OF_NO_MEANING:
            continue
        count = len(failure.trials)
        title = f"{failure.reason}: {count} of {len(records)} trials"
        blamed = _blamed(records, failure.reason) if count >= ENOUGH else []
        level = "error" if count * 2 > len(records) else "warn"
        starts = sum(_record(records, n).cost.start_s > 0 for n in failure.trials)
        counted = f"{starts} of them cost an engine start"
        told = [_share_text(one) for one in blamed] or [_unexplained(count)]
        way_out = "; ".join([failure.advice, *(f"keep to {one.split.other}" for one in blamed)])
        yield Finding(level, title, "\n".join([counted, *told]), way_out)  # type: ignore[arg-type]
    if not any(one.reason == "out_of_memory" for one in ended):
        yield Finding("ok", "no trial ran out of memory")


def _of(records: Sequence[TrialRecord], number: int) -> object:
    return _record(records, number).outcome


def _record(records: Sequence[TrialRecord], number: int) -> TrialRecord:
    return next(record for record in records if record.number == number)


def _blamed(records: Sequence[TrialRecord], reason: str) -> list[Blame]:
    """Hold the trials that ended for a reason against those that ran; others say nothing of it."""
    held = [
        record
        for record in records
        if record.point
        and (isinstance(record.outcome, Measured | Dominated) or _reason(record) == reason)
    ]
    points = [record.point for record in held]
    return share_explained(points, [_reason(record) == reason for record in held])


def _reason(record: TrialRecord) -> str:
    return str(getattr(record.outcome, "reason", ""))


def _share_text(blame: Blame) -> str:
    return (
        f"explained by {blame.split}: {blame.bad_inside} of {blame.inside} trials with it, "
        f"{blame.bad_outside} of {blame.outside} without (p {blame.p_value:.2g})"
    )


def _unexplained(count: int) -> str:
    if count < ENOUGH:
        return "too few to look for a knob"
    return "no single knob explains it"


def _jitter(records: Sequence[TrialRecord]) -> Iterator[Finding]:
    """Compare the longest percent of the gaps between tokens with their median, per trial."""
    told = [(record, value) for record in records if (value := _unevenness(record)) is not None]
    if not told:
        yield Finding("ok", "token gaps were not measured", "the workload has no paced replay")
        return
    values = [value for _, value in told]
    worst = [value for value in values if value > JITTERY]
    median = float(np.median(values))
    summary = f"P99 of the gaps between tokens is {median:.1f} times their median, at the median"
    if not worst:
        yield Finding("ok", "latency is even", f"{summary} of {len(told)} trials")
        return
    pointed = [(record, value) for record, value in told if record.point]
    blame = level_explained([r.point for r, _ in pointed], [v for _, v in pointed])
    title = f"latency jitters: {len(worst)} of {len(told)} trials"
    lines = [f"{summary}; in these it is over {JITTERY:g} times", *_preempted(told)]
    if blame is None or blame.levels is None:
        yield Finding("warn", title, "\n".join([*lines, _unexplained(ENOUGH)]), _CALM)
        return
    high, low = blame.levels
    lines.append(
        f"explained by {blame.split}: {high:.1f} times at the median of {blame.inside} trials with "
        f"it, {low:.1f} times in {blame.outside} without (p {blame.p_value:.2g})"
    )
    yield Finding("warn", title, "\n".join(lines), _keep_to(blame.split.other))


def _keep_to(rule: Split) -> str:
    number = rule.relation in ("<=", ">")
    why = _CALMER.get(f"{rule.name} {rule.relation}" if number else str(rule))
    return f"keep to {rule}" + (f": {why}" if why else "")


_CALM = "repeat the trials that jitter (repeats: 3): what does not come again was the machine"


def _unevenness(record: TrialRecord) -> float | None:
    if not isinstance(record.outcome, Measured):
        return None
    values = record.outcome.measurement.values
    high, middle = values.get("paced.itl.p99"), values.get("paced.itl.p50")
    return high / middle if high is not None and middle else None


def _preempted(told: Sequence[tuple[TrialRecord, float]]) -> Iterator[str]:
    """Say how many of the uneven trials preempted, where the engine counted it."""
    uneven = [record for record, value in told if value > JITTERY]
    counts = [_value(record, "paced.preemptions") for record in uneven]
    known = [count for count in counts if count is not None]
    if known:
        preempted = sum(count > 0 for count in known)
        yield f"requests were preempted for want of KV cache in {preempted} of {len(known)} of them"


def _value(record: TrialRecord, name: str) -> float | None:
    outcome = record.outcome
    return outcome.measurement.values.get(name) if isinstance(outcome, Measured) else None


def _replaced(records: Sequence[TrialRecord]) -> Iterator[Finding]:
    found: dict[str, list[int]] = {}
    for record in records:
        for name, asked, ran in ran_otherwise(record):
            found.setdefault(f"{name}: asked {asked}, ran {ran}", []).append(record.number)
    for text, trials in found.items():
        yield Finding(
            "warn",
            f"the engine ran something else in {len(trials)} trials",
            text,
            "take the value out of the space: its trials measured another one",
        )


def accuracy(records: Sequence[TrialRecord], drifts: Mapping[int, Drift]) -> Iterator[Finding]:
    """Return what changed numbers cost in accuracy, and which knob that comes from."""
    touched = [record for record in records if changes_numbers(record.config)]
    if not touched:
        yield Finding("ok", "nothing that changes what the model answers was varied")
        return
    names = sorted({name for record in touched for name in changing(record.config)})
    title = f"{len(touched)} trials change what the model answers ({', '.join(names)})"
    if not drifts:
        how = "add accuracy: {max_logprob_drift: 0.1} to the study and run it again"
        yield Finding("warn", f"{title}; accuracy was not measured", "", how)
        return
    by_number = {record.number: record for record in records}
    known = {n: drift for n, drift in drifts.items() if n in by_number}
    lines = [f"trial {n}: {drift}" for n, drift in sorted(known.items())]
    points = [_settings(by_number[n]) for n in known]
    blame = level_explained(points, [drift.worst for drift in known.values()])
    if blame is not None and blame.levels is not None:
        lines.append(
            f"explained by {blame.split}: {blame.levels[0]:.3g}, else {blame.levels[1]:.3g}"
        )
    missed = [n for n, drift in known.items() if drift.misses]
    if missed:
        way_out = "leave these settings out, or loosen accuracy.max_logprob_drift if that is meant"
        yield Finding("warn", f"{title}: {len(missed)} miss the bound", "\n".join(lines), way_out)
    else:
        bounded = any(drift.bound is not None for drift in known.values())
        held = "within the bound" if bounded else "no bound was set"
        yield Finding("ok", f"{title}: {len(known)} scored, {held}", "\n".join(lines))


def _settings(record: TrialRecord) -> dict[str, object]:
    return {**record.config.args, **record.point}
