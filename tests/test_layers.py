"""Imports go strictly down the layers of the design; each giant enters through one place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "tuner"

#: First matching prefix of the module's path wins.
RANKS = {
    "errors": 0,
    "config": 1,
    "trace": 1,
    "devices": 1,
    "transforms": 2,
    "pareto": 1,
    "knobs": 2,
    "memory": 2,
    "records": 2,
    "metrics": 4,
    "claims": 4,
    "stopping": 4,
    "objectives": 3,
    "job": 3,
    "again": 10,
    "compare": 10,
    "prometheus": 10,
    "price": 10,
    "grafana": 10,
    "rules": 5,
    "intervals": 5,
    "remedies": 10,
    "runner": 10,
    "finish": 10,
    "gain": 10,
    "preview": 10,
    "calibration": 10,
    "feasible": 10,
    "target": 10,
    "signals": 10,
    "confirm": 10,
    "demotion": 10,
    "machine": 5,
    "engines": 5,
    "traces": 5,
    "events": 5,
    "replay": 6,
    "patience": 7,
    "knowledge": 10,
    "surroundings": 10,
    "beforehand": 10,
    "accuracy": 4,
    "accuracy_job": 7,
    "accuracy_study": 10,
    "blame": 5,
    "evaluate": 7,
    "bench": 7,
    "measures": 7,
    "capacity": 6,
    "uncertainty": 5,
    "strategies": 8,
    "pools": 8,
    "presets": 8,
    "attribution": 10,
    "minimal": 10,
    "explain": 10,
    "validity": 8,
    "exports": 8,
    "live": 8,
    "store": 8,
    "yaml_file": 9,
    "study": 9,
    "tune": 10,
    "trainable": 10,
    "report": 10,
    "dashboard": 10,
    "doctor": 10,
    "progress": 10,
    "results": 10,
    "cli": 11,
    "__main__": 12,
    "__init__": 12,
}
#: Package -> where it may be imported.
GIANTS = {
    "vllm": ("engines/vllm", "engines/live", "doctor"),
    "ray": ("pools/", "doctor", "trainable"),
    "optuna": ("strategies/", "store", "dashboard"),
    "optuna_dashboard": ("dashboard",),
    "pydantic": ("study",),
    "ruamel": ("yaml_file",),
}


def rank(module: str) -> int:
    head = module.split("/", maxsplit=1)[0].removesuffix(".py")
    known = [name for name in RANKS if head == name or head.startswith(name + "_")]
    assert known, f"tuner/{module} has no rank: add it to RANKS"
    return RANKS[max(known, key=len)]


def modules() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imports(module: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module]
            if node.module == "tuner":
                found += [f"tuner.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("module", modules())
def test_imports_go_down(module: str) -> None:
    own = rank(module)
    package = module.split("/", maxsplit=1)[0]
    for name in imports(module):
        parts = name.split(".")
        if parts[0] == "tuner" and len(parts) > 1 and parts[1] != package:
            assert rank(parts[1]) <= own, f"{module} (rank {own}) imports {name}"


@pytest.mark.parametrize("module", modules())
def test_each_giant_enters_through_one_place(module: str) -> None:
    for name in imports(module):
        allowed = GIANTS.get(name.split(".")[0])
        if allowed is not None:
            assert module.startswith(allowed), f"{module} imports {name}"


@pytest.mark.parametrize("module", modules())
def test_nouns_need_only_the_standard_library_and_numpy(module: str) -> None:
    if rank(module) > 4:
        return
    for name in imports(module):
        assert name.split(".")[0] in {
            "__future__", "ast", "collections", "contextlib", "dataclasses", "decimal", "hashlib",
            "itertools", "json", "math", "typing", "numpy", "tuner",
        }, f"{module} imports {name}"  # fmt: skip
