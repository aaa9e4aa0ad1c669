"""Helm values of the vLLM production stack for a preset: engines behind its router."""

from __future__ import annotations

import yaml

from tuner.config import Json
from tuner.engines.flags import flags
from tuner.exports import containers, pods
from tuner.exports.profiles import PRODUCTION, Profile
from tuner.exports.vllm_config import File, holds
from tuner.presets import Preset

_CHART = "helm install vllm vllm/vllm-stack -f"


def production_stack(preset: Preset, profile: Profile = PRODUCTION) -> list[File]:
    """Return ``<name>.helm.yaml``.

    All options go in as arguments, so that they are those of ``vllm serve``; two are the chart's
    own, because it acts on their absence: it switches prefix caching off, and mounts no shared
    memory.
    """
    name = f"{preset.name}.helm.yaml"
    allowance = containers.start_allowance_s(preset)
    health = {"httpGet": {"path": "/health", "port": containers.PORT}}
    values = {
        "servingEngineSpec": {
            "containerPort": containers.PORT,
            # Two engines cannot share one GPU: the chart would start new ones first.
            "strategy": {"type": "Recreate"},
            "startupProbe": {
                **health,
                "initialDelaySeconds": containers.PROBE_S,
                "periodSeconds": containers.PROBE_S,
                "failureThreshold": allowance // containers.PROBE_S,
            },
            "livenessProbe": {
                **health,
                "initialDelaySeconds": containers.PROBE_S,
                "periodSeconds": containers.PROBE_S,
                "failureThreshold": 6,
            },
            "modelSpec": [_model(preset, profile)],
        },
        "routerSpec": {"routingLogic": "roundrobin"},
    }
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000)
    head = f"# {preset.name}: trial {preset.trial}. {_CHART} {name}\n"
    return [(name, head + holds(preset) + text)]


def _model(preset: Preset, profile: Profile) -> dict[str, Json]:
    repository, _, tag = containers.image(preset).rpartition(":")
    config = preset.config
    asked = pods.resources(preset)["requests"]
    model: dict[str, Json] = {
        "name": preset.name,
        "repository": repository,
        "tag": tag,
        "modelURL": config.model,
        "replicaCount": profile.replicas(preset),
        "requestCPU": asked["cpu"],
        "requestMemory": asked["memory"],
        "requestGPU": config.gpus if containers.on_gpu(preset) else 0,
        "shmSize": f"{containers.SHM_GIB}Gi",
        "env": pods.environment(preset),
        "vllmConfig": {
            "tensorParallelSize": int(config.args.get("tensor_parallel_size", 1)),
            "enablePrefixCaching": bool(config.args.get("enable_prefix_caching", True)),
            "extraArgs": _arguments(preset),
        },
        "keda": {
            # Needs KEDA and Prometheus; the chart adds engines while more than 5 requests wait.
            "enabled": False,
            "minReplicaCount": 1,
            "maxReplicaCount": profile.replicas(preset),
            "cooldownPeriod": pods.cooldown_s(preset),
        },
    }
    if containers.local_model(preset) is not None:
        [_, folder] = pods.volumes(preset)
        [_, mount] = pods.mounts(preset)
        model |= {"extraVolumes": [folder], "extraVolumeMounts": [mount]}
    return {key: value for key, value in model.items() if value != []}


def _arguments(preset: Preset) -> list[str]:
    given = {"tensor-parallel-size", "enable-prefix-caching", "no-enable-prefix-caching"}
    words = (flag.tokens() for flag in flags(preset.config) if flag.name not in given)
    return [pods.literal(word) for option in words for word in option]
