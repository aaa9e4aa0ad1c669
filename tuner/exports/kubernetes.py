"""A Kubernetes Deployment and Service for a preset, and how to scale them."""

from __future__ import annotations

import yaml

from tuner.config import Json
from tuner.exports import containers, pods
from tuner.exports.profiles import LOCAL, Profile
from tuner.exports.vllm_config import File, holds
from tuner.presets import Preset


def kubernetes(preset: Preset, profile: Profile = LOCAL) -> list[File]:
    """Return ``<name>.k8s.yaml``: a Deployment with probes and shared memory, and its Service.

    For production the engines are replaced one by one, never all taken away at once, and a KEDA
    ScaledObject stands at the end as a comment: not every cluster has KEDA.
    """
    name = f"{preset.name}.k8s.yaml"
    labels = {"app": pods.resource_name(preset)}
    documents = [_deployment(preset, profile, labels), _service(labels)]
    hint = ""
    if profile.serving:
        documents.append(_disruption(labels))
        hint = _commented(_dump([pods.autoscaling(preset, profile, labels["app"])]))
    head = f"# {preset.name}: trial {preset.trial}. kubectl apply -f {name}\n{holds(preset)}"
    return [(name, head + _dump(documents) + hint)]


def _dump(documents: list[dict[str, Json]]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=10_000)


def _commented(text: str) -> str:
    lines = [f"# {line}\n" for line in text.splitlines()]
    return "---\n# Where KEDA and Prometheus run, this adds engines as load grows:\n" + "".join(
        lines
    )


def _deployment(preset: Preset, profile: Profile, labels: dict[str, str]) -> dict[str, Json]:
    pod: dict[str, Json] = {
        # Service links would set VLLM_... variables, which vLLM takes for its own.
        "enableServiceLinks": False,
        "containers": [pods.container(preset, "vllm")],
        "volumes": pods.volumes(preset),
    }
    # Two pods cannot share one GPU: the old one has to go first.
    strategy: dict[str, Json] = {"type": "Recreate"}
    if profile.serving:
        strategy = {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
        }
        # Running requests end before the pod does.
        pod["terminationGracePeriodSeconds"] = 120
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": labels["app"], "labels": labels},
        "spec": {
            "replicas": profile.replicas(preset),
            "strategy": strategy,
            "progressDeadlineSeconds": containers.start_allowance_s(preset) + 600,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _service(labels: dict[str, str]) -> dict[str, Json]:
    port = {"name": "http", "port": containers.PORT, "targetPort": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": labels["app"], "labels": labels},
        "spec": {"selector": labels, "ports": [port]},
    }


def _disruption(labels: dict[str, str]) -> dict[str, Json]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": labels["app"], "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }
