"""The attention backend that vLLM would choose for a configuration, or its reasons against all.

The engine does this in its workers, a minute into a start; it needs no device.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from tuner.engines import vllm_device


def settle(vllm_config: Any) -> str:
    """Choose the backend, and the block size where none was asked for; return the backend's name.

    '' for a model without attention. Raises what vLLM raises where no backend takes the
    configuration (see ``vllm_errors.refusal``), LookupError where it cannot be said here.
    """
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    model, cache = vllm_config.model_config, vllm_config.cache_config
    if getattr(model, "is_attention_free", False):
        return ""
    with set_current_vllm_config(vllm_config), _all_backends():
        try:
            backend = get_attn_backend(
                model.get_head_size(), model.dtype, cache.cache_dtype, use_mla=model.use_mla
            )
        except ValueError as error:
            if _only_not_installed(str(error)):
                raise LookupError(str(error)) from error
            raise
        _settle_block_size(cache, backend)
    return str(backend.get_name())


def _only_not_installed(text: str) -> bool:
    """Whether all that speaks against a backend is that this machine lacks the CUDA build."""
    if vllm_device.wanted() is None:
        return False
    _, _, reasons = text.rpartition("Reason")
    return bool(re.search(r"not available|ImportError|ModuleNotFound", reasons)) and (
        "not supported" not in reasons
    )


def _all_backends() -> contextlib.AbstractContextManager[None]:
    if vllm_device.wanted() is None:
        return contextlib.nullcontext()
    from tuner.engines.vllm_stand_in import library_named

    return library_named()


def _settle_block_size(cache: Any, backend: Any) -> None:
    if not getattr(cache, "user_specified_block_size", True):
        if cache.block_size is None or not backend.supports_block_size(cache.block_size):
            cache.block_size = backend.get_preferred_block_size(cache.block_size or 16)
    elif not backend.supports_block_size(cache.block_size):
        raise ValueError(_no_common_size(cache.block_size, backend))


def _no_common_size(size: int, backend: Any) -> str:
    """Return vLLM's own words for a block size that the CPU backend only refuses in its worker."""
    try:
        from vllm.v1.worker.utils import select_common_block_size

        select_common_block_size(size, [backend])
    except ValueError as error:
        return str(error)
    except Exception:  # a version that asks for something else than backends
        pass
    sizes = backend.get_supported_kernel_block_sizes()
    return f"No common block size for {size} ({backend.get_name()}: {sizes})."
