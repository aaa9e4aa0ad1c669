"""Presets in their minimal form: without the knobs that make no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.attribution import Attribution, differences, minimal_config, without
from tuner.config import EngineConfig, Json
from tuner.presets import Preset
from tuner.results import StudyResults

if TYPE_CHECKING:
    from tuner.engines.vllm_check import Checker

SUFFIX = "-minimal"


def defaults(
    base: EngineConfig, names: Sequence[str], checker: Checker | None
) -> Mapping[str, Json]:
    """Return what the engine makes of arguments that ``base`` leaves open.

    Without a checker of the installed vLLM, what the simulated engine makes of them.
    """
    if checker is not None:
        return checker.check(base, names).effective
    from tuner.engines.simulated_costs import DEFAULTS

    return DEFAULTS


def minimal_forms(
    results: StudyResults, presets: Sequence[Preset], checker: Checker | None = None
) -> list[Preset]:
    """Return the minimal form of each preset that has one: of another configuration than itself.

    Knobs go where an explained winner did not need them, and where they say what vLLM takes anyway.
    """
    definition = results.definition
    base = EngineConfig(str(definition.get("model", "")), definition.get("arguments", {}))
    space = definition.get("space", {})
    names = [*space.get("knobs", {}), *(n for n in space.get("fixed", {}) if n not in base.args)]
    known = defaults(base, names, checker)
    found = results.attribution
    forms = []
    for preset in presets:
        if found is not None and found.winner.key == preset.config.key:
            form = _explained(preset, found)
        else:
            same = differences(names, preset.config, known)[1]
            form = _form(preset, without(preset.config, same), same)
        if form.config.key != preset.config.key:
            forms.append(form)
    return forms


def _explained(preset: Preset, found: Attribution) -> Preset:
    dropped = [*found.may_go, *found.same]
    form = _form(preset, minimal_config(found), dropped)
    if not found.may_go:
        return form
    measured = found.minimal or next(
        effect for effect in found.effects if effect.changed.knob == found.may_go[0]
    )
    ratios = {metric: ratio.value for metric, ratio in measured.ratios.items()}
    caution = f"scores are the full form's; runs of each beside the other: {found.repeats}"
    more = {"ratio_to_full_form": ratios, "caution": caution}
    return replace(form, provenance={**form.provenance, **more})


def _form(preset: Preset, config: EngineConfig, dropped: Sequence[str]) -> Preset:
    provenance = {**preset.provenance, "minimal_of": preset.name, "left_out": list(dropped)}
    return replace(preset, name=preset.name + SUFFIX, config=config, provenance=provenance)
