"""Finds the Pareto front of vLLM configurations for a model, a GPU and recorded traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.results import load_results

__all__ = ["load_results"]


def __getattr__(name: str) -> object:
    # Imported on first use: `import tuner` works where pandas and optuna are missing.
    if name == "load_results":
        from tuner.results import load_results

        return load_results
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
