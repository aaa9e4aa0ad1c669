"""What a server says about itself: version, model, and the arguments as they are in effect."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.config import EngineConfig, Json
from tuner.engines import vllm_args
from tuner.engines.http_client import HttpClient
from tuner.engines.vllm_errors import tail_of

#: Assumed where nobody says: no common model has fewer ids.
VOCABULARY = 32_000
#: Seconds for /server_info: vLLM looks at the whole machine for it (5 s on a busy one).
_INFO_S = 60.0
# Arguments whose field in vLLM's configuration is not found by their name.
_PLACES = {
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "attention_backend": ("attention_config", "backend"),
}
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a server serves."""

    name: str
    max_model_len: int | None = None


async def served(client: HttpClient, wanted: str = "") -> Served | None:
    """Return the wanted model, the first where none is wanted; None where it is not served."""
    listed = ((await client.ask("GET", "/v1/models")).json() or {}).get("data") or []
    for model in listed:
        if not wanted or wanted in (model.get("id"), model.get("root")):
            return Served(model["id"], model.get("max_model_len"))
    return None


async def version(client: HttpClient) -> str | None:
    """Return vLLM's version, None where the server has no such page."""
    found = (await client.ask("GET", "/version")).json()
    return str(found["version"]) if isinstance(found, dict) and "version" in found else None


async def inner(client: HttpClient) -> Mapping[str, Json]:
    """Return /server_info (vLLM's development endpoints only), empty where there is none."""
    reply = await client.ask("GET", "/server_info?config_format=json", limit_s=_INFO_S)
    found = reply.json()
    return found if isinstance(found, dict) and isinstance(found.get("vllm_config"), dict) else {}


def from_info(info: Mapping[str, Json], config: EngineConfig) -> dict[str, Json]:
    """Return device, effective arguments, what changed, and the cache's size from /server_info."""
    vllm_config = info.get("vllm_config")
    if not vllm_config:
        return {}
    effective = _effective(config, vllm_config)
    cache = vllm_config.get("cache_config", {})
    facts: dict[str, Json] = {
        "device": _device(info.get("system_env", {})),
        "effective": effective,
        "changed": vllm_args.changed(config.args, effective),
    }
    if cache.get("num_gpu_blocks") and cache.get("block_size"):
        facts["kv_cache_tokens"] = cache["num_gpu_blocks"] * cache["block_size"]
    return {name: value for name, value in facts.items() if value is not None}


def from_log(log: str | Path, since: int = 0) -> dict[str, Json]:
    """Return what the log tells from byte ``since`` on: the cache's size in tokens."""
    found = _KV_TOKENS.findall(tail_of(log, since))
    return {"kv_cache_tokens": int(found[-1].replace(",", ""))} if found else {}


def vocabulary(model: str) -> int | None:
    """Return the size of a model's vocabulary from its config.json, None where there is none.

    Looks in a local folder, or in the local cache of a model that comes from the hub.
    """
    path: str | Path = Path(model) / "config.json"
    if not Path(path).is_file():
        path = _cached(model)
    with contextlib.suppress(OSError, ValueError):
        config = json.loads(Path(path).read_text())
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        return int(size) if size else None
    return None


def _cached(model: str) -> str:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError):  # HFValidationError is a ValueError
        return ""
    return found if isinstance(found, str) else ""


def _effective(config: EngineConfig, vllm_config: Mapping[str, Json]) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for name in sorted({*vllm_args.flat(config.args), *vllm_args.ALWAYS_READ}):
        for value in _found(name, vllm_config):
            out[name] = value.removeprefix("torch.") if isinstance(value, str) else value
            break
    return out


def _found(name: str, vllm_config: Mapping[str, Json]) -> Iterator[Json]:
    """Yield the values of an argument: at its known place, by its path, in any part."""
    path = _PLACES.get(name, tuple(name.split(".")))
    at: Json = vllm_config
    for part in path:
        at = at.get(part) if isinstance(at, Mapping) and part in at else _ABSENT
    if at is not _ABSENT:
        yield at
    for part in vllm_config.values():
        if isinstance(part, Mapping) and name in part:
            yield part[name]


_ABSENT = object()


def _device(system: Mapping[str, Json]) -> str | None:
    gpus = str(system.get("nvidia_gpu_models") or "")
    found = re.search(r"GPU 0: (.+)", gpus) or re.search(
        r"Model name: *(.+)", str(system.get("cpu_info") or "")
    )
    return found[1].strip() if found else None
