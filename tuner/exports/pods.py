"""What the Kubernetes exports share: container, volumes, probes, and when to add replicas."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from tuner.config import Json
from tuner.exports import containers
from tuner.presets import CAPACITY, Preset

if TYPE_CHECKING:
    from tuner.exports.profiles import Profile

#: Where Prometheus' operator puts it: what the hints for autoscaling ask.
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
#: Add a replica at this share of the measured capacity: a start takes longer than a burst.
HEADROOM = 0.7
#: Requests that wait before another engine is worth its start, where no capacity is known.
WAITING = 5


def container(preset: Preset, name: str) -> dict[str, Json]:
    """Return the container of an engine: command, environment, GPUs, probes, shared memory."""
    words = containers.serve(preset)
    found: dict[str, Json] = {
        "name": name,
        "image": containers.image(preset),
        "command": words[:2],
        "args": [literal(word) for word in words[2:]],
        "env": environment(preset),
        "ports": [{"name": "http", "containerPort": containers.PORT, "protocol": "TCP"}],
        "volumeMounts": mounts(preset),
        **probes(preset),
        "resources": resources(preset),
    }
    return {key: value for key, value in found.items() if value not in ([], {})}


def environment(preset: Preset) -> list[dict[str, Json]]:
    """Return the preset's environment as a pod wants it."""
    env = sorted(preset.config.env.items())
    return [{"name": name, "value": literal(str(value))} for name, value in env]


def resources(preset: Preset) -> dict[str, Json]:
    """Return requests and limits. GPUs are limited only: Kubernetes requests as many by itself."""
    gpus = preset.config.gpus
    asked = {"cpu": containers.CPUS * gpus, "memory": f"{containers.MEMORY_GIB * gpus}Gi"}
    if not containers.on_gpu(preset):
        return {"requests": asked}
    return {"requests": asked, "limits": {"nvidia.com/gpu": gpus}}


def probes(preset: Preset) -> dict[str, Json]:
    """Return start-up, readiness and liveness probes; the first waits as long as a start may."""
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": containers.PROBE_S}
    attempts = containers.start_allowance_s(preset) // containers.PROBE_S
    return {
        "startupProbe": {**health, "failureThreshold": attempts},
        "readinessProbe": {**health, "failureThreshold": 3, "timeoutSeconds": 5},
        "livenessProbe": {**health, "failureThreshold": 6, "timeoutSeconds": 5},
    }


def volumes(preset: Preset) -> list[dict[str, Json]]:
    """Return shared memory, and either the model's folder on the node or a cache for downloads."""
    memory = {"medium": "Memory", "sizeLimit": f"{containers.SHM_GIB}Gi"}
    shared = {"name": "shm", "emptyDir": memory}
    folder = containers.local_model(preset)
    if folder is None:
        return [shared, {"name": "cache", "emptyDir": {}}]
    return [shared, {"name": "model", "hostPath": {"path": folder, "type": "Directory"}}]


def mounts(preset: Preset) -> list[dict[str, Json]]:
    """Return where the volumes are in the container."""
    return [{"name": volume["name"], **_mount(volume)} for volume in volumes(preset)]


def _mount(volume: dict[str, Json]) -> dict[str, Json]:
    if volume["name"] == "model":
        return {"mountPath": volume["hostPath"]["path"], "readOnly": True}
    return {"mountPath": "/dev/shm" if volume["name"] == "shm" else "/root/.cache"}


def trigger(preset: Preset, selector: str) -> dict[str, Json]:
    """Return KEDA's trigger: load beyond a share of the measured capacity, else a queue.

    ``selector`` picks the engines among those that Prometheus watches.
    """
    capacity = (preset.provenance.get("measured") or {}).get(CAPACITY)
    if capacity:
        query = f"sum(rate(vllm:request_success_total{{{selector}}}[1m]))"
        threshold = f"{HEADROOM * capacity:.3g}"
    else:
        query = f"sum(vllm:num_requests_waiting{{{selector}}})"
        threshold = str(WAITING)
    metadata = {"serverAddress": PROMETHEUS, "query": query, "threshold": threshold}
    return {"type": "prometheus", "metadata": metadata}


def cooldown_s(preset: Preset) -> int:
    """Return for how long load has to stay low before an engine is given up: five starts of it."""
    start = preset.provenance.get("start_s") or containers.DEFAULT_START_S
    return max(300, math.ceil(start * 5))


def autoscaling(preset: Preset, profile: Profile, target: str) -> dict[str, Json]:
    """Return a KEDA ScaledObject for a Deployment."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": target},
        "spec": {
            "scaleTargetRef": {"name": target},
            "minReplicaCount": 1,
            "maxReplicaCount": profile.replicas(preset),
            "cooldownPeriod": cooldown_s(preset),
            "triggers": [trigger(preset, f'pod=~"{target}-.*"')],
        },
    }


def resource_name(preset: Preset) -> str:
    """Return a name that Kubernetes takes: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"vllm-{preset.name}".lower()).strip("-")[:53]


def literal(text: str) -> str:
    """Keep Kubernetes from filling in ``$(NAME)``."""
    return text.replace("$(", "$$(")
