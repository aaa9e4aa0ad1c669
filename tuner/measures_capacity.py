"""The measure ``capacity``: replays at ever closer time scales, and what their answer says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from tuner import metrics
from tuner.bench import Bench, lateness
from tuner.capacity import FINE, STEP, Capacity, Probe, Search
from tuner.config import EngineConfig
from tuner.job import Near
from tuner.records import Measured, RequestRecord, TrialRecord
from tuner.stopping import Verdict

#: The capacity is not sought below this time scale.
LOWEST_SCALE = 1 / 16
#: Where it is sought first, as a share of what the engine gave when all was offered at once.
FIRST_SHARE = 0.7
#: Near what other configurations gave, the second scale is this factor from the first.
STEP_FROM_OTHERS = FINE**4
#: Unless it is so many times the rate that was served when all was offered at once.
FAR = 2.0
#: Its multiples fill the interval from 0 to 1 evenly, however many there are.
GOLDEN = (math.sqrt(5) - 1) / 2
#: The metric that says where.
SCALE = "capacity.rate_scale"
#: Arrivals that last less than this many times the longest latency allowed show no steady state.
STEADY = 10.0


async def measure_capacity(bench: Bench, repeat: int) -> None:
    """Search for the largest time scale at which the SLO holds: see ``tuner.capacity``.

    Roots arrive faster or slower; think times inside of sessions stay as they are.
    """
    trace, slo, found = bench.job.workload.trace, bench.job.workload.slo, bench.found
    if trace.span_s <= 0 or not slo.bounded:
        why = "the SLO has no bounds" if trace.span_s > 0 else "all requests arrive at once"
        found.absent |= {f"capacity.{name}": why for name in metrics.CAPACITY}
        return
    replays: dict[float, list[RequestRecord]] = {}

    async def probe(scale: float) -> Probe:
        plan = bench.plan(scale=scale)
        scored = plan.scored
        records, verdict = await bench.replayed("capacity", plan, lambda: Verdict.on(scored, slo))
        replays[scale] = records
        n, sides = len(scored), tuple(percentile.side() for percentile in verdict.watched)
        return Probe(scale, n, slo.allowed_misses(n), verdict.met, verdict.missed, sides)

    highest = max(trace.span_s / _longest_bound_s(bench), LOWEST_SCALE)
    start, step = _beginning(bench)
    answer = await Search(probe, LOWEST_SCALE, highest, step=step).run(start)
    _report(bench, answer, replays)
    scale = answer.failed_at if answer.best is None else answer.best.scale
    if scale is not None:
        kept = replays[scale]
        found.records += [("capacity", repeat, record) for record in kept]


def near(records: Iterable[TrialRecord], config: EngineConfig) -> Near | None:
    """Return where trials of one workload found the capacity: this configuration's, else others'.

    None where none has one.
    """
    mine: list[float] = []
    others: list[float] = []
    for record in records:
        if isinstance(record.outcome, Measured):
            scale = record.outcome.measurement.values.get(SCALE)
            if scale is not None:
                (mine if record.config.key == config.key else others).append(scale)
    return Near(statistics.median(mine or others), len(mine)) if mine or others else None


def _longest_bound_s(bench: Bench) -> float:
    """Return the longest bound on a latency: a shorter span of arrivals shows no steady rate."""
    return bench.job.workload.slo.longest("ttft", "e2e") or 1.0


def _beginning(bench: Bench) -> tuple[float, float]:
    """Return the first scale, and the first step: the smaller, the more is known.

    Near an earlier answer of this configuration three replays find it again, and hold it twice.
    They begin within RATIO above it, elsewhere each time: from one place all would give one of the
    same few scales, and repeats would seem to agree better than a search can tell. What others
    gave is no guide far above the rate that this one served: a short trace may hold at any rate.
    """
    found = _known(bench)
    if found is not None and found.times:
        return found.scale * FINE ** (found.times * GOLDEN % 1), FINE
    served = bench.shown().get("saturated.requests_per_s")
    rate = bench.job.workload.trace.rate_per_s
    most = served / rate if served and rate else None
    if found is not None and (most is None or found.scale <= FAR * most):
        return found.scale, STEP_FROM_OTHERS
    return (1.0 if most is None else FIRST_SHARE * most), STEP


def _known(bench: Bench) -> Near | None:
    """Return what repeats of this job found, else what the job was told."""
    told, mine = bench.job.near, bench.found.values.get(SCALE, [])
    earlier = told.times if told is not None else 0
    return Near(statistics.median(mine), earlier + len(mine)) if mine else told


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
    elif max(times) - min(times) < STEADY * _longest_bound_s(bench):
        text = f"arrivals lasted {max(times) - min(times):.3g} s only at that rate"
        found.warnings[f"capacity: {text}: too short for a queue to grow; take a longer window"] = (
            None
        )


def _late_client(bench: Bench, records: Sequence[RequestRecord]) -> str:
    sent = [record for record in records if record.sent_s is not None]
    late = lateness("capacity", metrics.measure("capacity", sent, bench.job.workload.slo)[0])
    return f"capacity: the limit may be the client's: {late}" if late else ""
