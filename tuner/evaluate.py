"""One job becomes one outcome: launch, warm up, and for each measure reset, replay, measure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tuner import metrics
from tuner.config import Json
from tuner.engines import Engine, Launcher
from tuner.errors import ConfigRejected, EngineFault, MeasurementInvalid
from tuner.job import Job
from tuner.patience import Patience
from tuner.records import (
    Cost,
    Faulted,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    RequestRecord,
)
from tuner.replay import Plan, replay
from tuner.traces.tokens import TokenSource

#: A paced replay is invalid when its P99 send lateness exceeds this ...
LATENESS_LIMIT_S = 0.010
#: ... and this share of its median TTFT.
LATENESS_LIMIT_SHARE = 0.05

OnPhase = Callable[[str], None]


@dataclass(slots=True)
class _Spent:
    """Seconds by kind, on the event loop's clock."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def on(self, kind: str) -> Iterator[None]:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            yield
        finally:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + clock() - began

    def was(self, kind: str, really: str) -> None:
        """Book what was spent on ``kind`` on something else."""
        self.seconds[really] = self.seconds.pop(kind)


@dataclass(slots=True)
class _Collected:
    """What the replays of a job gave so far."""

    values: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    records: list[tuple[str, int, RequestRecord]] = field(default_factory=list)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(float(value))


async def evaluate(job: Job, launcher: Launcher, on_phase: OnPhase) -> tuple[Outcome, Cost]:
    """Run a job to its outcome. Never raises for what goes wrong in the trial itself.

    Leaves ``engine.log``, ``requests.parquet`` and ``measurement.json`` in the job's directory.
    """
    spent = _Spent()
    began = asyncio.get_running_loop().time()
    outcome: Outcome
    try:
        outcome = Measured(await _measurement(job, launcher, on_phase, spent))
    except ConfigRejected as rejected:
        outcome = Infeasible(rejected.reason, rejected.detail)
    except EngineFault as fault:
        outcome = Faulted(fault.reason, fault.detail, isinstance(fault, MeasurementInvalid))
    except Exception:  # a bug of ours or a new kind of failure: kept whole, the study goes on
        outcome = Faulted("unknown", traceback.format_exc())
    total = asyncio.get_running_loop().time() - began
    other = max(total - sum(spent.seconds.values()), 0.0)
    seconds = {"start_s": 0.0, "reconfigure_s": 0.0, "replay_s": 0.0, **spent.seconds}
    return outcome, Cost(**seconds, other_s=other)  # type: ignore[arg-type]


async def _measurement(
    job: Job, launcher: Launcher, on_phase: OnPhase, spent: _Spent
) -> Measurement:
    directory = Path(job.directory)
    directory.mkdir(parents=True, exist_ok=True)
    collected = _Collected()
    on_phase("starting engine")
    async with contextlib.AsyncExitStack() as stack:
        with spent.on("start_s"):
            launched = _launched(job, launcher, str(directory / "engine.log"))
            engine = await stack.enter_async_context(launched)
        if engine.facts.get("live", {}).get("reused"):
            spent.was("start_s", "reconfigure_s")
        _fits(job, engine.facts)
        prompts = _prompts(job, engine, "measured")
        on_phase("warm-up")
        await _warm_up(job, engine)
        for repeat in range(job.repeats):
            for measure in job.workload.measures:
                on_phase(measure)
                with spent.on("replay_s"):
                    await _replay_once(job, engine, prompts, (measure, repeat), collected)
        facts = {
            **engine.facts,
            "workload": job.workload.name,
            "workload_digest": job.workload.digest,
            "trace_digest": job.workload.trace.digest,
            "prompts": prompts.recipe,
        }
        on_phase("stopping engine")
    measurement = Measurement(
        {name: statistics.median(values) for name, values in collected.values.items()},
        collected.counts,
        facts,
        tuple(collected.warnings),
    )
    _write(directory, measurement, collected.records)
    return measurement


@contextlib.asynccontextmanager
async def _launched(job: Job, launcher: Launcher, log: str) -> AsyncIterator[Engine]:
    """Launch with the start deadline, which does not hold for the body."""
    async with contextlib.AsyncExitStack() as stack:
        patience = Patience(job.deadlines, Path(log))
        try:
            async with patience.while_it_works():
                engine = await stack.enter_async_context(launcher.launch(job.config, log))
        except TimeoutError:
            raise EngineFault("launch_timeout", patience.spent()) from None
        yield engine


def _fits(job: Job, facts: Mapping[str, Json]) -> None:
    longest = job.workload.longest_tokens
    limit = facts.get("effective", {}).get("max_model_len")
    if isinstance(limit, int) and longest > limit:
        raise ConfigRejected(
            "model_too_long",
            f"the workload's longest request needs {longest} tokens, max_model_len is {limit}",
        )


def _prompts(job: Job, engine: Engine, scope: str) -> TokenSource:
    workload = job.workload
    vocabulary = int(engine.facts["vocab_size"])
    return TokenSource(workload.trace.digest, vocabulary, workload.seed, scope=scope)


async def _warm_up(job: Job, engine: Engine) -> None:
    """Replay the first requests at once, with prompts that no measured request shares."""
    rows = range(min(job.workload.warmup_requests, len(job.workload.trace)))
    plan = Plan([job.workload.trace[row] for row in rows], paced=False, partly_open=False)
    await replay(engine, plan, _prompts(job, engine, "warmup").prompt, job.deadlines)


async def _replay_once(
    job: Job,
    engine: Engine,
    prompts: TokenSource,
    which: tuple[str, int],
    collected: _Collected,
) -> None:
    measure, repeat = which
    workload = job.workload
    plan = Plan(
        list(workload.trace),
        paced=measure == "paced",
        partly_open=workload.sessions == "partly-open",
        lead_in_s=workload.lead_in_s,
    )
    await engine.reset()
    records = await replay(engine, plan, prompts.prompt, job.deadlines)
    values, counts, warnings = metrics.measure(measure, records, workload.slo)
    counters = {f"{measure}.{name}": n for name, n in (await engine.counters()).items()}
    collected.records += [(measure, repeat, record) for record in records]
    _valid(measure, values, records)
    collected.add({**values, **{n: v for n, v in counters.items() if n in metrics.NAMES}})
    collected.counts.update(counts)
    collected.warnings.update(dict.fromkeys(warnings))


def _valid(measure: str, values: Mapping[str, float], records: Sequence[RequestRecord]) -> None:
    """Raise where the replay says nothing about the engine."""
    if not any(record.ok for record in records):
        first = next((record.error for record in records if record.error), "short answers only")
        raise EngineFault("too_many_errors", f"no request of {len(records)} succeeded: {first}")
    if measure != "paced":
        return
    late = values.get("paced.lateness.p99", 0.0)
    allowed = max(LATENESS_LIMIT_S, LATENESS_LIMIT_SHARE * values.get("paced.ttft.p50", 0.0))
    if late > allowed:
        raise MeasurementInvalid(
            "client_late",
            f"P99 send lateness {late * 1e3:.1f} ms exceeds {allowed * 1e3:.1f} ms: "
            "the client was too busy to keep the schedule",
        )


def _write(
    directory: Path, measurement: Measurement, records: Sequence[tuple[str, int, RequestRecord]]
) -> None:
    text = json.dumps(asdict(measurement), indent=1, default=str)
    (directory / "measurement.json").write_text(text + "\n")
    rows = [{"measure": m, "repeat": n, **asdict(record)} for m, n, record in records]
    pq.write_table(pa.Table.from_pylist(rows), directory / "requests.parquet")
