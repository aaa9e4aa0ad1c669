"""The search space: which vLLM engine arguments vary, over what, and when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from tuner.config import Json, canonical

#: What Optuna's storage can hold as a categorical choice.
Scalar = None | bool | int | float | str
#: A point of the space: knob name -> value; inactive knobs are absent.
Point = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class IntDomain:
    """Integers ``low, low + step, ...`` up to ``high``. ``log`` samples evenly in the logarithm."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    @property
    def size(self) -> int | None:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def values(self) -> Iterator[int]:
        """Every value, ascending."""
        return iter(range(self.low, self.high + 1, self.step))

    def contains(self, value: Json) -> bool:
        """Whether the domain can produce ``value``."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and self.low <= value <= self.high and (value - self.low) % self.step == 0


@dataclass(frozen=True, slots=True)
class FloatDomain:
    """Reals in [low, high]; with ``step`` only ``low + k * step``, rounded to its decimals."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def size(self) -> int | None:
        """How many values there are, None without a step (unless low == high)."""
        if self.low == self.high:
            return 1
        return None if self.step is None else len(self._grid(self.step))

    def values(self) -> Iterator[float]:
        """Every value, ascending. Raises ValueError for a continuous domain."""
        if self.step is None and self.low != self.high:
            raise ValueError("a continuous domain has no list of values")
        return iter([self.low] if self.step is None else self._grid(self.step))

    def contains(self, value: Json) -> bool:
        """Whether the domain can produce ``value`` (to within rounding)."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.step is None:
            return self.low <= value <= self.high
        return any(math.isclose(value, at, rel_tol=1e-9) for at in self._grid(self.step))

    def rounded(self, value: float) -> float:
        """Return ``value`` without the binary dust of adding steps: 0.8500000000000001 -> 0.85."""
        return (
            value if self.step is None else float(round(Decimal(value), self._decimals(self.step)))
        )

    def _grid(self, step: float) -> list[float]:
        low, high, by = (Decimal(repr(x)) for x in (self.low, self.high, step))
        return [float(low + by * k) for k in range(int((high - low) / by) + 1)]

    def _decimals(self, step: float) -> int:
        exponents = (Decimal(repr(x)).as_tuple().exponent for x in (self.low, step))
        return max(0, *(-e for e in exponents if isinstance(e, int)))


@dataclass(frozen=True, slots=True)
class ChoiceDomain:
    """A list of options, each any JSON value. ``labels`` are their stable names in storage."""

    options: tuple[Json, ...]
    labels: tuple[Scalar, ...]

    @classmethod
    def of(cls, options: Mapping[str, Json] | list[Json] | tuple[Json, ...]) -> ChoiceDomain:
        """Label scalars by themselves, structured options by their JSON text or the given names."""
        if isinstance(options, Mapping):
            return cls(tuple(options.values()), tuple(options))
        scalar = (type(None), bool, int, float, str)
        labels = tuple(o if isinstance(o, scalar) else canonical(o) for o in options)
        return cls(tuple(options), labels)

    @property
    def size(self) -> int | None:
        """How many options there are."""
        return len(self.options)

    def values(self) -> Iterator[Json]:
        """Every option, in the given order."""
        return iter(self.options)

    def contains(self, value: Json) -> bool:
        """Whether ``value`` is one of the options (1 and True are different options)."""
        return canonical(value) in map(canonical, self.options)

    def label(self, value: Json) -> Scalar:
        """Return the label of an option. Raises ValueError for anything else."""
        return self.labels[_place(self.options, value)]

    def option(self, label: Scalar) -> Json:
        """Return the option of a label. Raises ValueError for anything else."""
        return self.options[_place(self.labels, label)]


Domain = IntDomain | FloatDomain | ChoiceDomain


def _place(options: tuple[Json, ...], wanted: Json) -> int:
    """Return where ``wanted`` stands; 1 and True differ. JSON text is made where it must be."""
    if isinstance(wanted, str | int | float):
        for place, option in enumerate(options):
            if type(option) is type(wanted) and option == wanted:
                return place
    return [canonical(option) for option in options].index(canonical(wanted))


@dataclass(frozen=True, slots=True)
class Knob:
    """One engine argument that varies. ``name`` is vLLM's, underscored, dotted where nested."""

    name: str
    domain: Domain
    #: Other knob -> values under which this one is active; all must hold. Empty: always active.
    when: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)

    def active(self, point: Point) -> bool:
        """Whether this knob takes effect beside the given values of the other knobs."""
        return all(
            name in point and canonical(point[name]) in map(canonical, allowed)
            for name, allowed in self.when.items()
        )


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Knobs (each after those that its ``when`` names), fixed arguments, and rules between them.

    A rule is a comparison in terms of knobs and fixed arguments ("max_num_batched_tokens >=
    max_num_seqs"); a point that breaks one is never tried. See ``rules.broken``.
    """

    knobs: tuple[Knob, ...]
    fixed: Mapping[str, Json] = field(default_factory=dict)
    rules: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Knob:
        return next(knob for knob in self.knobs if knob.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the knobs, in order."""
        return tuple(knob.name for knob in self.knobs)

    @property
    def size_bound(self) -> int | None:
        """Points without regard to ``when`` and rules; None with a continuous knob."""
        sizes = [knob.domain.size for knob in self.knobs]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def normalised(self, point: Point) -> dict[str, Json]:
        """Return the point in the knobs' order, without unknown and inactive knobs."""
        out: dict[str, Json] = {}
        for knob in self.knobs:
            if knob.name in point and knob.active(out):
                out[knob.name] = point[knob.name]
        return out

    def points(self) -> Iterator[dict[str, Json]]:
        """Yield every distinct point, in a fixed order. ValueError with a continuous knob."""
        seen: set[str] = set()
        grids = [list(knob.domain.values()) for knob in self.knobs]
        for values in itertools.product(*grids):
            point = self.normalised(dict(zip(self.names, values, strict=True)))
            key = canonical(point)
            if key not in seen:
                seen.add(key)
                yield point

    def arguments(self, point: Point) -> dict[str, Json]:
        """Return fixed arguments and knob values together, flat, with dotted names."""
        return {**self.fixed, **point}
