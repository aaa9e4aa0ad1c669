"""The verdict of a study: what to deploy, what it gains, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.objectives import Objective
from tuner.presets import Preset, ratios
from tuner.records import Measured, TrialRecord
from tuner.report_confirmed import (
    Against,
    Proof,
    against,
    proven_gain,
    proven_text,
    standing,
    vanished,
)
from tuner.report_sure import NOISE_SHARE, sure
from tuner.report_text import change, quantity, short

#: Verdicts of repeats, the best first.
_STANDINGS = ("gain", "trade", "not shown", "worse")
#: Of a single measurement, in the logarithm.
_NOISE = math.log1p(NOISE_SHARE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reader should do. ``preset`` is None where there is nothing to deploy.

    ``tone``: "gain" (shown by repeats to be better; or better, and worse in no objective by more
    than noise), "small" (all within noise), "trade" (better in some), "worse", "same" (it is the
    default), "meets" (the default misses a constraint), "alone" (no default was measured) or
    "none".
    """

    tone: str
    headline: str
    lead: str
    preset: Preset | None
    sure: tuple[str, ...]
    #: What repeats say of it against each baseline; empty without a confirmation.
    against: tuple[Against, ...] = ()

    @property
    def launch(self) -> str:
        """The command that deploys it, '' where nothing is to be changed."""
        if self.preset is None or self.tone not in {"gain", "trade", "meets", "alone"}:
            return ""
        return f"vllm serve --config presets/{self.preset.name}.yaml"


def decide(
    presets: Sequence[Preset],
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
    proof: Proof | None = None,
) -> Verdict:
    """Return the verdict over the named members of a front.

    It recommends the preset with the largest gain over the default that repeats have shown. Where
    nothing was confirmed it goes by single measurements: the largest mean gain among the presets
    that are worse in no objective by more than noise; without such a one, the balanced one.
    """
    proof = proof or Proof()
    if not presets:
        return Verdict("none", "Nothing to deploy", _why_nothing(records), None, ())
    best = _proven(presets, objectives, proof) or _recommended(presets, objectives)
    found = _confirmed_words(best, objectives, default, records, proof)
    tone = found[0] if found else _tone(best, objectives, default)
    headline, lead = found[1:] if found else _words(tone, best, objectives, default, records)
    one = proof.of(best.trial)
    return Verdict(
        tone,
        headline,
        lead,
        best,
        tuple(sure(best, presets, objectives, default, records, proof)),
        tuple(against(one, proof)) if one else (),
    )


def _proven(
    presets: Sequence[Preset], objectives: Sequence[Objective], proof: Proof
) -> Preset | None:
    """Return the preset with the best standing against vLLM's defaults, by its proven gain."""
    default = proof.default
    if default is None:
        return None
    ranked = [
        (-_STANDINGS.index(standing(one, default)), proven_gain(one, default, objectives), preset)
        for preset in presets
        if (one := proof.of(preset.trial)) is not None and one.trial != default.trial
    ]
    if not ranked:
        return None
    best = max(ranked, key=lambda entry: entry[:2])[2]
    same = [preset for preset in presets if preset.trial == best.trial]
    return next((preset for preset in same if preset.name == "balanced"), same[0])


_CONFIRMED_HEADLINES = {
    "gain": "Deploy {name}: {proven}",
    "trade": "A trade, {name}: {proven}",
    "meets": "Deploy {name}: it meets every constraint, vLLM's defaults do not ({proven})",
    "small": "Keep vLLM's defaults: no gain is shown",
    "worse": "Keep vLLM's defaults: what was found is worse",
}


def _confirmed_words(
    best: Preset,
    objectives: Sequence[Objective],
    default: TrialRecord | None,
    records: Sequence[TrialRecord],
    proof: Proof,
) -> tuple[str, str, str] | None:
    """Return tone, headline and lead as repeats have it; None where they say nothing."""
    one, base = proof.of(best.trial), proof.default
    if one is None or base is None or one.trial == base.trial:
        return None
    tone = {"not shown": "small"}.get(stands := standing(one, base), stands)
    if default is not None and not default.feasible:
        tone = "meets"
    proven = proven_text(one, base)
    ours, theirs = (
        " and ".join(
            quantity(value, o.metric)
            for value, o in zip(c.scores.mean(axis=0).tolist(), objectives, strict=True)
        )
        for c in (one, base)
    )
    name = best.config.label.partition(": ")[2] or best.name
    lead = (
        f"Trial {best.trial} ({name}) reaches {ours}, vLLM's defaults (trial {base.trial}) "
        f"{theirs}: means of {len(one.scores)} repeats each."
    )
    gone = vanished(one, base, records, objectives)
    headline = _CONFIRMED_HEADLINES[tone].format(name=best.name, proven=proven)
    return tone, headline, " ".join([lead, *gone])


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
    return (min(gains, default=-1.0) > -_NOISE, sum(gains))


def _recommended(presets: Sequence[Preset], objectives: Sequence[Objective]) -> Preset:
    """Return the best preset, or the balanced one where that is as good but for noise."""
    scores = {preset.name: _score(preset, objectives) for preset in presets}
    sound, most = max(scores.values())
    balanced = next((preset for preset in presets if preset.name == "balanced"), presets[0])
    if not sound:
        return balanced
    near = [p for p in presets if scores[p.name][0] and scores[p.name][1] > most - _NOISE]
    return balanced if balanced in near else max(near, key=lambda p: scores[p.name])


def _tone(preset: Preset, objectives: Sequence[Objective], default: TrialRecord | None) -> str:
    gains = preset.gains
    if default is None or not gains:
        return "alone"
    if preset.trial == default.number:
        return "same"
    if not default.feasible:
        return "meets"
    found = [_gain(gains[o.metric], o) for o in objectives if gains.get(o.metric, 0) > 0]
    if max(found, default=0.0) <= 0:
        return "worse"
    if max(map(abs, found)) < _NOISE:
        return "small"
    return "gain" if min(found) > -_NOISE else "trade"


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
