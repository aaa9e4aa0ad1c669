"""Which knobs a gain comes from: the winner with one knob at a time set back to vLLM's default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.config import EngineConfig, Json, nested
from tuner.intervals import ratio_interval
from tuner.objectives import Objective
from tuner.records import Infeasible, TrialRecord

#: Two measurements of one configuration may differ by so much; a loss below it proves nothing.
NOISE = 0.05
#: A loss below this is not worth a knob, however sure it is.
TRIFLE = 0.01
#: More than so many knobs to name explain nothing.
NAMED = 3
#: Members of the explaining study by number: the winner, then its knobs from 1 on.
WINNER = 0

Standing = Literal["matters", "may go", "unclear", "not measured"]


@dataclass(frozen=True, slots=True)
class Changed:
    """A knob whose value differs from what vLLM would take. ``default``: None where it is unset.

    ``refused``: why vLLM does not take the winner with this one knob set back, '' where it does.
    """

    knob: str
    value: Json
    default: Json = None
    refused: str = ""

    def back(self, winner: EngineConfig) -> EngineConfig:
        """Return the winner with this knob set back."""
        if self.default is None:
            return without(winner, [self.knob])
        return winner.with_args({self.knob: self.default})

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping from which ``Changed(**mapping)`` rebuilds this value."""
        names = ("knob", "value", "default", "refused")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A score divided by the winner's; bounds where both were measured more than once."""

    value: float
    low: float | None = None
    high: float | None = None

    def harm(self, maximize: bool) -> float:
        """Return by which share it is worse than the winner; below 0: better."""
        return 1 - self.value if maximize else self.value - 1

    def shown(self, maximize: bool) -> bool:
        """Whether it is worse beyond its interval, or beyond noise where there is none."""
        if self.low is None or self.high is None:
            return self.harm(maximize) > NOISE
        beyond = self.high < 1 if maximize else self.low > 1
        return beyond and self.harm(maximize) > TRIFLE


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of the winner without one of its knobs: ratios by objective metric."""

    changed: Changed
    standing: Standing
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    #: By which share its worst objective gets worse; negative where none does.
    loss: float = 0.0
    why: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        ratios = {m: [r.value, r.low, r.high] for m, r in self.ratios.items()}
        given = self.changed
        return {
            "knob": given.knob,
            "value": given.value,
            "default": given.default,
            "standing": self.standing,
            "loss": self.loss,
            "ratio_to_winner": ratios,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where a preset's gain comes from. ``effects``: the most harmful to lose first."""

    preset: str
    trial: int
    winner: EngineConfig
    repeats: int
    effects: tuple[Effect, ...]
    #: Knobs of the winner that are what vLLM takes anyway.
    same: tuple[str, ...] = ()
    #: The winner without the knobs that may go, as it was measured; None where that was not done.
    minimal: Effect | None = None

    @property
    def matters(self) -> tuple[str, ...]:
        """The one to three knobs that matter most; none where no loss was shown."""
        shown = [e.changed.knob for e in self.effects if e.standing == "matters"]
        return tuple(shown[:NAMED])

    @property
    def may_go(self) -> tuple[str, ...]:
        """The knobs that made no difference: alone, and all together where that was measured."""
        if self.minimal is not None and self.minimal.standing != "may go":
            return ()
        return tuple(e.changed.knob for e in self.effects if e.standing == "may go")

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        return {
            "preset": self.preset,
            "trial": self.trial,
            "repeats": self.repeats,
            "matters": list(self.matters),
            "may_go": list(self.may_go),
            "same_as_default": list(self.same),
            "effects": [effect.to_json() for effect in self.effects],
            "minimal": None if self.minimal is None else self.minimal.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What an explaining study measures. It is stored with the study, and read back from there."""

    preset: str
    trial: int
    winner: EngineConfig
    changed: tuple[Changed, ...]
    #: Knobs of the winner that are what vLLM takes anyway: nothing to measure.
    same: tuple[str, ...] = ()

    @property
    def members(self) -> list[tuple[int, EngineConfig]]:
        """The winner, and the winner without each knob that can be set back alone."""
        single = [
            (number, one.back(self.winner))
            for number, one in enumerate(self.changed, WINNER + 1)
            if not one.refused
        ]
        return [(WINNER, self.winner), *single]

    def minimal(self, knobs: Sequence[str]) -> tuple[int, EngineConfig]:
        """The member without all these knobs; each such configuration has a number of its own."""
        config = without(self.winner, [*knobs, *self.same])
        return WINNER + 1 + len(self.changed) + int(config.key[:4], 16), config

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        return {
            "preset": self.preset,
            "trial": self.trial,
            "winner": self.winner.to_json(),
            "changed": [one.to_json() for one in self.changed],
            "same": list(self.same),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Plan:
        """Rebuild a plan from ``to_json``."""
        changed = tuple(Changed(**one) for one in data["changed"])
        winner = EngineConfig(**data["winner"])
        return cls(data["preset"], data["trial"], winner, changed, tuple(data["same"]))


def differences(
    names: Sequence[str], winner: EngineConfig, defaults: Mapping[str, Json]
) -> tuple[list[Changed], list[str]]:
    """Return the knobs among ``names`` that differ from the default, and those set that do not.

    Names are dotted where nested. ``defaults``: what vLLM makes of each where it is left open.
    """
    values = {name: _at(winner.args, name) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    same = [name for name, value in given.items() if value == defaults.get(name)]
    changed = [
        Changed(name, value, defaults.get(name))
        for name, value in given.items()
        if name not in same
    ]
    return changed, same


def without(config: EngineConfig, names: Sequence[str]) -> EngineConfig:
    """Return a configuration that leaves arguments open, also those inside nested ones."""
    args = {name: value for name, value in nested(config.args).items() if name not in names}
    for head, _, rest in (name.partition(".") for name in names if "." in name):
        inner = args.get(head)
        if isinstance(inner, Mapping):
            kept = without(EngineConfig("", inner), [rest]).args
            args = {**args, head: kept} if kept else {k: v for k, v in args.items() if k != head}
    return replace(config, args=args)


def _at(args: Mapping[str, Json], name: str) -> Json:
    value: Json = nested(args)
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def attribute(
    plan: Plan, records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> Attribution | None:
    """Return what the records of an explaining study say; None while the winner was not measured.

    Points name member and repeat; see ``strategies.repeats``.
    """
    scores = _scores(records)
    winner = scores.get(WINNER)
    if winner is None:
        return None
    refused = {
        int(r.point["member"]): r.outcome for r in records if isinstance(r.outcome, Infeasible)
    }
    effects = []
    for number, one in enumerate(plan.changed, WINNER + 1):
        rows, why = scores.get(number), one.refused
        if rows is None and number in refused:
            why = f"{refused[number].reason}: {refused[number].detail}"
        effects.append(_effect(one, rows, winner, objectives, why))
    effects.sort(key=lambda e: (not e.ratios, -e.loss))
    useless = [e.changed.knob for e in effects if e.standing == "may go"]
    smallest = scores.get(plan.minimal(useless)[0])
    minimal = None
    if smallest is not None:
        together = Changed(", ".join(useless), None)
        minimal = _effect(together, smallest, winner, objectives, "")
    found = (plan.preset, plan.trial, plan.winner, len(winner), tuple(effects))
    return Attribution(*found, same=plan.same, minimal=minimal)


def minimal_config(found: Attribution) -> EngineConfig:
    """Return the winner without every knob that may go, or says what vLLM takes anyway."""
    return without(found.winner, [*found.may_go, *found.same])


def _scores(records: Sequence[TrialRecord]) -> dict[int, NDArray[np.float64]]:
    """Return member -> scores of shape (repeats, objectives), in order of repeat."""
    rows: dict[int, dict[int, tuple[float, ...]]] = {}
    for record in records:
        if record.scores is not None:
            member, repeat = int(record.point["member"]), int(record.point["repeat"])
            rows.setdefault(member, {})[repeat] = record.scores
    return {m: np.array([by[n] for n in sorted(by)]) for m, by in rows.items()}


def _effect(
    changed: Changed,
    rows: NDArray[np.float64] | None,
    winner: NDArray[np.float64],
    objectives: Sequence[Objective],
    why: str,
) -> Effect:
    if rows is None:
        return Effect(changed, "not measured", why=why)
    ratios = {
        objective.metric: ratio
        for column, objective in enumerate(objectives)
        if (ratio := _ratio(rows[:, column], winner[:, column])) is not None
    }
    up = {objective.metric: objective.maximize for objective in objectives}
    harms = [ratio.harm(up[metric]) for metric, ratio in ratios.items()]
    if len(harms) < len(objectives):
        return Effect(changed, "unclear", ratios, why="a score of 0 has no ratio")
    loss = max(harms)
    standing: Standing = "unclear"
    if any(ratio.shown(up[metric]) for metric, ratio in ratios.items()):
        standing = "matters"
    elif loss <= NOISE:
        standing = "may go"
    return Effect(changed, standing, ratios, loss)


def _ratio(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Ratio | None:
    if min(*ours, *theirs) <= 0:
        return None
    interval = ratio_interval(ours.tolist(), theirs.tolist())
    if interval is None:
        return Ratio(float(ours.mean() / theirs.mean()))
    return Ratio(interval.value, interval.low, interval.high)
