"""What a pool is given to do: measure one configuration with one workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from tuner.config import EngineConfig, digest
from tuner.objectives import Constraint, Objective
from tuner.trace import Trace

#: Measures that are one replay each, and those that a workload asks for unless it says otherwise.
REPLAYS = ("saturated", "paced")
#: The measures that a workload can ask for.
MEASURES = (*REPLAYS, "capacity")
Sessions = Literal["partly-open", "open"]


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency bounds in seconds, by SLO class and metric: ``{"default": {"ttft": 0.5}}``.

    Metrics: ttft, tpot, itl (the request's largest gap), e2e. ``attainment`` is the share of
    requests that must meet every bound. ``percentiles`` bound what is reported of a whole replay,
    all classes together: ``{"p99": {"itl": 0.025}}``; only the capacity looks at these.
    """

    bounds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    attainment: float = 0.99
    percentiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, slo_class: str) -> Mapping[str, float]:
        """Return the bounds of a class; a class without its own has those of "default"."""
        return self.bounds.get(slo_class, self.bounds.get("default", {}))

    @property
    def bounded(self) -> bool:
        """Whether anything is bounded at all."""
        return any(self.bounds.values()) or any(self.percentiles.values())

    def longest(self, *metrics: str) -> float | None:
        """Return the longest bound on any of these metrics, None where none is bounded."""
        every = [*self.bounds.values(), *self.percentiles.values()]
        return max((b[name] for b in every for name in metrics if name in b), default=None)

    def allowed_misses(self, requests: int) -> int:
        """Return how many of so many requests may miss a bound."""
        return math.floor(requests * (1 - self.attainment) + 1e-9)


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace, as it is to be replayed, and what is measured on it."""

    name: str
    trace: Trace
    measures: tuple[str, ...] = REPLAYS
    slo: Slo = field(default_factory=Slo)
    #: Requests of the discarded warm-up before a trial's replays; their prompts are disjoint.
    warmup_requests: int = 32
    #: Requests that arrive before this time are sent but not scored (cold caches).
    lead_in_s: float = 0.0
    #: "partly-open": children of a session wait for their parents; "open": recorded times only.
    sessions: Sessions = "partly-open"
    #: Key of the generated prompt tokens, with the trace's digest.
    seed: int = 0

    @property
    def digest(self) -> str:
        """16 hex digits over all that decides what is sent, when, and how it is scored."""
        return digest(
            [
                self.trace.digest,
                list(self.measures),
                {name: dict(bounds) for name, bounds in self.slo.bounds.items()},
                self.slo.attainment,
                self.warmup_requests,
                self.lead_in_s,
                self.sessions,
                self.seed,
                # Last, and only where there are any: other workloads keep the digest that they had.
                *({name: dict(bounds)} for name, bounds in self.slo.percentiles.items()),
            ]
        )

    @property
    def longest_tokens(self) -> int:
        """Most tokens (prompt + output) that one request needs; 0 for an empty trace."""
        totals = self.trace.prompt_tokens.astype("int64") + self.trace.output_tokens
        return int(totals.max(initial=0))


#: An engine that is still at work at its start deadline may take this many times as long.
START_STRETCH = 2.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds after which we stop waiting. Each ends with a reason of its own."""

    #: From the launch of an engine to its first token: ``launch_timeout``. Put off while the
    #: engine's log grows (it compiles, tunes kernels, loads), up to ``start_at_most_s``.
    start_s: float = 900.0
    #: One request, from sending to its last token: the request counts as failed.
    request_s: float = 600.0
    #: One replay: requests still open then count as failed.
    replay_s: float = 3600.0
    #: No token from any request for this long while some are open: ``stalled``.
    stall_s: float = 120.0
    #: One trial, from the launch of its engine to its last value: ``trial_deadline``.
    trial_s: float = 10_800.0

    @property
    def start_at_most_s(self) -> float:
        """Longest start of an engine that never stops to show progress."""
        return self.start_s * START_STRETCH

    def to_json(self) -> dict[str, float]:
        """Return a plain mapping."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rivals:
    """What a trial must beat to be of use: the goals of its study, and the front found so far."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()
    #: Scores of measured trials that meet every constraint, in the objectives' order.
    front: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Near:
    """Where the capacity was found before: only where to look first."""

    #: Time scale of the same workload; of several answers their median.
    scale: float
    #: How many of them were of this configuration; 0: all were of others.
    times: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """Measure ``config`` with ``workload``; leave logs and records in ``directory``."""

    number: int
    config: EngineConfig
    workload: Workload
    directory: str
    deadlines: Deadlines = field(default_factory=Deadlines)
    #: Replays of each measure.
    repeats: int = 1
    #: A trial that is proven off the front is stopped. None: measure all, whatever it shows.
    rivals: Rivals | None = None
    #: None: nothing is known of the capacity.
    near: Near | None = None
