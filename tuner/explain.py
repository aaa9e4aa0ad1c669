"""Explaining a gain: measure the winner with one knob at a time set back, beside the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.again import Again, measure_again
from tuner.attribution import Changed, Plan, differences
from tuner.beforehand import checking, ends, refusing, temperatures
from tuner.config import EngineConfig
from tuner.demotion import cooled
from tuner.errors import Problem, StudyError
from tuner.knobs import ChoiceDomain
from tuner.minimal import defaults
from tuner.presets import Preset, is_baseline
from tuner.results import StudyResults, load_results
from tuner.results_attribution import study_name
from tuner.study import StudySpec
from tuner.surroundings import Surroundings
from tuner.tune import Check

#: The winner itself and one knob: less explains nothing.
LEAST = 2


def explain_study(spec: StudySpec, around: Surroundings) -> str:
    """Set the winner's knobs back one at a time and measure; return why it ended.

    About ``attribution.trials`` runs: the winner, each knob, and what is left of the winner without
    the knobs that made no difference, as often as the budget allows. Live where a knob is hot, and
    these knobs first where the budget is short. What was measured earlier is not measured again.
    """
    results = load_results(around.folder)
    winner = choose_winner(results, spec.attribution.preset)
    if winner is None:
        return "nothing to explain"
    setting = _setting(spec, around, winner, results)
    plan = setting.plan
    if not plan.changed:
        return "the winner is what vLLM takes anyway"
    hot = [one for one in plan.changed if setting.warmth.get(one.knob) == "hot"]
    spec = reaching(spec, hot)
    members = plan.members[: max(LEAST, spec.attribution.trials)]
    repeats = max(1, spec.attribution.trials // (len(members) + 1))
    again = Again(
        study_name(spec.name, plan),
        members,
        repeats,
        spec.held_out() or spec.workload(),
        spec.engine.kind,
        "explain",
        setting.warmth,
        {"explains": plan.to_json()},
    )
    ended = measure_again(spec, around, again)
    found = load_results(around.folder).attribution
    if around.stop.requested or found is None or len(found.may_go) < LEAST:
        return ended
    # What may go alone may matter together: the minimal form is measured too.
    again = replace(again, members=[*members, plan.minimal(found.may_go)])
    return measure_again(spec, around, again)


def reaching(spec: StudySpec, hot: Sequence[Changed]) -> StudySpec:
    """Return the study with these knobs' ranges as far as their defaults.

    An engine is started at the largest values of its hot knobs; so one serves the defaults too.
    """
    further = {one.knob: one.default for one in hot if one.default is not None}
    knobs = tuple(
        replace(knob, domain=ChoiceDomain.of([*ends(knob), further[knob.name]]))
        if knob.name in further and not knob.domain.contains(further[knob.name])
        else knob
        for knob in spec.space.knobs
    )
    return replace(spec, space=replace(spec.space, knobs=knobs))


def choose_winner(results: StudyResults, name: str | None) -> Preset | None:
    """Return the preset of this name; by default the balanced one, or the first.

    None where there is none that was tuned. Raises StudyError for a name that there is not.
    """
    presets = results.presets(results.provenance())
    known = [preset.name for preset in presets]
    if name is not None and name not in known and presets:
        there = ", ".join(known)
        problem = f"there is no preset {name!r}; there is: {there}"
        raise StudyError(Problem("", "attribution.preset", problem))
    baselines = {record.number for record in results.records if is_baseline(record)}
    tuned = [preset for preset in presets if preset.trial not in baselines]
    wanted = [preset for preset in tuned if preset.name == (name or "balanced")]
    return next(iter([*wanted, *([] if name else tuned)]), None)


@dataclass(frozen=True, slots=True)
class _Setting:
    plan: Plan
    #: Argument -> "hot", "warm" or "cold".
    warmth: Mapping[str, str]


def _setting(
    spec: StudySpec, around: Surroundings, winner: Preset, results: StudyResults
) -> _Setting:
    names = [*spec.space.names, *(n for n in spec.space.fixed if n not in spec.base.args)]
    with checking(spec, around.cache) as checker:
        warmth = {} if checker is None else temperatures(spec, checker)
        warmth = cooled(warmth, results.demoted, around.say)
        refuse = refusing(checker, spec.held_out() or spec.workload())
        changed, same = differences(names, winner.config, defaults(spec.base, names, checker))
        ordered = sorted(changed, key=lambda one: warmth.get(one.knob, "cold") != "hot")
        looked = [_looked_at(one, winner.config, refuse) for one in ordered]
    plan = Plan(winner.name, winner.trial, winner.config, tuple(looked), tuple(same))
    return _Setting(plan, warmth)


def _looked_at(one: Changed, winner: EngineConfig, refuse: Check) -> Changed:
    found = refuse(one.back(winner))
    return one if found is None else replace(one, refused=f"{found.reason}: {found.detail}")
