"""Where a study runs: what comes from outside of it, and the environment of its engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner import machine
from tuner.events import Notice, Observer
from tuner.study import StudySpec
from tuner.tune import StopRequest

#: Compile and kernel caches that outlive a study.
CACHE = Path.home() / ".cache" / "vllm-tuner"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What comes from outside of a study: where it writes, who watches, who may stop it."""

    folder: Path
    observers: Sequence[Observer] = ()
    stop: StopRequest = field(default_factory=StopRequest)
    cache: Path = CACHE

    def say(self, message: str) -> None:
        """Tell the observers one sentence."""
        for observer in self.observers:
            observer.on_event(Notice(message))


def on_gpus(spec: StudySpec) -> bool:
    """Whether the study's engines run on GPUs: not with the CPU build of vLLM, nor simulated."""
    if spec.engine.kind == "simulated" or spec.engine.cpus is not None:
        return False
    return spec.ray.address is not None or bool(machine.gpus())


def environment(spec: StudySpec, cache: Path) -> dict[str, str]:
    """Return the one environment of all engines of a study, and of what checks for them."""
    from tuner.engines.vllm import base_env

    device = "cuda" if on_gpus(spec) else "cpu"
    return {**base_env(cache, device=device, model=spec.base.model), **spec.base.env}
