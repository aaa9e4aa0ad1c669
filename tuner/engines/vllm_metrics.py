"""The Prometheus metrics of the installed vLLM, read from its source: nothing is imported."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

#: Where vLLM defines them, in every version that we support.
_SOURCES = "v1/metrics"
_NAME = re.compile(r"name\s*=\s*\"(vllm:[a-z0-9_]+)\"")


@cache
def names() -> frozenset[str]:
    """Return the names as vLLM defines them; empty where no vLLM is installed.

    What is exposed under a counter's name ends in ``_total``, under a histogram's in ``_bucket``,
    ``_sum`` and ``_count``.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    files = sorted((Path(spec.origin).parent / _SOURCES).rglob("*.py"))
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return frozenset(name for text in texts for name in _NAME.findall(text))
