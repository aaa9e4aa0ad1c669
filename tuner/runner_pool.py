"""What runs a study's jobs: engines in this process, in actors, and what those need to know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.beforehand import at, maxima
from tuner.config import Json
from tuner.events import Observer
from tuner.pools import Pool
from tuner.study import StudySpec
from tuner.surroundings import CACHE, Surroundings, environment, on_gpus

if TYPE_CHECKING:
    from tuner.pools.spec import HostSpec


def make_pool(
    spec: StudySpec,
    around: Surroundings,
    kind: str,
    warmth: Mapping[str, str],
    evaluate_by: str = "",
) -> contextlib.AbstractContextManager[Pool]:
    """Return what runs jobs on engines of ``kind``, live where ``warmth`` has hot arguments.

    ``evaluate_by``: what turns a job into an outcome on real engines, by import path, unwatched.
    """
    teller = _Teller(around.observers)
    if kind == "simulated":
        from tuner.engines.simulated import SimulatedLauncher
        from tuner.engines.simulated_costs import SimulatedCosts
        from tuner.evaluate import evaluate
        from tuner.pools.inline import InlinePool

        launcher = SimulatedLauncher(SimulatedCosts(**_options(spec, kind)))
        return InlinePool(launcher, evaluate, spec.ray.slots or 1, observer=teller)
    from tuner.pools.ray import RayPool
    from tuner.pools.slots import Capacity

    cores = None if on_gpus(spec) else int(spec.engine.cpus or len(os.sched_getaffinity(0)))
    host = host_spec(spec, kind, at(warmth, "hot"), around.cache)
    if evaluate_by:
        host = replace(host, evaluate=evaluate_by, on_gpus=False)
    return RayPool(
        host,
        Capacity(spec.ray.gpus, spec.ray.slots, cores),
        spec.ray.address,
        observer=teller,
    )


def host_spec(spec: StudySpec, kind: str, hot: frozenset[str], cache: Path = CACHE) -> HostSpec:
    """Return what a process needs to know that runs engines of ``kind`` for the study."""
    from tuner.pools.spec import HostSpec

    return HostSpec(
        kind,
        _options(spec, kind),
        environment(spec, cache),
        hot=hot,
        maxima=maxima(spec, hot),
        on_gpus=on_gpus(spec),
    )


def _options(spec: StudySpec, kind: str) -> dict[str, Json]:
    return dict(spec.engine.options) if kind == spec.engine.kind else {}


@dataclass(frozen=True, slots=True)
class _Teller:
    """Passes a pool's events on to all observers."""

    observers: Sequence[Observer]

    def on_event(self, event: object) -> None:
        for observer in self.observers:
            observer.on_event(event)  # type: ignore[arg-type]
