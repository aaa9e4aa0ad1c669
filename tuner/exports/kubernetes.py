"""A Kubernetes Deployment and Service for a preset."""

from __future__ import annotations

import yaml

from tuner.config import Json
from tuner.exports import containers
from tuner.exports.vllm_config import File
from tuner.presets import Preset


def kubernetes(preset: Preset) -> list[File]:
    """Return ``<name>.k8s.yaml``: a Deployment with probes and shared memory, and its Service."""
    name = f"{preset.name}.k8s.yaml"
    labels = {"app": f"vllm-{preset.name}"}
    documents = [_deployment(preset, labels), _service(labels)]
    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=10_000)
    return [(name, f"# {preset.name}: trial {preset.trial}. kubectl apply -f {name}\n{text}")]


def _deployment(preset: Preset, labels: dict[str, str]) -> dict[str, Json]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": labels["app"], "labels": labels},
        "spec": {
            "replicas": 1,
            # Two pods cannot share one GPU: the old one has to go first.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    # Service links would set VLLM_... variables, which vLLM takes for its own.
                    "enableServiceLinks": False,
                    "containers": [_container(preset)],
                    "volumes": _volumes(preset),
                },
            },
        },
    }


def _container(preset: Preset) -> dict[str, Json]:
    words = containers.serve(preset)
    container: dict[str, Json] = {
        "name": "vllm",
        "image": containers.image(preset),
        "command": words[:2],
        "args": [_literal(word) for word in words[2:]],
        "env": [
            {"name": k, "value": _literal(str(v))} for k, v in sorted(preset.config.env.items())
        ],
        "ports": [{"name": "http", "containerPort": containers.PORT}],
        "volumeMounts": [{"name": v["name"], **_mount(v)} for v in _volumes(preset)],
        **_probes(preset),
    }
    if containers.on_gpu(preset):
        container["resources"] = {"limits": {"nvidia.com/gpu": preset.config.gpus}}
    return {key: value for key, value in container.items() if value != []}


def _probes(preset: Preset) -> dict[str, Json]:
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": containers.PROBE_S}
    attempts = containers.start_allowance_s(preset) // containers.PROBE_S
    return {
        "startupProbe": {**health, "failureThreshold": attempts},
        "readinessProbe": {**health, "failureThreshold": 3, "timeoutSeconds": 5},
        "livenessProbe": {**health, "failureThreshold": 6, "timeoutSeconds": 5},
    }


def _volumes(preset: Preset) -> list[dict[str, Json]]:
    memory = {"medium": "Memory", "sizeLimit": f"{containers.SHM_GIB}Gi"}
    shared = {"name": "shm", "emptyDir": memory}
    folder = containers.local_model(preset)
    if folder is None:
        return [shared, {"name": "cache", "emptyDir": {}}]
    return [shared, {"name": "model", "hostPath": {"path": folder, "type": "Directory"}}]


def _mount(volume: dict[str, Json]) -> dict[str, Json]:
    if volume["name"] == "model":
        return {"mountPath": volume["hostPath"]["path"], "readOnly": True}
    return {"mountPath": "/dev/shm" if volume["name"] == "shm" else "/root/.cache"}


def _service(labels: dict[str, str]) -> dict[str, Json]:
    port = {"name": "http", "port": containers.PORT, "targetPort": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": labels["app"], "labels": labels},
        "spec": {"selector": labels, "ports": [port]},
    }


def _literal(text: str) -> str:
    """Keep Kubernetes from filling in ``$(NAME)``."""
    return text.replace("$(", "$$(")
