"""What the report says, as plain values for its template."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.config import Json
from tuner.objectives import Objective
from tuner.presets import Preset, Provenance, is_baseline, ratios
from tuner.records import Dominated, Faulted, Infeasible, Measured, TrialRecord
from tuner.report_figures import Shown, names_of
from tuner.report_table import (
    caption_of,
    in_common,
    ordered,
    same_trial,
    settings_of,
)
from tuner.report_text import (
    better,
    change,
    half_width,
    quantity,
    seconds,
    title,
    value_text,
)

_PLAIN = bool | int | float


@dataclass(frozen=True, slots=True)
class Score:
    """One score as shown; ``change`` is against the default, '' where there is none.

    ``tone``: "good" or "bad"; "calm" where repeats do not show the change. ``spread``: half the
    width of its interval, "± 12 ms"; '' for a single measurement.
    """

    name: str
    text: str
    change: str = ""
    tone: str = ""
    value: float = 0.0
    spread: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One trial in a table."""

    number: int
    names: str
    kind: str
    outcome: str
    reason: str
    scores: tuple[Score, ...]
    settings: tuple[tuple[str, str], ...]
    config: str
    durations: tuple[tuple[str, float], ...]


def scores(record: TrialRecord, shown: Shown, default: TrialRecord | None) -> tuple[Score, ...]:
    """Return a trial's scores against the default's; empty where it has none."""
    objectives = shown.objectives
    gains = {} if same_trial(record, default) else ratios(record, default, objectives)
    bounds = shown.intervals.get(record.number, {})
    return tuple(
        Score(
            title(o.metric),
            quantity(value, o.metric),
            change(gains[o.metric]) if o.metric in gains else "",
            _tone(record.number, o, gains.get(o.metric), shown),
            value,
            half_width(bounds.get(o.metric), o.metric),
        )
        for o, value in zip(objectives, record.scores or (), strict=bool(record.scores))
    )


def _tone(trial: int, objective: Objective, ratio: float | None, shown: Shown) -> str:
    if ratio is None or (trial, objective.metric) in shown.unproven:
        return "calm"
    return "good" if better(ratio, objective) else "bad"


def cards(
    presets: Sequence[Preset], shown: Shown, default: TrialRecord | None
) -> list[tuple[str, int, tuple[Score, ...]]]:
    """Return the named members, one each, with all their names, trial and scores."""
    names: dict[int, list[str]] = {}
    for preset in presets:
        names.setdefault(preset.trial, []).append(preset.name)
    by_trial = {record.number: record for record in shown.records}
    return [
        (
            ", ".join(those),
            trial,
            scores(by_trial[trial], shown, default),
        )
        for trial, those in names.items()
    ]


def row(
    record: TrialRecord,
    shown: Shown,
    default: TrialRecord | None,
    common: Mapping[str, Json] | None = None,
) -> Row:
    """Return one trial as a table shows it, without the settings that are ``common`` to all."""
    members = {member.number for member in shown.front}
    differing = settings_of(record, default, common or {})
    cost = record.cost
    outcome, reason = _outcome(record)
    kind = "member" if record.number in members else "baseline" if is_baseline(record) else "trial"
    return Row(
        record.number,
        names_of(record, shown.presets),
        kind,
        outcome,
        reason,
        scores(record, shown, default),
        tuple((name, value_text(value)) for name, value in differing.items()),
        json.dumps(record.config.to_json(), indent=2, ensure_ascii=False),
        tuple(
            (seconds(s), s) for s in (cost.start_s, cost.reconfigure_s, cost.replay_s, cost.other_s)
        ),
    )


def _outcome(record: TrialRecord) -> tuple[str, str]:
    match record.outcome:
        case Measured() if record.scores is None:
            return "no score", ""
        case Measured():
            return ("measured", "") if record.feasible else ("misses a constraint", "")
        case Infeasible(reason, _):
            return "infeasible", reason.replace("_", " ")
        case Faulted(reason, _):
            return "faulted", reason.replace("_", " ")
        case Dominated():
            return "stopped early", "proven worse"


def front_rows(shown: Shown, default: TrialRecord | None) -> list[Row]:
    """Return baselines, then members, best first in the first objective."""
    above, below = ordered(_fronting(shown), shown.objectives)
    common = in_common([*above, *below], default)
    return [row(record, shown, default, common) for record in [*above, *below]]


def front_caption(shown: Shown, default: TrialRecord | None) -> str:
    """Return the lines below ``front_rows``: against what, what ± means, what all set alike."""
    above, below = ordered(_fronting(shown), shown.objectives)
    return caption_of(default, in_common([*above, *below], default), bool(shown.intervals))


def _fronting(shown: Shown) -> list[TrialRecord]:
    baselines = [record for record in shown.measured if is_baseline(record)]
    return list({record.number: record for record in [*baselines, *shown.front]}.values())


def summary(records: Sequence[TrialRecord]) -> str:
    """Return in one sentence what was tried and what it took."""
    kinds = Counter(_outcome(record)[0] for record in records)
    starts = sum(record.cost.start_s > 0 for record in records)
    live = sum(record.cost.reconfigure_s > 0 for record in records)
    total = sum(record.cost.total_s for record in records)
    gpu_hours = sum(record.cost.gpu_s for record in records) / 3600
    words = {"misses a constraint": "that miss a constraint", "no score": "without a score"}
    parts = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in kinds.most_common())
    text = f"{len(records)} trials: {parts}. {starts} engine starts"
    text += f", {live} live reconfigurations" if live else ""
    text += f"; {seconds(total)} spent on trials"
    return text + (f", {gpu_hours:.2f} GPU hours." if gpu_hours else ".")


def mismatches(records: Sequence[TrialRecord]) -> list[tuple[str, str, str, str]]:
    """Return what engines ran with instead of what was asked: name, asked, ran, trials."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for record in records:
        for name, asked, ran in _changed(record):
            found.setdefault((name, value_text(asked), value_text(ran)), []).append(record.number)
    return [
        (name, asked, ran, _numbers(trials)) for (name, asked, ran), trials in sorted(found.items())
    ]


def _changed(record: TrialRecord) -> Iterator[tuple[str, Json, Json]]:
    """Scalars only: how an engine reports nested settings differs from how they are asked for."""
    if isinstance(record.outcome, Measured):
        effective = record.outcome.measurement.facts.get("effective") or {}
        for name, asked in record.config.args.items():
            both = isinstance(asked, _PLAIN) and isinstance(effective.get(name), _PLAIN)
            if both and effective[name] != asked:
                yield name, asked, effective[name]


def _numbers(trials: Sequence[int], most: int = 12) -> str:
    shown = ", ".join(map(str, trials[:most]))
    return f"{shown} and {len(trials) - most} more" if len(trials) > most else shown


def warnings(records: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    """Return the measurements' warnings, each with the trials that gave it."""
    found: dict[str, list[int]] = {}
    for record in records:
        if isinstance(record.outcome, Measured):
            for text in record.outcome.measurement.warnings:
                found.setdefault(text, []).append(record.number)
    return [(text, _numbers(trials)) for text, trials in found.items()]


def banners(provenance: Provenance, records: Sequence[TrialRecord]) -> list[str]:
    """Return what every reader has to know before the first number."""
    out = []
    if provenance.simulated:
        out.append(
            "Simulated engine: a cost model gave these numbers, no model ran. They show how the"
            " search works, not how fast anything is."
        )
    elif any(record.config.args.get("load_format") == "dummy" for record in records):
        out.append("Random weights (load_format dummy): the speed is real, the text is not.")
    device = str(provenance.hardware.get("device") or "")
    if device == "cpu" or (not provenance.simulated and not provenance.hardware.get("gpus", True)):
        out.append("Measured on a CPU: this optimum says nothing about a GPU.")
    return out


def workload_facts(preset: Preset) -> list[tuple[str, str]]:
    """Return what was replayed, and what it was like, as the recommended trial saw it."""
    measured, counts = preset.provenance.get("measured", {}), preset.provenance.get("counts", {})
    facts = [
        (f"requests scored ({name.split('.')[0]})", f"{count:,}")
        for name, count in counts.items()
        if name.endswith(".requests")
    ]
    wanted = (
        "paced.requests_per_s", "paced.lateness.p99", "paced.error_share", "paced.attainment",
        "paced.ttft.p50", "paced.ttft.p99", "paced.tpot.p50", "paced.itl.p99", "paced.goodput",
        "saturated.requests_per_s", "saturated.prefix_hit_share", "saturated.preemptions",
        "saturated.kv_usage_max_share",
    )  # fmt: skip
    facts += [(title(m), quantity(measured[m], m)) for m in wanted if m in measured]
    tokens = preset.provenance.get("engine", {}).get("kv_cache_tokens")
    return [*facts, ("KV cache", f"{tokens:,} tokens")] if tokens else facts


def origin(provenance: Provenance, model: str) -> list[tuple[str, str]]:
    """Return where the numbers come from; what is not known is left out."""
    hardware = provenance.hardware
    memory, gpus = hardware.get("memory_bytes"), Counter(hardware.get("gpus") or [])
    rows = [
        ("study", provenance.study),
        ("model", model),
        ("definition digest", provenance.definition_digest),
        ("workload", provenance.workload),
        ("workload digest", provenance.workload_digest),
        ("trace digest", provenance.trace_digest),
        ("device", hardware.get("device")),
        ("GPUs", ", ".join(f"{n} x {gpu}" for gpu, n in gpus.items())),
        ("driver", hardware.get("driver")),
        ("processor", f"{hardware.get('cpu')}, {hardware.get('cpu_cores')} cores"
         if hardware.get("cpu") else None),
        ("memory", f"{memory / 2**30:.0f} GiB" if memory else None),
        ("system", hardware.get("system")),
        *((name, version) for name, version in provenance.versions.items()),
        ("command", provenance.command),
        ("written", provenance.date),
    ]  # fmt: skip
    return [(name, str(value)) for name, value in rows if value]
