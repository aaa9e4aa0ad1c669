"""From a file's ``knobs``, ``fixed`` and ``rules`` to a SearchSpace."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tuner import rules as rule_book
from tuner.config import Json, canonical, nested
from tuner.knobs import Knob, SearchSpace
from tuner.study_conditions import Conditions, checked_rule
from tuner.study_domain import DomainReader, clipped
from tuner.study_values import argument, given, show
from tuner.yaml_file import At, Tree, nearest

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_SPACE_KEYS = ("knobs", "fixed", "rules")
#: Spaces up to this size are searched for a point that no rule excludes.
_SEARCHED = 2000


@dataclass(slots=True)
class SpaceReader:
    """Reads one search space from a tree. ``arguments`` are the study's own, already fixed."""

    tree: Tree
    at: At
    arguments: Mapping[str, Json]
    warnings: list[str] = field(default_factory=list)
    #: Argument name -> where it is written.
    ways: dict[str, At] = field(default_factory=dict)

    def read(self) -> SearchSpace:
        """Return the space; what is at fault is noted in the tree and left out."""
        section = self._mapping(self.at)
        for key in section.keys() - set(_SPACE_KEYS):
            hint = nearest(key, _SPACE_KEYS) or " Knobs go under 'knobs:'."
            self.tree.report((*self.at, key), f"unknown key.{hint}")
        fixed = self._fixed()
        knobs = self._knobs()
        self._collisions(knobs, fixed)
        single = {
            name: next(iter(knob.domain.values()))
            for name, knob in knobs.items()
            if knob.domain.size == 1 and not knob.when and name not in fixed
        }
        for name, value in single.items():
            self._warn(name, f"has one value only, {show(value)}: it is held fixed.")
        fixed = {**fixed, **{name: value for name, value in single.items() if value is not None}}
        held = {**self.arguments, **fixed, **single}
        varied = {name: knob for name, knob in knobs.items() if name not in single}
        conditions = Conditions(self.tree, self.ways, self.warnings)
        ordered = conditions.ordered(conditions.resolved(varied, held))
        return self._ruled(SearchSpace(tuple(ordered), {**self.arguments, **fixed}))

    def _mapping(self, at: At) -> dict[str, Json]:
        value = self.tree.get(at)
        if value is None or isinstance(value, dict):
            return value or {}
        self.tree.report(at, f"needs a mapping (key: value), found {show(value)}.")
        return {}

    def _named(self, key: str, at: At, taken: Mapping[str, Json]) -> str | None:
        """Return the argument's name with underscores, None after noting why it cannot be."""
        name = key.replace("-", "_")
        if not _NAME.fullmatch(name):
            bare = key.lstrip("-")
            hint = f" Write {bare}." if _NAME.fullmatch(bare.replace("-", "_")) else ""
            self.tree.report(at, f"{show(key)} cannot be an argument's name.{hint}")
            return None
        if name in taken:
            self.tree.report(at, f"{name} is given twice: dashes and underscores are the same.")
            return None
        return name

    def _fixed(self) -> dict[str, Json]:
        out: dict[str, Json] = {}
        for key, value in self._mapping((*self.at, "fixed")).items():
            at = (*self.at, "fixed", key)
            name = self._named(key, at, out)
            if name is None:
                continue
            checked = self._checked(at, given, value)
            self.ways[name] = at
            if checked is None:
                continue
            other = self.arguments.get(name)
            if other is not None and canonical(other) != canonical(checked):
                self.tree.report(
                    at, f"{show(checked)} contradicts engine.args, which has {show(other)}."
                )
            out[name] = checked
        return out

    def _checked(self, at: At, read: Callable[[Json], Json], value: Json) -> Json:
        try:
            return read(value)
        except ValueError as error:
            self.tree.report(at, str(error))
            return None

    def _knobs(self) -> dict[str, Knob]:
        out: dict[str, Knob] = {}
        for key, value in self._mapping((*self.at, "knobs")).items():
            at = (*self.at, "knobs", key)
            name = self._named(key, at, out)
            if name is None:
                continue
            self.ways[name] = at
            domain = DomainReader(self.tree, at, value).read()
            if domain is not None:
                when = self._when((*at, "when")) if "when" in value else {}
                domain, warning = clipped(domain)
                if warning:
                    self._warn(name, warning)
                out[name] = Knob(name, domain, when)
        return out

    def _when(self, at: At) -> dict[str, tuple[Json, ...]]:
        out: dict[str, tuple[Json, ...]] = {}
        for key, value in self._mapping(at).items():
            name = self._named(key, (*at, key), out)
            values = value if isinstance(value, list) else [value]
            if name is None:
                continue
            if not values:
                self.tree.report((*at, key), "needs at least one value.")
            read = [self._checked((*at, key), argument, inner) for inner in values]
            out[name] = tuple(read)
        return out

    def _warn(self, name: str, message: str) -> None:
        self.warnings.append(str(self.tree.problem(self.ways[name], message)))

    def _collisions(self, knobs: Mapping[str, Knob], fixed: Mapping[str, Json]) -> None:
        """Refuse what is both fixed and varied, and a knob inside what another knob sets."""
        for name in knobs:
            for where, values in (("fixed", fixed), ("engine.args", self.arguments)):
                if name in values or _inside(name, values):
                    self.tree.report(
                        self.ways[name], f"is varied here and fixed in {where}: keep one of them."
                    )
                    break
        for outer, inner in itertools.permutations([*knobs, *fixed], 2):
            if outer in knobs and inner.startswith(outer + "."):
                self.tree.report(
                    self.ways[inner],
                    f"lies inside the knob {outer}: put it into each of that knob's options.",
                )

    def _ruled(self, space: SearchSpace) -> SearchSpace:
        at = (*self.at, "rules")
        written = self.tree.get(at) or []
        if not isinstance(written, list):
            self.tree.report(at, f"needs a list of comparisons, found {show(written)}.")
            return space
        kept = []
        for i, rule in enumerate(written):
            try:
                kept.append(checked_rule(rule, space, set(self.ways)))
            except ValueError as error:
                self.tree.report((*at, i), str(error))
        ruled = replace(space, rules=tuple(kept))
        bound = ruled.size_bound
        if kept and len(kept) == len(written) and bound is not None and bound <= _SEARCHED:
            points = (ruled.arguments(point) for point in ruled.points())
            if all(rule_book.broken(kept, point) for point in points):
                self.tree.report(at, "no point of the space meets all of them.")
        return ruled


def _inside(name: str, values: Mapping[str, Json]) -> bool:
    """Whether the dotted name is set inside one of the nested values."""
    head, *rest = name.split(".")
    inner: Json = nested(values).get(head)
    for step in rest:
        if not isinstance(inner, Mapping) or step not in inner:
            return False
        inner = inner[step]
    return bool(rest)
