"""The measure ``capacity``: replays at ever closer time scales, and what their answer says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner import metrics
from tuner.bench import Bench, lateness
from tuner.capacity import Capacity, Probe, Search
from tuner.records import RequestRecord
from tuner.stopping import Verdict

#: The capacity is not sought below this time scale.
LOWEST_SCALE = 1 / 16
#: Where it is sought first, as a share of what the engine gave when all was offered at once.
FIRST_SHARE = 0.7
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
        scored = [request for request in plan.requests if request.arrival_s >= plan.lead_in_s]
        records, verdict = await bench.replayed("capacity", plan, lambda: Verdict.on(scored, slo))
        replays[scale] = records
        n, sides = len(scored), tuple(percentile.side() for percentile in verdict.watched)
        return Probe(scale, n, slo.allowed_misses(n), verdict.met, verdict.missed, sides)

    highest = max(trace.span_s / _longest_bound_s(bench), LOWEST_SCALE)
    search = Search(probe, LOWEST_SCALE, highest)
    answer = await search.run(_first_scale(bench))
    _report(bench, answer, replays)
    scale = answer.failed_at if answer.best is None else answer.best.scale
    if scale is not None:
        kept = replays[scale]
        found.records += [("capacity", repeat, record) for record in kept]


def _longest_bound_s(bench: Bench) -> float:
    """Return the longest bound on a latency: a shorter span of arrivals shows no steady rate."""
    return bench.job.workload.slo.longest("ttft", "e2e") or 1.0


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
    elif max(times) - min(times) < STEADY * _longest_bound_s(bench):
        text = f"arrivals lasted {max(times) - min(times):.3g} s only at that rate"
        found.warnings[f"capacity: {text}: too short for a queue to grow; take a longer window"] = (
            None
        )


def _late_client(bench: Bench, records: Sequence[RequestRecord]) -> str:
    sent = [record for record in records if record.sent_s is not None]
    late = lateness("capacity", metrics.measure("capacity", sent, bench.job.workload.slo)[0])
    return f"capacity: the limit may be the client's: {late}" if late else ""
