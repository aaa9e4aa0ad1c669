"""Which part of a space can never start, and why: counted, and narrowed down to ranges."""

from __future__ import annotations

import math
import re
from collections import Counter
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
#: A value or an end of a range is dead after this many refused points of a sample at least, and
#: after so many that their being refused has this chance where the range has nothing to do with it.
_TELLING = 5
_UNLIKELY = 1e-4

# "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)"
_ORDER = re.compile(r"(\w+) \(\d+\) must be greater than or equal to (\w+) \(\d+\)")

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


def suggestions(spec: StudySpec, looked: Sequence[Looked], *, whole: bool) -> list[str]:
    """Return how to narrow the space by what no other knob can save, a sentence per range.

    ``whole``: the points are all there are. Of a sample, a range is only called dead where chance
    would hardly refuse so many points in a row.
    """
    refused = sum(why is not None for _, why in looked)
    if refused in (0, len(looked)):
        return []  # nothing to tell apart
    by_chance = math.log(_UNLIKELY) / math.log(refused / len(looked))
    enough = 1 if whole else max(_TELLING, math.ceil(by_chance))
    ranges = [said for knob in spec.space.knobs for said in _dead(knob, looked, enough)]
    return [*ranges, *_rules(spec, looked)]


def _rules(spec: StudySpec, looked: Sequence[Looked]) -> list[str]:
    """Return a sentence per order between two arguments that vLLM asks for in its refusals."""
    orders = (_ORDER.search(why.detail) for _, why in looked if why is not None)
    asked = Counter(f"{found[1]} >= {found[2]}" for found in orders if found is not None)
    return [
        f"add the rule {rule}: it spares {count} of the {len(looked)} points looked at"
        for rule, count in asked.most_common()
        if rule not in spec.space.rules
    ]


def _dead(knob: Knob, looked: Sequence[Looked], enough: int) -> list[str]:
    with_it = [(point[knob.name], why) for point, why in looked if knob.name in point]
    if isinstance(knob.domain, ChoiceDomain):
        found = ((f"{knob.name} {_shown(o)}", o) for o in knob.domain.options)
        dead = [(name, [why for value, why in with_it if value == o]) for name, o in found]
        return [
            f"{name}: refused at every point looked at ({len(whys)}), "
            f"{_typical(whys, looked)}: drop it"
            for name, whys in dead
            if len(whys) >= enough and None not in whys
        ]
    return _dead_ends(knob, looked, enough)


def _dead_ends(knob: Knob, looked: Sequence[Looked], enough: int) -> list[str]:
    """Return a sentence each on the values below and above all that can start."""
    with_it = [(point[knob.name], why) for point, why in looked if knob.name in point]
    good = [value for value, why in with_it if why is None]
    if not good:
        return []
    low, high = min(good), max(good)
    ends = (
        ("below", "from", low, [why for value, why in with_it if value < low]),
        ("above", "to", high, [why for value, why in with_it if value > high]),
    )
    return [
        f"{knob.name} {side} {bound:.4g} never starts ({len(whys)} points looked at, "
        f"{_typical(whys, looked)}): let it go {end} there"
        for side, end, bound, whys in ends
        if len(whys) >= enough
    ]


def _typical(whys: Sequence[Infeasible | None], looked: Sequence[Looked]) -> str:
    """Return the reason that is more frequent here than elsewhere by most: what the range adds."""
    here = _shares(whys)
    everywhere = _shares([why for _, why in looked])
    return max(here, key=lambda reason: here[reason] - everywhere[reason])


def _shares(whys: Sequence[Infeasible | None]) -> dict[str, float]:
    counts = Counter(why.reason for why in whys if why is not None)
    return {reason: count / len(whys) for reason, count in counts.items()}


def _shown(option: Json) -> str:
    return "null" if option is None else str(option)
