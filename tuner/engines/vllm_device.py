"""A GPU that is not here: which one the check is to stand in for, and whether it could.

vLLM loads ``plugin`` (entry point ``vllm.platform_plugins``) in each of its processes; it does
something only where our variable names a device, which is in the process of the check.
"""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import asdict

from tuner.devices import Device

#: A device as JSON. Set for the process of the check, never for an engine.
VARIABLE = "TUNER_STAND_IN_DEVICE"
_CLASS = "tuner.engines.vllm_stand_in.StandIn"
_failures: list[str] = []


def stand_in_env(device: Device) -> dict[str, str]:
    """Return the environment in which the check stands in for a device."""
    return {VARIABLE: json.dumps(asdict(device))}


def wanted() -> Device | None:
    """Return the device to stand in for, None to check for this machine."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    found = json.loads(text)
    return Device(**{**found, "capability": tuple(found["capability"])})


def plugin() -> str | None:
    """Return the platform class for vLLM to load, None where nothing is to be stood in for.

    None as well where this vLLM's CUDA rules cannot be loaded: then ``problem`` says why, and vLLM
    goes on with the machine as it is.
    """
    if wanted() is None:
        return None
    module, _, _ = _CLASS.rpartition(".")
    try:
        importlib.import_module(module)
    except Exception as error:
        _failures[:] = [f"{type(error).__name__}: {error}"]
        return None
    return _CLASS


def problem() -> str:
    """Say why vLLM in this process does not take the wanted device for its own; '' if it does."""
    device = wanted()
    if device is None:
        return ""
    from vllm.platforms import current_platform

    kind = type(current_platform)
    if f"{kind.__module__}.{kind.__qualname__}" == _CLASS:
        return ""
    why = (
        f"the CUDA rules of this vLLM cannot be loaded here ({_failures[0]})"
        if _failures
        else "vLLM did not load our plugin: install this package again, and leave "
        "VLLM_PLUGINS and VLLM_TARGET_DEVICE unset"
    )
    return f"not checked for {device.name}: {why}"
