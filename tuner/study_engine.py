"""Engine arguments of a study: the model, what is fixed throughout, and the baselines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.config import Json
from tuner.study import Baseline
from tuner.study_sections import EngineSection
from tuner.study_values import given, show, text
from tuner.yaml_file import At, Tree, nearest, read

#: Engine arguments that say which model this is, and so may stand in ``model:``.
MODEL_ARGS = (
    "load_format", "revision", "tokenizer", "tokenizer_mode", "tokenizer_revision", "dtype",
    "trust_remote_code", "skip_tokenizer_init", "hf_overrides", "config_format",
)  # fmt: skip
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
#: Baseline name -> its arguments. vLLM's "balanced" mode is its default.
MODES = {
    "defaults": {},
    "throughput": {"performance_mode": "throughput"},
    "interactivity": {"performance_mode": "interactivity"},
}
#: Keys of a ``vllm serve --config`` file that are no business of a trial.
_NOT_OURS = ("model", "model_tag", "config", "host", "port", "uds", "api_key", "served_model_name")


@dataclass(frozen=True, slots=True)
class ArgumentReader:
    """Reads ``model``, ``engine.args``, ``baselines``. ``ways``: name -> place."""

    tree: Tree
    ways: dict[str, At]

    def fixed(self, engine: EngineSection | None) -> dict[str, Json]:
        """Return the arguments that hold throughout: of ``model`` and of ``engine.args``."""
        arguments: dict[str, Json] = {}
        model = self.tree.get(("model",))
        if isinstance(model, dict):
            for key, value in model.items():
                if key not in ("path", "name"):
                    self._argument(arguments, ("model", key), value, MODEL_ARGS)
        for key, value in (engine.args if engine else {}).items():
            self._argument(arguments, ("engine", "args", key), value, None)
        return arguments

    def _argument(
        self, arguments: dict[str, Json], at: At, value: Json, known: tuple[str, ...] | None
    ) -> None:
        key = str(at[-1])
        name = key.replace("-", "_")
        if known is not None and name not in known:
            near = nearest(key, ("path", "name", *known))
            self.tree.report(at, f"unknown key.{near} Other engine arguments go in engine.args.")
        elif not re.fullmatch(r"[A-Za-z]\w*(\.\w+)*", name):
            self.tree.report(at, f"{show(key)} cannot be an argument's name.")
        elif name in arguments:
            self.tree.report(at, f"{name} is given twice: dashes and underscores are the same.")
        else:
            try:
                arguments[name] = given(value)
            except ValueError as error:
                self.tree.report(at, str(error))
            self.ways[name] = at

    def model(self) -> str:
        """Return the model's absolute path or its name on the hub, '' where it is at fault."""
        at: At = ("model",)
        model = self.tree.get(at)
        if isinstance(model, str) and model.strip():
            return self._path_or_name(at, str(model))
        if not isinstance(model, dict):
            found = "is missing" if model is None else f"found {show(model)}"
            self.tree.report(at, f"needs {{path: ...}} or {{name: org/model}}; {found}.")
            return ""
        kinds = [key for key in ("path", "name") if key in model]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "neither"
            self.tree.report(at, f"needs exactly one of path, name; found {found}.")
            return ""
        return self._named((*at, kinds[0]), model[kinds[0]])

    def _named(self, at: At, value: Json) -> str:
        try:
            name = text(value)
        except ValueError as error:
            self.tree.report(at, str(error))
            return ""
        if at[-1] == "path":
            return self._model_path(at, name)
        if not _HUB_NAME.fullmatch(name):
            self.tree.report(at, f"{show(name)} is no model name (org/model); a path goes in path.")
        return name

    def _path_or_name(self, at: At, value: str) -> str:
        base = self.tree.place(at).base
        if (base / value).exists() or value.startswith((".", "/", "~")):
            return self._model_path(at, value)
        if (base / value.split("/", 1)[0]).is_dir() or not _HUB_NAME.fullmatch(value):
            self.tree.report(
                at,
                f"there is no directory {value} here; for a name on the hub write {{name: ...}}.",
            )
        return value

    def _model_path(self, at: At, value: str) -> str:
        path = Path(os.path.abspath(self.tree.place(at).base / Path(value).expanduser()))
        if not path.exists():
            self.tree.report(at, f"there is no directory {os.path.relpath(path)}.")
        elif path.is_dir() and not (path / "config.json").is_file():
            self.tree.report(at, f"{os.path.relpath(path)} holds no config.json: is it a model?")
        return str(path)

    def baselines(self) -> tuple[Baseline, ...]:
        """Return what is to be beaten: by default vLLM's defaults and its performance modes."""
        listed = self.tree.get(("baselines",))
        if listed is None:
            return tuple(Baseline(name, arguments) for name, arguments in MODES.items())
        if not isinstance(listed, list):
            self.tree.report(("baselines",), f"needs a list, found {show(listed)}.")
            return ()
        out: list[Baseline] = []
        for i, item in enumerate(listed):
            baseline = self._baseline(("baselines", i), item)
            if baseline is not None and baseline.name in [other.name for other in out]:
                self.tree.report(("baselines", i), f"{baseline.name} is given twice.")
            elif baseline is not None:
                out.append(baseline)
        return tuple(out)

    def _baseline(self, at: At, item: Json) -> Baseline | None:
        if isinstance(item, str):
            if item in MODES:
                return Baseline(str(item), MODES[item])
            self.tree.report(
                at,
                f"needs one of {', '.join(MODES)}, or {{name, args}}; found {show(item)}."
                f"{nearest(item, MODES)}",
            )
            return None
        if not isinstance(item, dict):
            self.tree.report(at, f"needs a name or a mapping, found {show(item)}.")
            return None
        keys = ("name", "args", "config")
        for key in item.keys() - set(keys):
            self.tree.report((*at, key), f"unknown key.{nearest(key, keys)}")
        if not isinstance(item.get("name"), str):
            self.tree.report((*at, "name"), "a baseline needs a name.")
            return None
        arguments: dict[str, Json] = {}
        for way, args in self._baseline_args(at, item):
            for key, value in args.items():
                self._argument(arguments, (*way, key), value, None)
        return Baseline(str(item["name"]), arguments)

    def _baseline_args(self, at: At, item: Mapping[str, Json]) -> list[tuple[At, dict[str, Json]]]:
        """Return the arguments written here, or in a ``vllm serve --config`` file."""
        if isinstance(item.get("config"), str):
            part = read(self.tree.place((*at, "config")).base / item["config"])
            for key in list(part.value):
                if key.replace("-", "_") in _NOT_OURS:
                    del part.value[key]
            self.tree.graft((*at, "config"), part)
            return [((*at, "config"), part.value)]
        args = item.get("args", {})
        if not isinstance(args, dict):
            self.tree.report((*at, "args"), f"needs a mapping (key: value), found {show(args)}.")
            return []
        return [((*at, "args"), args)]
