"""What the container exports share: image, command, memory, start-up time."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath

from tuner.exports.shell import command
from tuner.presets import Preset

PORT = 8000
#: Shared memory for the engine's processes.
SHM_GIB = 8
#: Seconds between health probes.
PROBE_S = 10
#: A start in the field may take so many times longer than the measured one (cold disk, download).
START_MARGIN = 5
DEFAULT_START_S = 180.0
#: Asked for per GPU (or per engine on a CPU): front end, engine and tokenizer keep so many busy.
CPUS = 4
MEMORY_GIB = 32


def on_gpu(preset: Preset) -> bool:
    """Whether the preset was measured on GPUs; without any word about hardware, yes."""
    hardware = preset.provenance.get("hardware") or {}
    return bool(hardware.get("gpus", True))


def image(preset: Preset) -> str:
    """Return the public image of the vLLM version that was measured."""
    version = (preset.provenance.get("versions") or {}).get("vllm", "")
    tag = f"v{release[0]}" if (release := re.match(r"\d+\.\d+\.\d+", version)) else "latest"
    name = "vllm/vllm-openai" if on_gpu(preset) else "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo"
    return f"{name}:{tag}"


def serve(preset: Preset) -> list[str]:
    """Return the container's command: the same options, open to the container's network."""
    return [*command(preset), "--host", "0.0.0.0", "--port", str(PORT)]


def local_model(preset: Preset) -> str | None:
    """Return the model's folder if it is an absolute path, None for a name on a model hub."""
    path = PurePosixPath(preset.config.model)
    return str(path) if path.is_absolute() else None


def start_allowance_s(preset: Preset) -> int:
    """Return how long a start may take before it counts as hung: seconds, a multiple of 10."""
    measured = preset.provenance.get("start_s") or DEFAULT_START_S
    return math.ceil(max(measured * START_MARGIN, 300.0) / PROBE_S) * PROBE_S
