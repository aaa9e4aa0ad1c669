"""The verdict of a study: what to deploy, what it gains, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.objectives import Objective
from tuner.presets import Preset, ratios
from tuner.records import Measured, TrialRecord
from tuner.report_text import better, change, number, quantity, seconds, short

#: Changes below this are within what single replays of one configuration differ by.
NOISE_SHARE = 0.05
#: Fewest requests for which a P99 is more than almost the longest one.
ENOUGH_FOR_P99 = 100
#: Measurements from which a difference can be told from noise at all.
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reader should do. ``preset`` is None where there is nothing to deploy.

    ``tone``: "gain" (better in every objective), "small" (so, but within noise), "trade" (better
    in some), "worse", "same" (it is the default), "meets" (the default misses a constraint),
    "alone" (no default was measured) or "none".
    """

    tone: str
    headline: str
    lead: str
    preset: Preset | None
    sure: tuple[str, ...]


def decide(
    presets: Sequence[Preset],
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
) -> Verdict:
    """Return the verdict over the named members of a front.

    It recommends the preset with the largest mean gain among those that are better than the default
    in every objective; without such a one, the balanced one.
    """
    if not presets:
        return Verdict("none", "Nothing to deploy", _why_nothing(records), None, ())
    best = _recommended(presets, objectives)
    tone = _tone(best, objectives, default)
    headline, lead = _words(tone, best, objectives, default, records)
    return Verdict(
        tone, headline, lead, best, tuple(_sure(best, presets, objectives, default, records))
    )


def _why_nothing(records: Sequence[TrialRecord]) -> str:
    if not records:
        return "No trial has finished yet."
    measured = sum(isinstance(record.outcome, Measured) for record in records)
    if measured:
        return f"None of the {measured} measured trials meets every constraint."
    return f"None of the {len(records)} trials gave a measurement. The failures below say why."


def _gain(ratio: float, objective: Objective) -> float:
    return math.log(ratio) if objective.maximize else -math.log(ratio)


def _score(preset: Preset, objectives: Sequence[Objective]) -> tuple[bool, float]:
    gains = [
        _gain(preset.gains[o.metric], o) for o in objectives if preset.gains.get(o.metric, 0) > 0
    ]
    return (min(gains, default=-1.0) > 0, sum(gains))


def _recommended(presets: Sequence[Preset], objectives: Sequence[Objective]) -> Preset:
    best = max(presets, key=lambda preset: _score(preset, objectives))
    if _score(best, objectives)[0]:
        same = [preset for preset in presets if preset.trial == best.trial]
        return next((preset for preset in same if preset.name == "balanced"), same[0])
    return next((preset for preset in presets if preset.name == "balanced"), presets[0])


def _tone(preset: Preset, objectives: Sequence[Objective], default: TrialRecord | None) -> str:
    gains = preset.gains
    if default is None or not gains:
        return "alone"
    if preset.trial == default.number:
        return "same"
    if not default.feasible:
        return "meets"
    signs = [better(gains[o.metric], o) for o in objectives if o.metric in gains]
    if all(signs):
        small = all(abs(gain - 1) < NOISE_SHARE for gain in gains.values())
        return "small" if small else "gain"
    return "trade" if any(signs) else "worse"


def gains_text(preset: Preset, objectives: Sequence[Objective]) -> str:
    """Return the changes against the default: "+31 % output throughput, -22 % P99 ..."."""
    parts = []
    for objective in objectives:
        if (ratio := preset.gains.get(objective.metric)) is not None:
            parts.append(f"{change(ratio)} {short(objective.metric)}")
    return ", ".join(parts)


_HEADLINES = {
    "gain": "Deploy {name}: {gains}",
    "small": "Keep what you run: {name} gains too little to tell",
    "trade": "A trade, {name}: {gains}",
    "worse": "Keep vLLM's defaults: nothing on the front beats them",
    "meets": "Deploy {name}: it meets every constraint, vLLM's defaults do not ({gains})",
    "same": "Keep vLLM's defaults: they are on the front",
    "alone": "Best compromise found: {name}",
}


def _words(
    tone: str,
    best: Preset,
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
) -> tuple[str, str]:
    gains = gains_text(best, objectives)
    headline = _HEADLINES[tone].format(name=best.name, gains=gains)
    scores = " and ".join(
        f"{quantity(best.scores[o.metric], o.metric)} {short(o.metric)}" for o in objectives
    )
    if tone == "same":
        return headline, f"No trial was better in every objective. They reach {scores}."
    text = f"Trial {best.trial} reached {scores}."
    if default is not None and default.scores is not None:
        pairs = zip(default.scores, objectives, strict=True)
        base = " and ".join(quantity(score, o.metric) for score, o in pairs)
        text = f"{text} vLLM's defaults (trial {default.number}) reached {base}."
        hint = _all_round(records, objectives, default) if tone == "trade" else ""
        return headline, f"{text} {hint}".rstrip()
    return headline, f"{text} vLLM's defaults were not measured, so no gain can be stated."


def _all_round(
    records: Sequence[TrialRecord], objectives: Sequence[Objective], default: TrialRecord
) -> str:
    """Name the trial that beats the default in every objective by most, '' where there is none."""
    best, most = None, 0.0
    for record in records:
        gains = ratios(record, default, objectives) if record.feasible else {}
        logs = [_gain(gains[o.metric], o) for o in objectives if gains.get(o.metric, 0) > 0]
        if len(logs) == len(objectives) and min(logs) > 0 and sum(logs) > most:
            best, most = record, sum(logs)
    if best is None:
        return "No trial was better in every objective."
    gains = ratios(best, default, objectives)
    parts = ", ".join(f"{change(gains[o.metric])} {short(o.metric)}" for o in objectives)
    return f"Trial {best.number} beats them in every objective: {parts}."


def _price(
    presets: Sequence[Preset], default: TrialRecord | None, records: Sequence[TrialRecord]
) -> str:
    """Say what it would take to know better."""
    measured = [record.cost for record in records if record.scores is not None]
    starts = [cost.start_s for cost in measured if cost.start_s > 0]
    replays = [cost.replay_s + cost.other_s for cost in measured]
    each = (statistics.median(starts) if starts else 0.0) + statistics.median(replays)
    engines = len({p.trial for p in presets} | ({default.number} if default else set()))
    took = seconds(math.ceil(engines * REPEATS * each / 60) * 60).removesuffix(" 00 s")
    return (
        f"To know better: {engines} configurations, started cold and measured {REPEATS} times each,"
        f" take about {took}."
    )


def _sure(
    best: Preset,
    presets: Sequence[Preset],
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
) -> list[str]:
    whence = best.provenance
    out: list[str] = []
    if whence.get("simulated"):
        out.append("Simulated: a cost model gave these numbers; no engine ran.")
    repeats = whence.get("confirmed_repeats") or 0
    if repeats:
        out.append(f"Confirmed: started cold and measured {repeats} more times.")
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
    if not repeats and not whence.get("simulated"):
        out.append(_price(presets, default, records))
    if default is None:
        out.append("No baseline: add vLLM's defaults to the study to see a gain.")
    return out


def _alike(presets: Sequence[Preset], objectives: Sequence[Objective]) -> list[str]:
    """Say in which objectives the named members hardly differ."""
    out = []
    for objective in objectives:
        values = [preset.scores[objective.metric] for preset in presets]
        span = max(values) / min(values) - 1 if min(values) > 0 else 1.0
        if 0 < span < NOISE_SHARE:
            out.append(
                f"The presets differ by only {number(span * 100)} % in {short(objective.metric)},"
                " less than single measurements do: choose by the rest."
            )
    return out


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


def markdown(verdict: Verdict) -> str:
    """Return the verdict for the dashboard's note or a pull request."""
    sure = "\n".join(f"- {line}" for line in verdict.sure)
    launch = f"`vllm serve --config presets/{verdict.preset.name}.yaml`" if verdict.preset else ""
    parts = [f"## {verdict.headline}", verdict.lead, launch, sure]
    return "\n\n".join(part for part in parts if part)
