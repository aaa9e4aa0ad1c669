"""One job becomes one outcome: launch, warm up, and for each measure reset, replay, measure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tuner.bench import Bench, Collected
from tuner.config import Json
from tuner.engines import Engine, Launcher
from tuner.errors import ConfigRejected, EngineFault, MeasurementInvalid
from tuner.job import Job
from tuner.measures import MEASURES
from tuner.patience import Patience
from tuner.records import (
    Cost,
    Dominated,
    Faulted,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    RequestRecord,
)
from tuner.replay import Plan, replay
from tuner.traces.tokens import TokenSource
from tuner.uncertainty import over_replays

OnPhase = Callable[[str], None]

#: Tokens after which an answer of the warm-up ends: every further step would repeat the last one,
#: and the longest answer of a trace takes as long as a replay.
WARM_UP_TOKENS = 32


@dataclass(slots=True)
class _Spent:
    """Seconds by kind, on the event loop's clock."""

    seconds: dict[str, float] = field(default_factory=dict)
    #: What the trial's replays had still to go, at least, when they were stopped.
    saved_s: float = 0.0

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


async def evaluate(job: Job, launcher: Launcher, on_phase: OnPhase) -> tuple[Outcome, Cost]:
    """Run a job to its outcome. Never raises for what goes wrong in the trial itself.

    Leaves in the job's directory ``engine.log``, ``requests.parquet`` once there is a whole replay,
    and ``measurement.json`` where it was measured.
    """
    spent = _Spent()
    began = asyncio.get_running_loop().time()
    phases = _Phases(on_phase)
    outcome: Outcome
    try:
        async with _within(job.deadlines.trial_s, phases):
            outcome = await _outcome(job, launcher, phases, spent)
    except ConfigRejected as rejected:
        outcome = Infeasible(rejected.reason, rejected.detail)
    except EngineFault as fault:
        outcome = Faulted(fault.reason, fault.detail, isinstance(fault, MeasurementInvalid))
    except Exception:  # a bug of ours or a new kind of failure: kept whole, the study goes on
        outcome = Faulted("unknown", traceback.format_exc())
    total = asyncio.get_running_loop().time() - began
    other = max(total - sum(spent.seconds.values()), 0.0)
    seconds = {"start_s": 0.0, "reconfigure_s": 0.0, "replay_s": 0.0, **spent.seconds}
    return outcome, Cost(**seconds, other_s=other, saved_s=spent.saved_s)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Phases:
    """Passes on what a job does now, and remembers it."""

    tell: OnPhase
    now: str = ""

    def __call__(self, phase: str) -> None:
        self.now = phase
        self.tell(phase)


@contextlib.asynccontextmanager
async def _within(limit_s: float, phases: _Phases) -> AsyncIterator[None]:
    """Run the body until the trial's deadline. Raises EngineFault("trial_deadline") after it."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        detail = f"not measured within {limit_s:g} s; it was at: {phases.now}"
        raise EngineFault("trial_deadline", detail) from None


async def _outcome(job: Job, launcher: Launcher, phases: _Phases, spent: _Spent) -> Outcome:
    directory = Path(job.directory)
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "engine.log"
    phases("starting engine")
    async with contextlib.AsyncExitStack() as stack:
        with spent.on("start_s"):
            engine = await stack.enter_async_context(_launched(job, launcher, str(log)))
        live = engine.facts.get("live", {})
        if live.get("reused"):
            spent.was("start_s", "reconfigure_s")
        _fits(job, engine.facts)
        bench = Bench(job, engine, _prompts(job, engine, "measured"), Path(live.get("log", log)))
        phases("warm-up")
        await _warm_up(job, engine)
        try:
            dominated = await _measured(bench, phases, spent)
        finally:  # what broke is looked for in them, too
            _write_requests(directory, bench.found.records)
        spent.saved_s = bench.found.saved_s
        facts = {
            **engine.facts,
            "workload": job.workload.name,
            "workload_digest": job.workload.digest,
            "trace_digest": job.workload.trace.digest,
            "prompts": bench.prompts.recipe,
        }
        phases("stopping engine")
    if dominated is not None:
        return dominated
    measurement = _measurement(bench.found, facts)
    text = json.dumps(asdict(measurement), indent=1, default=str)
    (directory / "measurement.json").write_text(text + "\n")
    return Measured(measurement)


async def _measured(bench: Bench, phases: _Phases, spent: _Spent) -> Dominated | None:
    """Make every measure of the job, ``repeats`` times, or stop where that is proven needless."""
    for repeat in range(bench.job.repeats):
        for name in bench.job.workload.measures:
            phases(name)
            with spent.on("replay_s"):
                dominated = await MEASURES[name](bench, repeat)
            if dominated is not None:
                return dominated
    return None


def _measurement(found: Collected, facts: Mapping[str, Json]) -> Measurement:
    """Return the medians over repeats, with intervals over them, or within the only replay."""
    return Measurement(
        {name: statistics.median(values) for name, values in found.values.items()},
        found.counts,
        facts,
        tuple(found.warnings),
        {**found.intervals, **over_replays(found.values)},
        {name: why for name, why in found.absent.items() if name not in found.values},
    )


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
    """Replay the first requests at once, cut short; no measured request shares a prompt."""
    trace = job.workload.trace
    asked = [trace[row] for row in range(min(job.workload.warmup_requests, len(trace)))]
    short = [replace(r, output_tokens=min(r.output_tokens, WARM_UP_TOKENS)) for r in asked]
    plan = Plan(short, paced=False, partly_open=False)
    await replay(engine, plan, _prompts(job, engine, "warmup").prompt, job.deadlines)


def _write_requests(directory: Path, records: Sequence[tuple[str, int, RequestRecord]]) -> None:
    rows = [{"measure": m, "repeat": n, **asdict(record)} for m, n, record in records]
    if rows:
        pq.write_table(pa.Table.from_pylist(rows), directory / "requests.parquet")
