"""What a trial leaves behind: request records, a measurement, an outcome, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.config import EngineConfig, Json


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One replayed request. All times are seconds on one clock; 0 is the start of the replay."""

    id: int
    slo_class: str
    prompt_tokens: int
    #: Tokens asked for; the engine's own count of what it answered is ``answered_tokens``.
    output_tokens: int
    scheduled_s: float
    #: When the request was handed over, None if it never was.
    sent_s: float | None
    #: One time per output token, in order. Tokens that arrive together share a time.
    token_s: tuple[float, ...] = ()
    answered_tokens: int = 0
    #: Prompt tokens that the engine took from its prefix cache; None where it does not say.
    cached_tokens: int | None = None
    #: Why the request did not succeed, '' if it did.
    error: str = ""
    #: False for a lead-in request: sent, but not scored.
    scored: bool = True

    @property
    def ok(self) -> bool:
        """Whether the engine answered in full, with as many tokens as were asked for."""
        return not self.error and self.answered_tokens >= self.output_tokens > 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Named results of a trial in base units: ``paced.ttft.p99`` in seconds, shares in 0..1.

    A value that could not be had is absent: never 0, inf or NaN. ``counts`` says from how many
    samples a value comes; ``facts`` says what the engine really ran with.
    """

    values: Mapping[str, float]
    counts: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    #: 95 % intervals of the main values: Student's t over repeats, else bootstrap over requests.
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: Values that were asked for and could not be had, and why, where that is known.
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """The trial was measured."""

    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Infeasible:
    """This configuration can never run here: taught to the sampler, never retried."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Faulted:
    """The run broke, the configuration may be fine: retried, never taught.

    ``engine_ok``: we measured badly; the engine may serve the next trial.
    """

    reason: str
    detail: str = ""
    engine_ok: bool = field(default=False, compare=False)
    #: False where no engine may start in this slot any more: something of before is still there.
    slot_ok: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class Dominated:
    """Stopped early with a proof: ``bound`` holds values that the trial can at best reach."""

    bound: Mapping[str, float]
    detail: str = ""


Outcome = Measured | Infeasible | Faulted | Dominated


@dataclass(frozen=True, slots=True)
class Cost:
    """Where the seconds of a trial went, and how many GPUs it held meanwhile."""

    start_s: float = 0.0
    reconfigure_s: float = 0.0
    replay_s: float = 0.0
    other_s: float = 0.0
    gpus: int = 0
    #: What early ends saved, at least: the scheduled rest of replays that were stopped.
    saved_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Wall seconds of the trial."""
        return self.start_s + self.reconfigure_s + self.replay_s + self.other_s

    @property
    def gpu_s(self) -> float:
        """GPU seconds of the trial; 0 on the CPU engine."""
        return self.total_s * self.gpus

    @property
    def saved_gpu_s(self) -> float:
        """GPU seconds that an early end saved, at least; 0 on the CPU engine."""
        return self.saved_s * self.gpus


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a study, as stored."""

    number: int
    config: EngineConfig
    #: The knobs' values, by knob name; inactive knobs are absent.
    point: Mapping[str, Json]
    outcome: Outcome
    #: Objective values in the study's order, None unless measured.
    scores: tuple[float, ...] | None = None
    #: One number per constraint, feasible where <= 0.
    violations: tuple[float, ...] = ()
    cost: Cost = field(default_factory=Cost)
    #: Seconds since the epoch at which it was begun and ended; None where the storage has no times.
    span_s: tuple[float, float] | None = field(default=None, compare=False)

    @property
    def feasible(self) -> bool:
        """Whether it was measured and meets every constraint."""
        return self.scores is not None and all(v <= 0 for v in self.violations)
