"""A ready engine and what one job measures on it: replays, whether they count, what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tuner import metrics, uncertainty
from tuner.engines import Engine
from tuner.engines.compilations import compiled_since, size_of
from tuner.errors import EngineFault, MeasurementInvalid
from tuner.job import Job
from tuner.records import RequestRecord
from tuner.replay import CUT_OFF, Judge, Plan
from tuner.replay_clients import replay_shared
from tuner.trace import Request
from tuner.traces.tokens import TokenSource

#: A paced replay is invalid when its P99 send lateness exceeds this ...
LATENESS_LIMIT_S = 0.010
#: ... and this share of its median TTFT.
LATENESS_LIMIT_SHARE = 0.05

J = TypeVar("J", bound=Judge | None)
Range = tuple[float, float]


@dataclass(slots=True)
class Collected:
    """What the replays of a job gave so far."""

    values: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    intervals: dict[str, Range] = field(default_factory=dict)
    #: Metrics without a value, and why.
    absent: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    records: list[tuple[str, int, RequestRecord]] = field(default_factory=list)
    #: Seconds that replays had still to go, at least, when they were stopped.
    saved_s: float = 0.0

    def add(self, values: Mapping[str, float]) -> None:
        """Take in the values of one replay."""
        for name, value in values.items():
            self.values.setdefault(name, []).append(float(value))


@dataclass(slots=True)
class Bench:
    """A ready engine, the job that it serves, and the log that takes the engine's output."""

    job: Job
    engine: Engine
    prompts: TokenSource
    log: Path
    found: Collected = field(default_factory=Collected)

    def plan(self, paced: bool = True, scale: float = 1.0) -> Plan:
        """Return what a replay sends, the roots' arrivals ``scale`` times as fast."""
        workload = self.job.workload
        open_loop = workload.sessions != "partly-open"
        requests = list(workload.trace)
        return Plan(
            requests if scale == 1.0 else list(_faster(requests, scale, open_loop)),
            paced=paced,
            partly_open=not open_loop,
            lead_in_s=workload.lead_in_s / scale,
        )

    async def replayed(
        self, name: str, plan: Plan, judging: Callable[[], J]
    ) -> tuple[list[RequestRecord], J]:
        """Replay a plan without cached prefixes; return the records and what judged them.

        A replay during which a kernel was compiled is void and made again, once: the kernel is
        warm then. Raises MeasurementInvalid("kernel_compiled") where that did not help.
        """
        kernels: list[str] = []
        for _ in range(2):
            judge = judging()
            await self.engine.reset()
            since = size_of(self.log)
            records = await replay_shared(
                self.engine, plan, self.prompts.prompt, self.job.deadlines, judge
            )
            kernels = compiled_since(self.log, since)
            if not kernels:
                return records, judge
            self.found.warnings[f"{name}: a replay was void, it compiled {', '.join(kernels)}"] = (
                None
            )
        raise MeasurementInvalid(
            "kernel_compiled", f"{name}: compiled {', '.join(kernels)} during a second replay too"
        )

    async def take(self, name: str, repeat: int, records: Sequence[RequestRecord]) -> None:
        """Add what a whole replay gave. Raises where it says nothing about the engine."""
        slo = self.job.workload.slo
        values, counts, warnings = metrics.measure(name, records, slo)
        counters = {f"{name}.{key}": n for key, n in (await self.engine.counters()).items()}
        self.found.records += [(name, repeat, record) for record in records]
        check_replay(name, values, records)
        self.found.add({**values, **{n: v for n, v in counters.items() if n in metrics.NAMES}})
        self.found.counts.update(counts)
        self.found.intervals.update(uncertainty.within_replay(name, records, slo))
        cut_off = sum(record.error.startswith(CUT_OFF) for record in records)
        if cut_off:
            limit_s = self.job.deadlines.replay_s
            text = f"ended at its deadline of {limit_s:g} s, {cut_off} requests unanswered"
            warnings.append(f"{name}: {text}")
        self.found.warnings.update(dict.fromkeys(warnings))

    def shown(self) -> dict[str, float]:
        """Return the latest value of each metric."""
        return {name: values[-1] for name, values in self.found.values.items()}


def check_replay(name: str, values: Mapping[str, float], records: Sequence[RequestRecord]) -> None:
    """Raise where a replay says nothing about the engine: no success, or a client that was late."""
    if not any(record.ok for record in records):
        first = next((record.error for record in records if record.error), "short answers only")
        raise EngineFault("too_many_errors", f"no request of {len(records)} succeeded: {first}")
    late = lateness(name, values)
    if name == "paced" and late:
        raise MeasurementInvalid("client_late", late)


def lateness(name: str, values: Mapping[str, float]) -> str:
    """Return in words how the client was too late, '' where it was not."""
    late = values.get(f"{name}.lateness.p99", 0.0)
    allowed = max(LATENESS_LIMIT_S, LATENESS_LIMIT_SHARE * values.get(f"{name}.ttft.p50", 0.0))
    if late <= allowed:
        return ""
    return (
        f"P99 send lateness {late * 1e3:.1f} ms exceeds {allowed * 1e3:.1f} ms: "
        "the client was too busy to keep the schedule"
    )


def _faster(requests: Sequence[Request], scale: float, open_loop: bool) -> Iterator[Request]:
    """Give requests whose roots arrive ``scale`` times as fast; children keep their distance.

    In an open loop every request is a root: recorded times are all there is.
    """
    moved_s: dict[int, float] = {}
    for request in requests:
        parents = [] if open_loop else [moved_s[p] for p in request.parents if p in moved_s]
        moved_s[request.id] = parents[0] if parents else request.arrival_s * (1 - 1 / scale)
        yield replace(request, arrival_s=request.arrival_s - moved_s[request.id])
