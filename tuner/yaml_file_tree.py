"""Values with the place where each was written, so that a fault is told by file, field and line."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.config import Json
from tuner.errors import Problem

#: The way to a value: keys and list indices from the top.
At = tuple[str | int, ...]


class Plain(str):
    """Text that stands without quotes in the file: it may be meant as a number or a switch."""

    __slots__ = ()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" for the nearest known word, '' where none is near.

    A word that begins another is nearer than any that is spelt alike.
    """
    table = {name.replace("-", "_").lower(): name for name in known}
    wanted = word.replace("-", "_").lower()
    heads = [n for n in table if min(len(n), len(wanted)) > 2 and _one_begins(n, wanted)]
    found = difflib.get_close_matches(wanted, heads or table, 1, 0.2 if heads else 0.6)
    return f" Did you mean {table[found[0]]}?" if found else ""


def _one_begins(a: str, b: str) -> bool:
    return a.startswith(b) or b.startswith(a)


def dotted(at: At) -> str:
    """Return ``("objectives", 0, "metric")`` as ``objectives[0].metric``."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in at)
    return "".join(parts).removeprefix(".")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: file, the way to it in that file, and the line where known.

    ``base``: directory from which the value's relative paths start.
    """

    file: str
    base: Path
    line: int | None = None
    way: At = ()


@dataclass(slots=True)
class Tree:
    """Values of one or several files, the place of each, and the problems found so far."""

    value: Json
    places: dict[At, Place]
    problems: list[Problem] = field(default_factory=list)
    #: Sections whose own file could not be read: nothing more is said about them.
    unread: set[str] = field(default_factory=set)

    def place(self, at: At) -> Place:
        """Return the place of a value; of one that is missing, the place where it should be."""
        known = at
        while known not in self.places:
            known = known[:-1]
        place = self.places[known]
        return replace(place, way=place.way + at[len(known) :])

    def problem(self, at: At, message: str) -> Problem:
        """Make a problem of the value at ``at``."""
        place = self.place(at)
        line = "" if place.line is None else f" (line {place.line})"
        return Problem(place.file, (dotted(place.way) + line).strip(), message)

    def report(self, at: At, message: str) -> None:
        """Note a problem of the value at ``at``."""
        self.problems.append(self.problem(at, message))

    def get(self, at: At) -> Json:
        """Return the value, None where there is none."""
        value = self.value
        for step in at:
            if isinstance(value, dict):
                value = value.get(str(step))
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def part(self, at: At) -> Tree:
        """Return what lies at ``at`` as a tree of its own, without problems."""
        inside = {way[len(at) :]: p for way, p in self.places.items() if way[: len(at)] == at}
        return Tree(self.get(at), {(): self.place(at), **inside})

    def graft(self, at: At, other: Tree) -> None:
        """Put the other tree in place of what lies at ``at``, making mappings on the way.

        Raises KeyError where the way leads through something else than mappings and lists.
        """
        holder = self.value
        for depth, (step, following) in enumerate(itertools.pairwise(at)):
            if _child(holder, step) is None:
                _put(holder, step, [] if isinstance(following, int) else {}, at[:depth])
                made = at[: depth + 1]
                self.places[made] = replace(other.place(()), way=made)
            holder = _child(holder, step)
        _put(holder, at[-1], other.value, at[:-1])
        for known in [known for known in self.places if known[: len(at)] == at]:
            del self.places[known]
        self.places |= {at + way: place for way, place in other.places.items()}
        self.problems += other.problems


def _child(holder: Json, step: str | int) -> Json:
    if isinstance(holder, dict):
        return holder.get(step)
    inside = isinstance(holder, list) and isinstance(step, int) and step < len(holder)
    return holder[step] if inside else None


def _put(holder: Json, step: str | int, value: Json, at: At) -> None:
    if isinstance(holder, dict) and isinstance(step, str):
        holder[step] = value
    elif isinstance(holder, list) and isinstance(step, int) and step <= len(holder):
        holder[step : step + 1] = [value]
    else:
        kind = "a list" if isinstance(holder, list) else "a mapping"
        wanted = f"has no item {step}" if isinstance(step, int) else "is not a mapping"
        raise KeyError(f"{dotted(at) or kind} {wanted}.")
