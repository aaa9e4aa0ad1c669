"""What is measured on a ready engine: one function per measure, in a table.

A measure makes its replays, each on an engine without cached prefixes, and adds its values to what
the job has collected. It returns ``Dominated`` where a replay proved that the trial needs no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tuner import metrics, uncertainty
from tuner.capacity import Capacity, Probe, Search
from tuner.engines import Engine
from tuner.engines.compilations import compiled_since, size_of
from tuner.errors import EngineFault, MeasurementInvalid
from tuner.job import Job
from tuner.records import Dominated, RequestRecord
from tuner.replay import Judge, Plan, record_of, replay
from tuner.stopping import Race, Verdict, proofs
from tuner.trace import Request
from tuner.traces.tokens import TokenSource

#: A paced replay is invalid when its P99 send lateness exceeds this ...
LATENESS_LIMIT_S = 0.010
#: ... and this share of its median TTFT.
LATENESS_LIMIT_SHARE = 0.05
#: The capacity is not sought below this time scale.
LOWEST_SCALE = 1 / 16
#: Where it is sought first, as a share of what the engine gave when all was offered at once.
FIRST_SHARE = 0.7

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
            records = await replay(
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
        self.found.warnings.update(dict.fromkeys(warnings))

    def shown(self) -> dict[str, float]:
        """Return the latest value of each metric."""
        return {name: values[-1] for name, values in self.found.values.items()}


def check_replay(name: str, values: Mapping[str, float], records: Sequence[RequestRecord]) -> None:
    """Raise where a replay says nothing about the engine: no success, or a client that was late."""
    if not any(record.ok for record in records):
        first = next((record.error for record in records if record.error), "short answers only")
        raise EngineFault("too_many_errors", f"no request of {len(records)} succeeded: {first}")
    late = _lateness(name, values)
    if name == "paced" and late:
        raise MeasurementInvalid("client_late", late)


def _lateness(name: str, values: Mapping[str, float]) -> str:
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


async def _saturated(bench: Bench, repeat: int) -> None:
    plan = bench.plan(paced=False)
    records, _ = await bench.replayed("saturated", plan, lambda: None)
    await bench.take("saturated", repeat, records)


async def _paced(bench: Bench, repeat: int) -> Dominated | None:
    plan = bench.plan()
    records, race = await bench.replayed("paced", plan, lambda: _race(bench, plan))
    if race is None or race.look is None:
        await bench.take("paced", repeat, records)
        return None
    await bench.engine.reset()  # waits until it has let go of what was cut off
    sent = [record for record in records if record.sent_s is not None]
    bench.found.records += [("paced", repeat, record) for record in sent]
    check_replay("paced", metrics.measure("paced", sent, bench.job.workload.slo)[0], sent)
    bench.found.saved_s += max(_last_root_s(plan) - race.look.now_s, 0.0)
    return Dominated(race.bound, race.detail)


def _race(bench: Bench, plan: Plan) -> Race | None:
    """Return the judge of a paced replay, None where all is to be measured.

    The medians of several repeats are not known before the last of them, so nothing is proven then.
    """
    job = bench.job
    if job.rivals is None or job.repeats > 1:
        return None
    scored = sum(request.arrival_s >= plan.lead_in_s for request in plan.requests)
    found = proofs(job.rivals, bench.shown(), scored, job.workload.slo)
    if not found:
        return None
    race = Race(scored, found)
    for request in plan.requests:
        if _is_root(request, plan) and request.arrival_s >= job.deadlines.replay_s:
            race.take(record_of(request, plan, request.arrival_s, error="deadline: never sent"))
    return race


def _is_root(request: Request, plan: Plan) -> bool:
    return not (plan.partly_open and request.parents)


def _last_root_s(plan: Plan) -> float:
    """Return when the last request leaves that waits for no other: no replay is shorter."""
    roots = (request.arrival_s for request in plan.requests if _is_root(request, plan))
    return max(roots, default=0.0)


async def _capacity(bench: Bench, repeat: int) -> None:
    trace, slo, found = bench.job.workload.trace, bench.job.workload.slo, bench.found
    if trace.span_s <= 0 or not any(slo.bounds.values()):
        why = "the SLO has no bounds" if trace.span_s > 0 else "all requests arrive at once"
        found.absent |= {f"capacity.{name}": why for name in metrics.CAPACITY}
        return
    replays: dict[float, list[RequestRecord]] = {}

    async def probe(scale: float) -> Probe:
        plan = bench.plan(scale=scale)
        scored = sum(request.arrival_s >= plan.lead_in_s for request in plan.requests)
        records, verdict = await bench.replayed("capacity", plan, lambda: Verdict(scored, slo))
        replays[scale] = records
        return Probe(scale, scored, slo.allowed_misses(scored), verdict.met, verdict.missed)

    highest = max(trace.span_s / _horizon_s(bench), LOWEST_SCALE)
    search = Search(probe, LOWEST_SCALE, highest)
    answer = await search.run(_first_scale(bench))
    _report(bench, answer, replays)
    if answer.best is not None:
        kept = replays[answer.best.scale]
        found.records += [("capacity", repeat, record) for record in kept]


def _horizon_s(bench: Bench) -> float:
    """Return the longest bound on a latency: a shorter span of arrivals shows no steady rate."""
    bounds = bench.job.workload.slo.bounds.values()
    longest = [b[name] for b in bounds for name in ("ttft", "e2e") if name in b]
    return max(longest, default=1.0)


def _first_scale(bench: Bench) -> float:
    served, recorded = bench.shown().get("saturated.requests_per_s"), bench.job.workload.trace
    rate = recorded.rate_per_s
    return FIRST_SHARE * served / rate if served and rate else 1.0


def _report(
    bench: Bench, answer: Capacity, replays: Mapping[float, Sequence[RequestRecord]]
) -> None:
    """Add the values of a search, and what to know about them."""
    found, best = bench.found, answer.best
    found.counts["capacity.probes"] = answer.probes
    found.add({"capacity.probes": answer.probes})
    if answer.failed_at is not None:
        late = _late_client(bench, replays[answer.failed_at])
        found.warnings.update({late: None} if late else {})
    if best is None:
        why = f"even at {answer.failed_at:g} of the recorded rate the SLO does not hold"
        found.absent |= {f"capacity.{name}": why for name in metrics.CAPACITY if name != "probes"}
        return
    times = [r.scheduled_s for r in replays[best.scale] if r.scored]
    values = {"rate_scale": best.scale, "attainment": best.attainment}
    if max(times) > min(times):
        values["requests_per_s"] = (len(times) - 1) / (max(times) - min(times))
    found.add({f"capacity.{name}": value for name, value in values.items()})
    found.counts["capacity.attainment"] = best.requests
    if answer.failed_at is None:
        text = (
            f"the SLO holds at {best.scale:.3g} times the recorded rate, where the trace is short"
        )
        found.warnings[f"capacity: {text}: it may hold beyond; take a longer window"] = None
    elif not answer.settled:
        text = f"not settled after {answer.probes} replays, which contradict each other"
        found.warnings[f"capacity: {text}"] = None


def _late_client(bench: Bench, records: Sequence[RequestRecord]) -> str:
    sent = [record for record in records if record.sent_s is not None]
    late = _lateness("capacity", metrics.measure("capacity", sent, bench.job.workload.slo)[0])
    return f"capacity: the limit may be the client's: {late}" if late else ""


#: A measure's name (``job.MEASURES``) and what measures it, for one repeat.
Measure = Callable[[Bench, int], Awaitable[Dominated | None]]
MEASURES: Mapping[str, Measure] = {
    "saturated": _saturated,
    "paced": _paced,
    "capacity": _capacity,
}
