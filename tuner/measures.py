"""What is measured on a ready engine: one function per measure, in a table.

A measure makes its replays, each on an engine without cached prefixes, and adds its values to what
the job has collected. It returns ``Dominated`` where a replay proved that the trial needs no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tuner import metrics
from tuner.bench import Bench, check_replay
from tuner.measures_capacity import measure_capacity
from tuner.records import Dominated
from tuner.replay import Plan, record_of
from tuner.stopping import Race, proofs
from tuner.trace import Request


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
    found = proofs(job.rivals, bench.shown(), plan.scored, job.workload.slo)
    if not found:
        return None
    race = Race(len(plan.scored), found)
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


#: A measure's name (``job.MEASURES``) and what measures it, for one repeat.
Measure = Callable[[Bench, int], Awaitable[Dominated | None]]
MEASURES: Mapping[str, Measure] = {
    "saturated": _saturated,
    "paced": _paced,
    "capacity": measure_capacity,
}
