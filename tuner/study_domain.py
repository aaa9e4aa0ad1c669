"""From ``{int: [4, 64], log: true}`` to the domain of one knob."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from tuner.config import Json, canonical
from tuner.knobs import ChoiceDomain, Domain, FloatDomain, IntDomain
from tuner.study_values import argument, flag, real, show, whole
from tuner.yaml_file import At, Tree, nearest

_KINDS = ("int", "float", "choice")
_FORMS = "{int: [low, high]}, {float: [low, high]} or {choice: [...]}"
_KNOB_KEYS = (*_KINDS, "log", "step", "when")


@dataclass(frozen=True, slots=True)
class DomainReader:
    """Reads one knob's domain. ``value`` is what stands at ``at``."""

    tree: Tree
    at: At
    value: Json

    def read(self) -> Domain | None:
        """Return the domain, None after noting every fault."""
        if not isinstance(self.value, dict):
            self._refuse((), self._hint_for_bare())
            return None
        for key in self.value.keys() - set(_KNOB_KEYS):
            self._refuse(
                (key,), f"unknown key.{nearest(key, _KNOB_KEYS)} Known: {', '.join(_KNOB_KEYS)}."
            )
        kinds = [kind for kind in _KINDS if kind in self.value]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            self._refuse((), f"needs exactly one of int, float, choice; found {found}.")
            return None
        return self._choice() if kinds == ["choice"] else self._numeric(kinds[0])

    def _refuse(self, at: At, message: str) -> None:
        self.tree.report(self.at + at, message)

    def _hint_for_bare(self) -> str:
        if isinstance(self.value, list):
            return f"needs {_FORMS}, found a list."
        if self.value is None:
            return f"has no domain: write {_FORMS}."
        return f"has one value only, {show(self.value)}: put it under 'fixed:'."

    def _read(self, at: At, read: Callable[[Json], Json], value: Json) -> Json:
        try:
            return read(value)
        except ValueError as error:
            self._refuse(at, str(error))
            return None

    def _numeric(self, kind: str) -> Domain | None:
        read: Callable[[Json], Json] = whole if kind == "int" else real
        ends = self.value[kind]
        if not isinstance(ends, list) or len(ends) != 2:
            self._refuse((kind,), f"needs [low, high], found {show(ends)}.")
            return None
        low, high = (self._read((kind, i), read, end) for i, end in enumerate(ends))
        log = self._read(("log",), flag, self.value.get("log", False))
        step = None
        if "step" in self.value:
            step = self._read(("step",), read, self.value["step"])
        if low is None or high is None or log is None or ("step" in self.value and step is None):
            return None
        faults = list(_faults(kind, low, high, step, log))
        for key, message in faults:
            self._refuse((key,), message)
        if faults:
            return None
        if kind == "int":
            return IntDomain(low, high, 1 if step is None else step, log)
        return FloatDomain(low, high, step, log)

    def _choice(self) -> Domain | None:
        options = self.value["choice"]
        for key in ("log", "step"):
            if key in self.value:
                self._refuse((key,), "means nothing for a choice: leave it out.")
        if not isinstance(options, list | dict):
            self._refuse(("choice",), f"needs a list of options, found {show(options)}.")
            return None
        if not options:
            self._refuse(("choice",), "is empty: a choice needs at least one option.")
            return None
        items = options.items() if isinstance(options, dict) else enumerate(options)
        before = len(self.tree.problems)
        made = {key: self._read(("choice", key), argument, option) for key, option in items}
        if len(self.tree.problems) > before or not self._distinct(made):
            return None
        return ChoiceDomain.of(
            {str(key): option for key, option in made.items()}
            if isinstance(options, dict)
            else list(made.values())
        )

    def _distinct(self, options: Mapping[str | int, Json]) -> bool:
        seen: list[Json] = []
        for key, option in options.items():
            if any(_same(option, other) for other in seen):
                self._refuse(("choice", key), f"{show(option)} is given twice.")
                return False
            seen.append(option)
        kinds = {type(option) for option in seen}
        if bool in kinds and str in kinds:
            self._refuse(
                ("choice",), "mixes text with true/false: quote what is text, as in 'off'."
            )
            return False
        return True


def _same(a: Json, b: Json) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return bool(a == b) if numbers else canonical(a) == canonical(b)


def _faults(
    kind: str, low: float, high: float, step: float | None, log: bool
) -> list[tuple[str, str]]:
    """Return (key, message) for everything against a numeric domain."""
    out = []
    if low > high:
        out.append((kind, f"low {low} is above high {high}: swap them."))
    if log and low <= 0:
        out.append((kind, f"log needs a low above 0, found {low}."))
    if log and step is not None:
        out.append(("step", "log and step exclude each other: leave one out, or list a choice."))
    if step is not None and step <= 0:
        out.append(("step", f"needs a step above 0, found {step}."))
    if (
        step is not None
        and step > 0
        and (Decimal(str(high)) - Decimal(str(low))) / Decimal(str(step)) > 1_000_000
    ):
        out.append(("step", f"{step} makes more than a million values: take a larger step."))
    return out


def clipped(domain: Domain) -> tuple[Domain, str]:
    """Return the domain ending where its steps end, and a warning where that is not ``high``."""
    if isinstance(domain, ChoiceDomain) or domain.step is None:
        return domain, ""
    grid: list[float] = list(domain.values())
    if grid[-1] == domain.high:
        return domain, ""
    few = grid if len(grid) <= 8 else [*grid[:3], "...", *grid[-2:]]
    warning = (
        f"step {domain.step} does not divide {domain.low}..{domain.high}: "
        f"tried are {', '.join(map(str, few))}; {domain.high} never is."
    )
    return _ending_at(domain, grid[-1], len(grid)), warning


def _ending_at(domain: IntDomain | FloatDomain, last: float, size: int) -> Domain:
    """Return the domain ending at ``last``, or just above it where rounding would lose ``last``."""
    if isinstance(domain, IntDomain):
        return replace(domain, high=int(last))
    ended = replace(domain, high=last)
    return ended if ended.size == size else replace(domain, high=math.nextafter(last, math.inf))
