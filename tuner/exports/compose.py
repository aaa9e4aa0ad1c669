"""A Docker Compose file that starts a preset."""

from __future__ import annotations

import yaml

from tuner.config import Json
from tuner.exports import containers
from tuner.exports.profiles import LOCAL, Profile
from tuner.exports.vllm_config import File, holds
from tuner.presets import Preset

_HEALTH = f"http://localhost:{containers.PORT}/health"


def compose(preset: Preset, profile: Profile = LOCAL) -> list[File]:
    """Return ``<name>.compose.yaml``: GPU reservation, health check, model cache.

    For production each engine is a service on GPUs of its own, behind one that hands out requests.
    """
    name = f"{preset.name}.compose.yaml"
    n = profile.replicas(preset)
    if profile.serving and n > 1:
        gpus = preset.config.gpus
        engines = {f"vllm-{i}": _service(preset, _own(i * gpus, gpus)) for i in range(n)}
        document = _balanced(engines)
    else:
        address = "" if profile.serving else "127.0.0.1:"
        published = {"ports": [f"{address}{containers.PORT}:{containers.PORT}"]}
        document = {"services": {"vllm": _service(preset, _any(preset)) | published}}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)
    start = f"docker compose -f {name} up -d"
    head = f"# {preset.name}: trial {preset.trial}. Start it with:\n#   {start}\n{holds(preset)}"
    return [(name, head + text)]


def _any(preset: Preset) -> dict[str, Json]:
    return {"count": preset.config.gpus} if containers.on_gpu(preset) else {}


def _own(first: int, n: int) -> dict[str, Json]:
    return {"device_ids": [str(first + i) for i in range(n)]}


def _balanced(engines: dict[str, Json]) -> dict[str, Json]:
    """Return the engines behind nginx, which gives each request to the least busy of them."""
    servers = " ".join(f"server {name}:{containers.PORT};" for name in engines)
    # A stream of tokens must not wait in a buffer; an answer may take minutes.
    proxy = "proxy_pass http://vllm; proxy_buffering off; proxy_read_timeout 3600s;"
    text = (
        f"upstream vllm {{ least_conn; {servers} }}\n"
        f"server {{ listen {containers.PORT}; client_max_body_size 0; location / {{ {proxy} }} }}\n"
    )
    front = {
        "image": "nginx:stable",
        "ports": [f"{containers.PORT}:{containers.PORT}"],
        "configs": [{"source": "front", "target": "/etc/nginx/conf.d/default.conf"}],
        "depends_on": {name: {"condition": "service_healthy"} for name in engines},
        "restart": "unless-stopped",
    }
    return {"services": {"front": front, **engines}, "configs": {"front": {"content": text}}}


def _service(preset: Preset, gpus: dict[str, Json]) -> dict[str, Json]:
    executable, subcommand, *words = containers.serve(preset)
    service: dict[str, Json] = {
        "image": containers.image(preset),
        "entrypoint": [executable, subcommand],
        "command": [_literal(word) for word in words],
        "environment": {k: _literal(str(v)) for k, v in sorted(preset.config.env.items())},
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
    if gpus:
        device = {"driver": "nvidia", **gpus, "capabilities": ["gpu"]}
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
