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
        written = engine.args if engine else self.tree.get(("engine", "args"))
        for key, value in (written if isinstance(written, dict) else {}).items():
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
            self.ways.setdefault(name, at)

    def model(self) -> str:
        """Return the model's absolute path or its name on the hub, '' where it is at fault."""
        at: At = ("model",)
        model = self.tree.get(at)
        if isinstance(model, str) and model.strip():
            return self._path_or_name(at, str(model))
        if not isinstance(model, dict):
            found = "is missing" if model is None else f"needs a mapping, found {show(model)}"
            self.tree.report(at, f"{found}: give {{path: ...}} or {{name: org/model}}.")
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
        """Return the user's own baselines, as ``{name: current, config: current.yaml}``."""
        listed = self.tree.get(("baselines",)) or []
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
        if not isinstance(item, dict):
            self.tree.report(at, f"needs {{name, args}} or {{name, config}}, found {show(item)}.")
            return None
        keys = ("name", "args", "config")
        for key in item.keys() - set(keys):
            self.tree.report((*at, key), f"unknown key.{nearest(key, keys)}")
        arguments: dict[str, Json] = {}
        for way, args in self._baseline_args(at, item):
            for key, value in args.items():
                self._argument(arguments, (*way, key), value, None)
        try:
            return Baseline(text(item.get("name")), arguments)
        except ValueError as error:
            self.tree.report((*at, "name"), str(error))
            return None

    def _baseline_args(self, at: At, item: Mapping[str, Json]) -> list[tuple[At, dict[str, Json]]]:
        """Return the arguments written here, and those in a ``vllm serve --config`` file."""
        out: list[tuple[At, dict[str, Json]]] = []
        if "config" in item:
            way = (*at, "config")
            try:
                part = read(self.tree.place(way).base / text(item["config"]))
            except ValueError as error:
                self.tree.report(way, str(error))
                return []
            for key in list(part.value):
                if key.replace("-", "_") in _NOT_OURS:
                    del part.value[key]
            self.tree.graft(way, part)
            out.append((way, part.value))
        args = item.get("args", {})
        if isinstance(args, dict):
            return [*out, ((*at, "args"), args)]
        self.tree.report((*at, "args"), f"needs a mapping (key: value), found {show(args)}.")
        return out
