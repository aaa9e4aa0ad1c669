"""The parts of study and workload files: each a frozen value, checked by pydantic as it is read.

``parse`` never raises: it notes every fault with its place, in our words.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar, Union

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from tuner import study_values as values
from tuner.job import MEASURES, REPLAYS, Deadlines
from tuner.yaml_file import At, Tree, nearest

T = TypeVar("T")

_STRICT = ConfigDict(extra="forbid")
_DEADLINES = Deadlines()

Text = Annotated[str, BeforeValidator(values.text)]
Flag = Annotated[bool, BeforeValidator(values.flag)]
Real = Annotated[float, BeforeValidator(values.real)]
Free = Annotated[Any, BeforeValidator(values.argument)]
Given = Annotated[Any, BeforeValidator(values.given)]
Count = Annotated[int, BeforeValidator(values.bounded(values.whole, at_least=1))]
Natural = Annotated[int, BeforeValidator(values.bounded(values.whole, at_least=0))]
Positive = Annotated[float, BeforeValidator(values.bounded(values.real, above=0))]
Seconds = Annotated[float, BeforeValidator(values.bounded(values.real, at_least=0))]
Share = Annotated[float, BeforeValidator(values.bounded(values.real, at_least=0, at_most=1))]
Part = Annotated[float, BeforeValidator(values.bounded(values.real, at_least=0, at_most=0.9))]

KINDS = ("vllm", "server", "simulated")
SAMPLERS = ("tpe", "random", "qmc", "gp", "nsga2", "grid")


def _words(*words: str) -> Any:
    return Annotated[str, BeforeValidator(values.one_of(*words))]


@dataclass(frozen=True, slots=True)
class Budget:
    """When a study ends: at the first of these. None: without that limit."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    trials: Count | None = None
    minutes: Positive | None = None
    gpu_hours: Positive | None = None


@dataclass(frozen=True, slots=True)
class StrategySection:
    """What proposes configurations."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Annotated[str, BeforeValidator(values.strategy)] = values.STRATEGY
    sampler: _words(*SAMPLERS) = "tpe"  # type: ignore[valid-type]
    seed: Natural = 0


@dataclass(frozen=True, slots=True)
class Confirm:
    """How the front is confirmed: how many members (0: none), each measured how often, on what.

    ``engine``: "server" is ``vllm serve``, what people deploy; "vllm" the engine of the search.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    members: Natural = 5
    repeats: Count = 3
    engine: _words("server", "vllm") = "server"  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class AttributionSection:
    """Runs that say which knobs the gain comes from (0: none), and of which preset.

    ``preset``: None takes the balanced one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    trials: Natural = 0
    preset: Text | None = None


@dataclass(frozen=True, slots=True)
class RaySection:
    """Where actors run. ``slots``: engines at once; ``gpus``: logical GPUs. None: what is there."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    address: Text | None = None
    slots: Count | None = None
    gpus: Natural | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one GPU costs; ``currency`` is only shown."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    gpu_hour: Positive
    currency: Text = "USD"


@dataclass(frozen=True, slots=True)
class DeadlinesSection:
    """Seconds after which we stop waiting; see ``job.Deadlines``."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    start_s: Positive = _DEADLINES.start_s
    request_s: Positive = _DEADLINES.request_s
    replay_s: Positive = _DEADLINES.replay_s
    stall_s: Positive = _DEADLINES.stall_s
    trial_s: Positive = _DEADLINES.trial_s


@dataclass(frozen=True, slots=True)
class EngineSection:
    """What runs a configuration. ``cpus``: cores per engine; ``options``: for its adapter."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    kind: _words(*KINDS) = "vllm"  # type: ignore[valid-type]
    args: dict[str, Given] = field(default_factory=dict)
    env: dict[str, Annotated[str, BeforeValidator(values.environment_value)]] = field(
        default_factory=dict
    )
    cpus: Positive | None = None
    deadlines: DeadlinesSection = field(default_factory=DeadlinesSection)
    options: dict[str, Free] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectiveSection:
    """One metric and its direction."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    metric: Text
    direction: _words("maximize", "minimize")  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class ConstraintSection:
    """A bound on one metric, in its base unit; ``_ms`` for a metric in seconds."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    metric: Text
    max: Real | None = None
    min: Real | None = None
    max_ms: Real | None = None
    min_ms: Real | None = None


@dataclass(frozen=True, slots=True)
class TraceSection:
    """A trace file. ``fetch`` says where to get it, for when it is missing."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    path: Text
    format: Text | None = None
    options: dict[str, Free] = field(default_factory=dict)
    fetch: Text | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A slice of the trace. ``lead_in_s`` before it is sent, but not scored."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    duration_s: Positive
    start_s: Seconds = 0.0
    lead_in_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Latency bounds of one class of requests, in milliseconds."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    itl_ms: Positive | None = None
    e2e_ms: Positive | None = None

    def seconds(self) -> dict[str, float]:
        """Return the bounds that are set: metric -> seconds."""
        names = ("ttft", "tpot", "itl", "e2e")
        found = {name: getattr(self, f"{name}_ms") for name in names}
        return {name: ms / 1000 for name, ms in found.items() if ms is not None}


@dataclass(frozen=True, slots=True)
class SloSection(Bounds):
    """Bounds of the default class and of others; ``attainment``: the share that must meet them."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    attainment: Share = 0.99
    classes: dict[str, Bounds] = field(default_factory=dict)
    p50: Bounds | None = None
    p90: Bounds | None = None
    p99: Bounds | None = None

    def percentiles(self) -> dict[str, dict[str, float]]:
        """Return the bounds on percentiles over all requests: name -> metric -> seconds."""
        found = {name: getattr(self, name) for name in ("p50", "p90", "p99")}
        return {name: bounds.seconds() for name, bounds in found.items() if bounds is not None}


@dataclass(frozen=True, slots=True)
class Warmup:
    """Requests sent before the first replay of a trial and discarded, with short answers."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    requests: Natural = 32


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """A workload file. ``held_out``: the share of the trace, at its end, kept for confirmation."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text | None = None
    trace: TraceSection | None = None
    synthetic: dict[str, Free] | None = None
    window: Window | None = None
    transforms: tuple[dict[str, Free], ...] = ()
    measures: tuple[_words(*MEASURES), ...] = REPLAYS  # type: ignore[valid-type]
    slo: SloSection = field(default_factory=SloSection)
    warmup: Warmup = field(default_factory=Warmup)
    held_out: Part = 0.0
    sessions: _words("partly-open", "open") = "partly-open"  # type: ignore[valid-type]
    seed: Natural = 0


#: Building one takes a hundred times as long as using it.
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(section: type[T]) -> TypeAdapter[T]:
    if section not in _ADAPTERS:
        _ADAPTERS[section] = TypeAdapter(section)
    return _ADAPTERS[section]


def parse(section: type[T], tree: Tree, at: At) -> T | None:
    """Return the value at ``at`` as a section, None after noting every fault of it."""
    try:
        parsed = _adapter(section).validate_python(tree.get(at))
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            loc = tuple(step for step in fault["loc"] if step != "[key]")
            tree.report(at + loc, _message(section, fault, loc))
        return None
    return parsed


def _message(section: type, fault: Any, loc: At) -> str:
    found = values.show(fault["input"])
    match fault["type"]:
        case "value_error":
            return str(fault["ctx"]["error"])
        case "missing":
            return "is missing."
        case "unexpected_keyword_argument":
            known = keys_of(_section_at(section, loc[:-1]))
            return f"unknown key.{nearest(str(loc[-1]), known)} Known: {', '.join(known)}."
        case "dataclass_type" | "dict_type" | "mapping_type":
            return f"needs a mapping (key: value), found {found}."
        case "list_type" | "tuple_type":
            return f"needs a list, found {found}."
    return f"is not understood, found {found}."


def keys_of(section: Any) -> list[str]:
    """Return the keys that a section knows."""
    return [item.name for item in dataclasses.fields(section)]


def _section_at(section: Any, loc: At) -> Any:
    """Follow the types from a section along ``loc`` to the section there."""
    for step in loc:
        section = _section_in(section)
        if dataclasses.is_dataclass(section):
            section = typing.get_type_hints(section)[str(step)]
        else:
            section = typing.get_args(section)[-1 if typing.get_origin(section) is dict else 0]
    return _section_in(section)


def _section_in(kind: Any) -> Any:
    """Take ``X`` out of ``X | None``."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return next(arg for arg in typing.get_args(kind) if arg is not type(None))
    return kind
