"""Points of a space as rows of numbers, and how far apart two of them are, knob by knob."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.config import Json, canonical
from tuner.knobs import ChoiceDomain, Domain, Knob, Point, SearchSpace

Floats = NDArray[np.float64]
#: Option of a choice, see ``option_key`` -> its number.
Places = Mapping[tuple[type, Json], float]


#: Squared distance of "no value" from the middle of a range. (A point that is equally far from all
#: of 0..1 does not exist, and a kernel of impossible distances is not positive definite.)
_BESIDE = 0.75
#: What stands for a category that is not known.
_UNKNOWN = -1.0


class Encoder:
    """Rows of one number per knob; NaN where the knob is inactive.

    Ranges become 0..1 (in the logarithm where the domain says so), choices of numbers their rank
    over 0..1. Other choices are categories: any two different ones are 1 apart. An inactive knob
    is one more category; of a range it stands beside the middle, 1 away from both ends. An active
    knob of unknown value (a known-good configuration's) counts as the middle of what it can be.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._knobs = space.knobs
        self._category = np.array([_is_category(knob.domain) for knob in space.knobs])
        sizes = np.array([knob.domain.size or 1 for knob in space.knobs])
        #: Squared distance from the centre of a regular simplex to its corners, which are 1 apart.
        self._centre = (sizes - 1) / (2 * sizes)
        self._places = [_places(knob.domain) for knob in space.knobs]

    def rows(self, points: Iterable[Point]) -> Floats:
        """Return shape (points, knobs)."""
        listed = [
            [
                self._number(knob, places, point)
                for knob, places in zip(self._knobs, self._places, strict=True)
            ]
            for point in points
        ]
        return np.array(listed, np.float64).reshape(len(listed), len(self._knobs))

    def gaps(self, left: Floats, right: Floats) -> Floats:
        """Return squared distances per knob, shape (knobs, left rows, right rows)."""
        out = np.empty((len(self._knobs), len(left), len(right)))
        for n, category in enumerate(self._category):
            a, b = left[:, n, None], right[None, :, n]
            here, there = np.isnan(a), np.isnan(b)
            if category:
                unknown = (a == _UNKNOWN) | (b == _UNKNOWN)
                gap = np.where(a == b, 0.0, np.where(unknown, self._centre[n], 1.0))
                out[n] = np.where(here != there, 1.0, np.where(here, 0.0, gap))
            else:
                a, b = np.where(here, 0.5, a), np.where(there, 0.5, b)
                out[n] = (a - b) ** 2 + _BESIDE * (here != there)
        return out

    def _number(self, knob: Knob, places: Places | None, point: Point) -> float:
        if knob.name not in point:
            if not knob.active(point):
                return math.nan
            return 0.5 if not _is_category(knob.domain) else _UNKNOWN
        value, domain = point[knob.name], knob.domain
        if places is not None:
            return places[option_key(value)]
        assert not isinstance(domain, ChoiceDomain)
        low, high, at = float(domain.low), float(domain.high), float(value)
        if low == high:
            return 0.0
        if domain.log:
            return math.log(at / low) / math.log(high / low)
        return (at - low) / (high - low)


def _is_category(domain: Domain) -> bool:
    return isinstance(domain, ChoiceDomain) and not _numbers(domain.options)


def _places(domain: Domain) -> Places | None:
    if not isinstance(domain, ChoiceDomain):
        return None
    order = sorted(domain.options) if _numbers(domain.options) else list(domain.options)
    span = max(len(order) - 1, 1) if _numbers(domain.options) else 1
    return {option_key(option): n / span for n, option in enumerate(order)}


def _numbers(options: Sequence[Json]) -> bool:
    return all(isinstance(o, int | float) and not isinstance(o, bool) for o in options)


def option_key(option: Json) -> tuple[type, Json]:
    """Return what tells an option from all others (1 and True are two), cheaply for scalars."""
    scalar = option is None or isinstance(option, bool | int | float | str)
    return type(option), option if scalar else canonical(option)
