"""Finds the Pareto front of vLLM configurations for a model, a GPU and recorded traffic."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.results import load_results
    from tuner.trainable import as_searcher, as_trainable

__all__ = ["as_searcher", "as_trainable", "load_results"]

#: Imported on first use: `import tuner` works where pandas, optuna and ray are missing.
_WHERE = {
    "as_searcher": "tuner.trainable",
    "as_trainable": "tuner.trainable",
    "load_results": "tuner.results",
}


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
