"""From the gathered tree of a study to a StudySpec: each section, and what spans several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tuner.config import EngineConfig, Json
from tuner.job import Deadlines
from tuner.knobs import SearchSpace
from tuner.study import EngineSpec, StudySpec
from tuner.study_accuracy import AccuracySection
from tuner.study_engine import ArgumentReader
from tuner.study_goals import read_constraints, read_objectives
from tuner.study_hardware import read_hardware
from tuner.study_sections import (
    AttributionSection,
    Budget,
    Confirm,
    EngineSection,
    Price,
    RaySection,
    StrategySection,
    parse,
)
from tuner.study_space import SpaceReader
from tuner.study_values import flag, show, text, whole
from tuner.study_workload import WorkloadSpec, read_workload
from tuner.yaml_file import At, Tree, nearest

T = TypeVar("T")

KEYS = (
    "name", "model", "engine", "space", "workload", "objectives", "constraints", "budget",
    "strategy", "confirm", "attribution", "baselines", "storage", "ray", "repeats", "early_end",
    "hardware", "price", "accuracy",
)  # fmt: skip
_SPECULATION = "speculative_config"
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(slots=True)
class StudyReader:
    """Reads one study. ``stem``: its name where the file says none."""

    tree: Tree
    stem: str
    warnings: list[str] = field(default_factory=list)
    ways: dict[str, At] = field(default_factory=dict)

    def read(self) -> StudySpec | None:
        """Return the study, None where any part is at fault (see the tree's problems)."""
        tree = self.tree
        for key in tree.value.keys() - set(KEYS):
            tree.report((key,), f"unknown key.{nearest(key, KEYS)} Known: {', '.join(KEYS)}.")
        engine = self._section(EngineSection, "engine")
        named = ArgumentReader(tree, self.ways)
        model, arguments = named.model(), named.fixed(engine)
        reader = SpaceReader(tree, ("space",), arguments, ways=self.ways)
        space = reader.read() if self._present("space") else None
        self.warnings += reader.warnings
        workload = self._workload()
        objectives = read_objectives(tree, ("objectives",), workload, self.warnings)
        constraints = read_constraints(tree, ("constraints",), workload, self.warnings)
        budget = self._budget()
        parts = {
            "name": self._name(),
            "strategy": self._section(StrategySection, "strategy"),
            "confirm": self._section(Confirm, "confirm"),
            "accuracy": self._section(AccuracySection, "accuracy"),
            "attribution": self._section(AttributionSection, "attribution"),
            "baselines": named.baselines(),
            "storage": self._storage(),
            "ray": self._section(RaySection, "ray"),
            "repeats": self._single("repeats", _count, 1),
            "early_end": self._single("early_end", flag, True),
            "hardware": read_hardware(tree),
            "price": self._section(Price, "price") if tree.get(("price",)) else None,
        }
        if tree.problems or engine is None or space is None or workload is None or budget is None:
            return None
        self._size(space.size_bound, budget)
        self._speculates(space, arguments)
        return StudySpec(
            base=EngineConfig(model, arguments, dict(engine.env)),
            engine=_engine(engine),
            space=space,
            workload_spec=workload,
            objectives=objectives,
            constraints=constraints,
            budget=budget,
            warnings=tuple(self.warnings),
            written=self._written(),
            **parts,
        )

    def _section(self, kind: type[T], key: str) -> T | None:
        """Return a section; one that is left out has its defaults."""
        if self.tree.get((key,)) is None:
            return kind()
        return parse(kind, self.tree, (key,))

    def _single(self, key: str, check: Any, default: Any) -> Any:
        value = self.tree.get((key,))
        if value is None:
            return default
        try:
            return check(value)
        except ValueError as error:
            self.tree.report((key,), str(error))
            return default

    def _present(self, key: str) -> bool:
        """Whether a required section is there; if not, it is noted, but for a file unread."""
        if self.tree.get((key,)) is None and key not in self.tree.unread:
            self.tree.report((key,), "is missing: give it inline, or name a file.")
        return key not in self.tree.unread and self.tree.get((key,)) is not None

    def _name(self) -> str:
        return str(self._single("name", _slug, re.sub(r"[^\w.-]+", "-", self.stem)))

    def _workload(self) -> WorkloadSpec | None:
        if not self._present("workload"):
            return None
        return read_workload(self.tree, ("workload",), self.stem)

    def _budget(self) -> Budget | None:
        budget = self._section(Budget, "budget")
        if budget is not None and all(value is None for value in asdict(budget).values()):
            self.tree.report(("budget",), "needs at least one of trials, minutes, gpu_hours.")
        return budget

    def _storage(self) -> str | None:
        url = self._single("storage", text, None)
        if url is None:
            return None
        parts = urlsplit(url)
        if not parts.scheme or "://" not in url:
            self.tree.report(
                ("storage",),
                f"{show(url)} is no storage URL: write sqlite:///study.db or "
                "postgresql+psycopg://host/database, or leave it out for a file of its own.",
            )
        elif parts.password:
            message = "holds a password, which is written to the study's folder: use ~/.pgpass."
            self.warnings.append(str(self.tree.problem(("storage",), message)))
        return str(url)

    def _size(self, points: int | None, budget: Budget) -> None:
        if points is not None and budget.trials is not None and budget.trials > points:
            message = f"{budget.trials} trials, but the space has {points} points at most."
            self.warnings.append(str(self.tree.problem(("budget", "trials"), message)))

    def _speculates(self, space: SearchSpace, arguments: Mapping[str, Json]) -> None:
        """Warn of guesses that random weights make come true."""
        if _SPECULATION in space.names and arguments.get("load_format") == "dummy":
            message = (
                "random weights (load_format: dummy) repeat themselves, so guesses come true far "
                "more often than a real model's: what is gained here is not real."
            )
            self.warnings.append(str(self.tree.problem(self.ways[_SPECULATION], message)))

    def _written(self) -> dict[str, tuple[str, str]]:
        problems = {name: self.tree.problem(at, "") for name, at in self.ways.items()}
        return {name: (problem.file, problem.field) for name, problem in problems.items()}


def _engine(section: EngineSection) -> EngineSpec:
    deadlines = Deadlines(**asdict(section.deadlines))
    return EngineSpec(section.kind, section.cpus, deadlines, dict(section.options))


def _slug(value: Json) -> str:
    name = text(value)
    if not _SLUG.fullmatch(name):
        raise ValueError(f"{show(name)} names a folder: use letters, digits, '.', '_', '-'.")
    return name


def _count(value: Json) -> int:
    number = whole(value)
    if number < 1:
        raise ValueError(f"needs a number of at least 1, found {number}.")
    return number
