"""Conditions between knobs (``when``), the knobs' order, and rules between arguments."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner import rules as rule_book
from tuner.config import Json, canonical
from tuner.knobs import FloatDomain, IntDomain, Knob, SearchSpace
from tuner.study_values import show
from tuner.yaml_file import At, Tree, nearest


@dataclass(frozen=True, slots=True)
class Conditions:
    """Checks each knob's ``when``. ``ways``: argument name -> where it is written."""

    tree: Tree
    ways: Mapping[str, At]
    warnings: list[str]

    def resolved(self, knobs: Mapping[str, Knob], held: Mapping[str, Json]) -> dict[str, Knob]:
        """Resolve each ``when``: labels to options, fixed arguments to true or false."""
        out: dict[str, Knob] = {}
        for name, knob in knobs.items():
            when: dict[str, tuple[Json, ...]] = {}
            active = True
            for other, allowed in knob.when.items():
                if other in knobs and other != name:
                    when[other] = self._allowed(name, knobs[other], allowed)
                elif other in held:
                    active &= canonical(held[other]) in map(canonical, allowed)
                else:
                    self._unknown_condition(name, other, [*knobs, *held])
            if active:
                out[name] = replace(knob, when=when)
            else:
                message = "is never active: its 'when' contradicts a fixed argument."
                self.warnings.append(str(self.tree.problem(self.ways[name], message)))
        return out

    def _unknown_condition(self, name: str, other: str, known: list[str]) -> None:
        at = (*self.ways[name], "when")
        if other == name:
            self.tree.report(at, "a knob cannot depend on itself.")
        elif other not in self.ways:
            near = nearest(other, [known_name for known_name in known if known_name != name])
            self.tree.report(at, f"{other} is neither a knob nor fixed.{near}")

    def _allowed(self, name: str, other: Knob, allowed: tuple[Json, ...]) -> tuple[Json, ...]:
        out = []
        for value in allowed:
            if other.domain.contains(value):
                out.append(value)
                continue
            try:
                out.append(other.domain.option(value))  # type: ignore[union-attr]
            except (ValueError, AttributeError):
                at = (*self.ways[name], "when")
                self.tree.report(at, f"{other.name} never takes the value {show(value)}.")
        return tuple(out)

    def ordered(self, knobs: dict[str, Knob]) -> list[Knob]:
        """Return each knob after those that it depends on, else in the file's order."""
        for name, knob in list(knobs.items()):
            if not set(knob.when) <= set(knobs):
                knobs = {other: kept for other, kept in knobs.items() if other != name}
                return self.ordered(knobs)
        sorter = graphlib.TopologicalSorter({name: list(knob.when) for name, knob in knobs.items()})
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            cycle = error.args[1]
            message = f"the conditions go in a circle: {' needs '.join(reversed(cycle))}."
            self.tree.report((*self.ways[cycle[0]], "when"), message)
            return list(knobs.values())
        out: list[Knob] = []
        waiting = list(knobs.values())
        while waiting:
            placed = {knob.name for knob in out}
            ready = next(knob for knob in waiting if set(knob.when) <= placed)
            waiting.remove(ready)
            out.append(ready)
        return out


def checked_rule(rule: Json, space: SearchSpace, written: set[str]) -> str:
    """Return a rule with underscores in its names. Raises ValueError with the reason against it."""
    if not isinstance(rule, str) or not rule.strip():
        raise ValueError(f"needs a comparison of arguments, found {show(rule)}.")
    known = {*space.names, *_flat(space.fixed), *written}
    text = str(rule)
    for name in sorted(known, key=len, reverse=True):
        if "_" in name:
            text = re.sub(rf"(?<![\w.-]){re.escape(name.replace('_', '-'))}(?![\w.-])", name, text)
    try:
        names = rule_book.names_in(text)
    except SyntaxError as error:
        raise ValueError(f"{show(rule)} is no comparison: {error.msg}.") from None
    if not names:
        raise ValueError(f"{show(rule)} names no argument.")
    for name in sorted(names - known):
        raise ValueError(f"{show(rule)}: {name} is neither a knob nor fixed.{nearest(name, known)}")
    if not re.search(r"[<>=]|\bin\b|\bnot\b", text):
        raise ValueError(f"{show(rule)} compares nothing: write, for example, a >= b.")
    _tried(rule, text, space)
    return text


def _tried(rule: str, text: str, space: SearchSpace) -> None:
    """Evaluate once, with every knob at its first value, so that a faulty rule is seen here."""
    first = {
        knob.name: knob.domain.low
        if isinstance(knob.domain, IntDomain | FloatDomain)
        else next(iter(knob.domain.values()))
        for knob in space.knobs
    }
    try:
        broken = rule_book.broken([text], {**_flat(space.fixed), **first})
    except Exception as error:  # simpleeval's own and whatever the operands raise
        raise ValueError(f"{show(rule)} cannot be evaluated: {error}.") from None
    if broken and not rule_book.names_in(text) & set(space.names):
        raise ValueError(f"{show(rule)} speaks of fixed arguments only, and does not hold.")


def _flat(values: Mapping[str, Json], head: str = "") -> dict[str, Json]:
    """Return nested mappings also under dotted names."""
    out: dict[str, Json] = {}
    for name, value in values.items():
        out[head + name] = value
        if isinstance(value, Mapping):
            out |= _flat(value, f"{head}{name}.")
    return out
