"""A Ray Serve config file for a preset: its LLM application behind an OpenAI-compatible ingress."""

from __future__ import annotations

import yaml

from tuner.config import Json, nested
from tuner.exports import containers
from tuner.exports.profiles import LOCAL, Profile
from tuner.exports.vllm_config import File, holds
from tuner.presets import Preset

#: What Ray Serve sets by itself and refuses to be told: processes and copies are its business.
_RAYS = ("distributed_executor_backend", "data_parallel_size", "model", "served_model_name")


def ray_serve(preset: Preset, profile: Profile = LOCAL) -> list[File]:
    """Return ``<name>.serve.yaml`` for ``serve run`` and ``serve deploy``.

    Copies of the model (data parallel size) become replicas of the deployment, which is what they
    are to Ray.
    """
    name = f"{preset.name}.serve.yaml"
    application = {
        "name": "llm",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [_llm(preset, profile)]},
    }
    document = {"applications": [application]}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)
    head = f"# {preset.name}: trial {preset.trial}. serve run {name}\n"
    return [(name, head + holds(preset) + text)]


def _llm(preset: Preset, profile: Profile) -> dict[str, Json]:
    config = preset.config
    copies = int(config.args.get("data_parallel_size", 1))
    found: dict[str, Json] = {
        "model_loading_config": {"model_id": preset.name, "model_source": config.model},
        "engine_kwargs": {k: v for k, v in nested(config.args).items() if k not in _RAYS},
        "deployment_config": {"num_replicas": profile.replicas(preset) * copies},
    }
    if config.env:
        values = {name: str(value) for name, value in sorted(config.env.items())}
        found["runtime_env"] = {"env_vars": values}
    if not containers.on_gpu(preset):
        found["accelerator_config"] = {"kind": "cpu"}
    return found
