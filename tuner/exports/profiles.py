"""For what a preset is deployed: a workstation with one GPU, or a node that serves."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.exports import containers
from tuner.presets import Preset


@dataclass(frozen=True, slots=True)
class Profile:
    """The seed of a template. ``gpus``: how many the machine has; ``serving``: it has users."""

    gpus: int
    serving: bool

    def replicas(self, preset: Preset) -> int:
        """Return how many engines fit beside each other: at least one, one without GPUs."""
        if not self.serving or not containers.on_gpu(preset):
            return 1
        return max(1, self.gpus // preset.config.gpus)


#: "local": development on one consumer GPU. "production": all 8 GPUs of a node.
PROFILES = {"local": Profile(1, serving=False), "production": Profile(8, serving=True)}
LOCAL, PRODUCTION = PROFILES["local"], PROFILES["production"]
