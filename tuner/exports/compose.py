"""A Docker Compose file that starts a preset."""

from __future__ import annotations

import yaml

from tuner.config import Json
from tuner.exports import containers
from tuner.exports.vllm_config import File
from tuner.presets import Preset

_HEALTH = f"http://localhost:{containers.PORT}/health"


def compose(preset: Preset) -> list[File]:
    """Return ``<name>.compose.yaml``: GPU reservation, health check, model cache."""
    name = f"{preset.name}.compose.yaml"
    text = yaml.safe_dump(
        {"services": {"vllm": _service(preset)}}, sort_keys=False, allow_unicode=True, width=10_000
    )
    start = f"docker compose -f {name} up -d"
    return [(name, f"# {preset.name}: trial {preset.trial}. Start it with:\n#   {start}\n{text}")]


def _service(preset: Preset) -> dict[str, Json]:
    executable, subcommand, *words = containers.serve(preset)
    service: dict[str, Json] = {
        "image": containers.image(preset),
        "entrypoint": [executable, subcommand],
        "command": [_literal(word) for word in words],
        "environment": {k: _literal(str(v)) for k, v in sorted(preset.config.env.items())},
        "ports": [f"{containers.PORT}:{containers.PORT}"],
        "volumes": _volumes(preset),
        "shm_size": f"{containers.SHM_GIB}gb",
        "healthcheck": {
            "test": ["CMD", "curl", "--fail", "--silent", _HEALTH],
            "interval": f"{containers.PROBE_S}s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{containers.start_allowance_s(preset)}s",
        },
        "restart": "unless-stopped",
    }
    if containers.on_gpu(preset):
        device = {"driver": "nvidia", "count": preset.config.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return {key: value for key, value in service.items() if value not in ({}, [])}


def _volumes(preset: Preset) -> list[str]:
    folder = containers.local_model(preset)
    if folder is None:
        return ["${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"]
    return [f"{_literal(folder)}:{_literal(folder)}:ro"]


def _literal(text: str) -> str:
    """Keep Compose from filling in ``$NAME``."""
    return text.replace("$", "$$")
