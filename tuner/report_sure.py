"""How sure a study's result is: repeats, spread, requests, and what knowing better would cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tuner.objectives import Objective
from tuner.presets import Preset, ratios
from tuner.records import TrialRecord
from tuner.report_confirmed import Proof, again, price, rounded
from tuner.report_text import number, short

#: Changes below this are within what single replays of one configuration differ by.
NOISE_SHARE = 0.05
#: Fewest requests for which a P99 is more than almost the longest one.
ENOUGH_FOR_P99 = 100
#: Measurements from which a difference can be told from noise at all.
REPEATS = 3


def _first_price(
    presets: Sequence[Preset],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
    proof: Proof,
) -> str:
    """Say what it would take to know better where nothing was confirmed."""
    measured = [record.cost for record in records if record.scores is not None]
    starts = [cost.start_s for cost in measured if cost.start_s > 0]
    replays = [cost.replay_s + cost.other_s for cost in measured]
    each = (statistics.median(starts) if starts else 0.0) + statistics.median(replays)
    engines = len({p.trial for p in presets} | ({default.number} if default else set()))
    sets = f"confirm.members={max(1, len({p.trial for p in presets}))}"
    command = again(proof.folder, sets, f"confirm.repeats={REPEATS}")
    return (
        f"To know better: {engines} configurations, started cold and measured {REPEATS} times each,"
        f" take about {rounded(engines * REPEATS * each)}: {command}"
    )


def sure(
    best: Preset,
    presets: Sequence[Preset],
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
    proof: Proof,
) -> list[str]:
    """Return what a reader has to know about the certainty of a recommendation, one line each."""
    whence = best.provenance
    out: list[str] = []
    if whence.get("simulated"):
        out.append("Simulated: a cost model gave these numbers; no engine ran.")
    repeats = whence.get("confirmed_repeats") or 0
    if repeats:
        out.append(f"Confirmed: started cold and measured {repeats} more times{_how(proof)}.")
        out += _odds(best, proof)
    else:
        out.append(
            "Not confirmed: every number is one measurement. The best of many single measurements"
            " looks better than it is; expect part of the gain to go when it is measured again."
        )
    out += _alike(presets, objectives)
    out += _spread(records, objectives)
    requests = _requests(best, objectives)
    if requests is not None:
        few = "" if requests >= ENOUGH_FOR_P99 else "; with so few, a P99 is nearly the longest one"
        out.append(f"Percentiles come from {requests:,} requests{few}.")
    if best.trial in proof.drifts:
        out.append(f"Accuracy against the baseline: {proof.drifts[best.trial]}.")
    out.append(_better(best, proof) if repeats else _first_price(presets, default, records, proof))
    if default is None:
        out.append("No baseline: add vLLM's defaults to the study to see a gain.")
    return [line for line in out if line]


def _how(proof: Proof) -> str:
    together = len(proof.confirmed)
    others = f", interleaved with {together - 1} other configurations" if together > 1 else ""
    kept = ", on a part of the trace that the search never saw" if proof.held_out else ""
    return others + kept


def _odds(best: Preset, proof: Proof) -> list[str]:
    one = proof.of(best.trial)
    if one is None or len(proof.confirmed) < 2:
        return []
    odds = f"{one.front_probability * 100:.0f} %"
    return [f"Chance that nothing else measured here beats it in everything: {odds} (bootstrap)."]


def _better(best: Preset, proof: Proof) -> str:
    one, default = proof.of(best.trial), proof.default
    if one is None or default is None or one.trial == default.trial:
        return ""
    return price(one, default, proof)


def _alike(presets: Sequence[Preset], objectives: Sequence[Objective]) -> list[str]:
    """Say in which objectives the named members hardly differ."""
    small = []
    for objective in objectives:
        values = [preset.scores[objective.metric] for preset in presets]
        span = max(values) / min(values) - 1 if min(values) > 0 else 1.0
        if 0 < span < NOISE_SHARE:
            size = "by less than 0.1 %" if span < 0.001 else f"by {number(span * 100)} %"
            small.append(f"{size} in {short(objective.metric)}")
    if not small:
        return []
    return [
        f"The presets hardly differ: {' and '.join(small)}, less than noise; choose by the rest."
    ]


def _requests(preset: Preset, objectives: Sequence[Objective]) -> int | None:
    counts = preset.provenance.get("counts", {})
    found = [
        counts[key]
        for objective in objectives
        if ".p9" in objective.metric
        for key in (
            objective.metric.rsplit(".", 1)[0],
            objective.metric.split(".")[0] + ".requests",
        )
        if key in counts
    ]
    return min(found) if found else None


def _spread(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[str]:
    """Say how far measurements of one configuration lie apart, where there are such."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.scores is not None:
            groups.setdefault(record.config.key, []).append(record)
    repeated = [group for group in groups.values() if len(group) > 1]
    if not repeated:
        return []
    parts = []
    for objective in objectives:
        widest = max(
            max(ratio, 1 / ratio) - 1
            for group in repeated
            for record in group[1:]
            if (ratio := ratios(record, group[0], objectives).get(objective.metric, 1.0)) > 0
        )
        parts.append(f"{number(widest * 100)} % in {short(objective.metric)}")
    return [f"Repeats of one configuration differ by up to {' and '.join(parts)}."]
