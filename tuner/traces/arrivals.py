"""Arrival times in seconds from a seeded generator: sorted, starting near 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.config import Json
from tuner.traces.draws import Rng, one_of


def draw(rng: Rng, spec: Json, count: int, rate_per_s: float) -> Any:
    """Return ``count`` arrival times with the given mean rate.

    ``spec`` is a name of PROCESSES, or ``{name: parameters}``. ValueError names what is wrong.
    """
    name, parameters = one_of("arrivals", spec, PROCESSES)
    return PROCESSES[name](rng, count, rate_per_s, **parameters)


def invented(count: int, rate_per_s: float, seed: int) -> tuple[Any, str]:
    """Return Poisson arrival times in seconds for rows that have none, and a note about it."""
    if rate_per_s <= 0:
        raise ValueError("rate_per_s must be > 0")
    rng = np.random.Generator(np.random.Philox(seed))
    note = f"arrivals are invented: Poisson, {rate_per_s:g} per second, seed {seed}"
    return poisson(rng, count, rate_per_s), note


def poisson(rng: Rng, count: int, rate_per_s: float) -> Any:
    """Independent users: exponential gaps, CV 1."""
    return np.cumsum(rng.exponential(1 / rate_per_s, count))


def gamma(rng: Rng, count: int, rate_per_s: float, cv: float = 2.0) -> Any:
    """Gamma gaps of the given coefficient of variation. Bursty in the small, even in the large."""
    if cv <= 0:
        raise ValueError("arrivals: cv must be > 0")
    shape = cv**-2
    return np.cumsum(rng.gamma(shape, 1 / (rate_per_s * shape), count))


def constant(rng: Rng, count: int, rate_per_s: float) -> Any:
    """Equal gaps."""
    return np.arange(count) / rate_per_s


def offline(rng: Rng, count: int, rate_per_s: float) -> Any:
    """A batch: everything is there at the start."""
    return np.zeros(count)


def bursts(
    rng: Rng,
    count: int,
    rate_per_s: float,
    every_s: float = 60.0,
    length_s: float = 5.0,
    factor: float = 5.0,
) -> Any:
    """Poisson, ``factor`` times as dense for ``length_s`` at the start of every ``every_s``."""
    if not 0 < length_s < every_s or factor <= 0:
        raise ValueError("arrivals: bursts need 0 < length_s < every_s and factor > 0")
    base = every_s / (length_s * factor + every_s - length_s)

    def work(at: Any) -> Any:
        whole, inside = np.divmod(at, every_s)
        extra = np.minimum(inside, length_s) * factor + np.maximum(inside - length_s, 0)
        return base * (whole * (length_s * factor + every_s - length_s) + extra)

    return _warped(poisson(rng, count, rate_per_s), work)


def daily(
    rng: Rng, count: int, rate_per_s: float, period_s: float = 86_400.0, amplitude: float = 0.6
) -> Any:
    """Poisson under rate * (1 - amplitude * cos(2 pi t / period)): quiet at 0, busy at half."""
    if not 0 <= amplitude <= 1 or period_s <= 0:
        raise ValueError("arrivals: daily needs amplitude in 0..1 and period_s > 0")
    turn = 2 * np.pi / period_s

    def work(at: Any) -> Any:
        return at - amplitude * np.sin(turn * at) / turn

    return _warped(poisson(rng, count, rate_per_s), work)


def _warped(even: Any, work: Callable[[Any], Any]) -> Any:
    """Return the times at which the growing function ``work`` reaches the evenly drawn ones."""
    low, high = np.zeros_like(even), even * 2 + 1
    while np.any(work(high) < even):
        high = high * 2
    for _ in range(60):
        middle = (low + high) / 2
        below = work(middle) < even
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return high


PROCESSES: Mapping[str, Callable[..., Any]] = {
    "poisson": poisson,
    "gamma": gamma,
    "constant": constant,
    "offline": offline,
    "bursts": bursts,
    "daily": daily,
}
