"""A KServe InferenceService for a preset."""

from __future__ import annotations

import yaml

from tuner.config import Json
from tuner.exports import pods
from tuner.exports.profiles import LOCAL, Profile
from tuner.exports.vllm_config import File, holds
from tuner.presets import Preset


def kserve(preset: Preset, profile: Profile = LOCAL) -> list[File]:
    """Return ``<name>.kserve.yaml``: the predictor is the very container that was measured.

    KServe's own Hugging Face runtime ships a vLLM of its own version and parses arguments of its
    own; a preset holds for one version, so it comes with its image.
    """
    name = f"{preset.name}.kserve.yaml"
    replicas = profile.replicas(preset)
    predictor: dict[str, Json] = {
        "minReplicas": replicas if profile.serving else 1,
        "maxReplicas": replicas,
        # Knative's queue would count requests; the engine batches as many as it takes.
        "containerConcurrency": 0,
        # As long as the slowest answer; KServe would cut it off after a minute.
        "timeout": 600,
        "enableServiceLinks": False,
        # KServe looks for this name.
        "containers": [pods.container(preset, "kserve-container")],
        "volumes": pods.volumes(preset),
    }
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": pods.resource_name(preset),
            # Plain Deployments: Knative knows neither start-up probes nor folders of the node.
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
        },
        "spec": {"predictor": predictor},
    }
    text = yaml.safe_dump(service, sort_keys=False, allow_unicode=True, width=10_000)
    head = f"# {preset.name}: trial {preset.trial}. kubectl apply -f {name}\n"
    return [(name, head + holds(preset) + text)]
