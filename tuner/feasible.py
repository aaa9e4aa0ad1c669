"""Which part of a space can never start, and why: counted, and narrowed down to ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.config import Json
from tuner.errors import Problem, StudyError
from tuner.knobs import ChoiceDomain, Knob, Point
from tuner.records import Infeasible
from tuner.rules import broken
from tuner.study import StudySpec
from tuner.tune import Check

#: A space of at most this many points is looked at whole.
WHOLE = 1000
#: Points that are looked at before a study is called hopeless.
ENOUGH = 200
#: Points of one value, or of one end of a range, that have to be refused for it to be called dead.
_TELLING = 5

Looked = tuple[Point, Infeasible | None]


@dataclass(frozen=True, slots=True)
class Refused:
    """One reason, and how much of what was looked at it refuses. ``detail``: of its first point."""

    reason: str
    detail: str
    count: int
    share: float


def points(spec: StudySpec, most: int) -> tuple[list[Point], bool]:
    """Return all points that keep the rules, or ``most`` of a large space; whether it is all."""
    from tuner.strategies.distinct import uniform_points

    space = spec.space
    bound = space.size_bound
    whole = bound is not None and bound <= WHOLE
    if whole:
        found = list(space.points())
    else:
        found = uniform_points(space, most, np.random.default_rng(spec.strategy.seed))
    return [p for p in found if not broken(space.rules, space.arguments(p))], whole


def look(spec: StudySpec, found: Sequence[Point], check: Check) -> list[Looked]:
    """Check every point."""
    return [(point, check(spec.config(point))) for point in found]


def hopeless(spec: StudySpec, check: Check) -> None:
    """Raise StudyError, with the reasons by their share, if nothing of the space can ever start.

    Ends at the first point that can; a few hundred points take some seconds.
    """
    looked: list[Looked] = []
    for point in points(spec, ENOUGH)[0][:ENOUGH]:
        looked.append((point, check(spec.config(point))))
        if looked[-1][1] is None:
            return
    if looked:
        said = "; ".join(f"{r.share:.0%} {r.reason}: {r.detail}" for r in reasons(looked))
        what = f"none of the {len(looked)} points looked at can ever start: {said}"
        raise StudyError(Problem("", "space", what), "`tuner check` lists them")


def reasons(looked: Sequence[Looked]) -> list[Refused]:
    """Return the reasons, the most frequent first; details that differ by numbers are one."""
    groups: dict[tuple[str, str], list[str]] = {}
    for _, why in looked:
        if why is not None:
            alike = re.sub(r"\d+(\.\d+)?", "#", why.detail.partition(": raise")[0])
            groups.setdefault((why.reason, alike), []).append(why.detail)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [
        Refused(reason, details[0], len(details), len(details) / len(looked))
        for (reason, _), details in ordered
    ]


def suggestions(spec: StudySpec, looked: Sequence[Looked]) -> list[str]:
    """Return how to narrow the space by what no other knob can save, a sentence per range."""
    if all(why is not None for _, why in looked):
        return []  # nothing to tell apart
    return [said for knob in spec.space.knobs for said in _dead(knob, looked)]


def _dead(knob: Knob, looked: Sequence[Looked]) -> list[str]:
    with_it = [(point[knob.name], why) for point, why in looked if knob.name in point]
    if isinstance(knob.domain, ChoiceDomain):
        return _dead_options(knob, with_it)
    return [*_dead_end(knob, with_it, low=True), *_dead_end(knob, with_it, low=False)]


def _dead_options(knob: Knob, with_it: Sequence[tuple[Json, Infeasible | None]]) -> list[str]:
    assert isinstance(knob.domain, ChoiceDomain)
    said = []
    for option in knob.domain.options:
        whys = [why for value, why in with_it if value == option]
        refused = [why for why in whys if why is not None]
        if len(refused) >= _TELLING and len(refused) == len(whys):
            said.append(
                f"{knob.name} {_shown(option)}: refused at every point looked at "
                f"({len(refused)}), {refused[0].reason}: drop it"
            )
    return said


def _dead_end(
    knob: Knob, with_it: Sequence[tuple[Json, Infeasible | None]], *, low: bool
) -> list[str]:
    """Return a sentence on the values below (above) every one that can start."""
    good = [value for value, why in with_it if why is None]
    if not good:
        return []
    bound = min(good) if low else max(good)
    dead = [
        why
        for value, why in with_it
        if why is not None and (value < bound if low else value > bound)
    ]
    if len(dead) < _TELLING:
        return []
    side, end = ("below", "from") if low else ("above", "to")
    return [
        f"{knob.name} {side} {bound:.4g} never starts ({len(dead)} points looked at, "
        f"{dead[0].reason}): let it go {end} there"
    ]


def _shown(option: Json) -> str:
    return "null" if option is None else str(option)
