"""A study file, checked to the last key, as one frozen value: what to tune, on what, for how long.

``load_study`` is the only way in. It reads the study file and the files that it names, notes every
fault of all of them, and raises one StudyError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.config import EngineConfig, Json
from tuner.errors import StudyError
from tuner.job import Deadlines, Workload
from tuner.knobs import Point, SearchSpace
from tuner.objectives import Constraint, Objective
from tuner.study_accuracy import AccuracySection
from tuner.study_files import gather
from tuner.study_hardware import Hardware
from tuner.study_sections import (
    AttributionSection,
    Budget,
    Confirm,
    Price,
    RaySection,
    StrategySection,
)
from tuner.study_workload import WorkloadSpec, read_workload


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What runs a configuration: "vllm", "server" or "simulated"."""

    kind: str = "vllm"
    #: CPU cores that an actor asks for; None leaves it to the pool.
    cpus: float | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    #: Settings of the engine's adapter (simulated: the fields of SimulatedCosts).
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A configuration to beat: arguments on top of ``StudySpec.base``, without the space's own.

    vLLM's defaults and its performance modes are baselines of every study and not listed.
    """

    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StudySpec:
    """A checked study. Two specs are equal where their files mean the same.

    ``base`` has the arguments that hold for every trial and baseline (``model`` and
    ``engine.args``); ``space.fixed`` has these and the space's own, so that rules see them all.
    """

    name: str
    base: EngineConfig
    engine: EngineSpec
    space: SearchSpace
    workload_spec: WorkloadSpec
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()
    budget: Budget = field(default_factory=Budget)
    strategy: StrategySection = field(default_factory=StrategySection)
    confirm: Confirm = field(default_factory=Confirm)
    accuracy: AccuracySection = field(default_factory=AccuracySection)
    attribution: AttributionSection = field(default_factory=AttributionSection)
    baselines: tuple[Baseline, ...] = ()
    #: An Optuna storage URL; None: a file in the study's folder.
    storage: str | None = None
    ray: RaySection = field(default_factory=RaySection)
    #: Replays of each measure in a trial.
    repeats: int = 1
    #: Whether a trial that is proven off the front is stopped.
    early_end: bool = True
    hardware: Hardware | None = None
    price: Price | None = None
    #: What is allowed but hardly meant, each as ``file: field: message``.
    warnings: tuple[str, ...] = field(default=(), compare=False)
    #: Argument name -> (file, field) where it is written, for problems found later.
    written: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)

    def config(self, point: Point) -> EngineConfig:
        """Return the configuration of a point of the space."""
        return self.base.with_args(self.space.arguments(point))

    def workload(self) -> Workload:
        """Return the workload to tune on; the first call reads the trace. Raises StudyError."""
        return self.workload_spec.build()

    def held_out(self) -> Workload | None:
        """Return the held-out part of the workload, None where none is kept."""
        return self.workload_spec.held_out()

    def resolved(self) -> str:
        """Return a study file that means the same, with everything inline and paths absolute."""
        from tuner.study_text import resolved

        return resolved(self)

    def definition(self) -> dict[str, Json]:
        """Return what must not change when a study is resumed. Reads the trace."""
        from tuner.study_text import definition

        return definition(self)


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a study file. ``overrides``: ``path=value`` with a dotted path into it, YAML values.

    Relative paths start from the file that they stand in, those of overrides from the working
    directory. Raises StudyError with every problem of every file.
    """
    from tuner.study_reader import StudyReader

    tree = gather(Path(path), overrides)
    if tree.problems and not tree.value:
        raise StudyError(tree.problems)
    spec = StudyReader(tree, Path(path).stem).read()
    if tree.problems or spec is None:
        raise StudyError(dict.fromkeys(tree.problems))
    return spec


def load_workload(path: str | Path, overrides: Sequence[str] = ()) -> WorkloadSpec:
    """Read a workload file by itself. Raises StudyError with every problem."""
    tree = gather(Path(path), overrides)
    spec = read_workload(tree, (), Path(path).stem) if tree.value else None
    if tree.problems or spec is None:
        raise StudyError(tree.problems)
    return spec
