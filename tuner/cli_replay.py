"""``tuner replay``: measure any OpenAI-compatible endpoint with a workload, as a trial would be."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from tuner.cli import NO_FRONT, err, out, print_json
from tuner.config import EngineConfig, Json
from tuner.errors import Problem, StudyError
from tuner.evaluate import OnPhase, evaluate
from tuner.job import MEASURES, Job, Workload
from tuner.metrics import CAPACITY, COUNTERS, DISTRIBUTIONS, SCALARS, STATISTICS
from tuner.records import Dominated, Faulted, Infeasible, Measured, Measurement, Outcome
from tuner.report_text import quantity, title
from tuner.study import load_workload

if TYPE_CHECKING:
    from tuner.engines.server import ServerLauncher

#: What is shown of the facts, where it is known.
_FACTS = (
    "served_model",
    "version",
    "device",
    "kv_cache_tokens",
    "token_times",
    "prefix_cache_reset",
    "vocab_size",
    "clients",
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is measured, as given on the command line."""

    url: str
    model: str = ""
    #: Token ids below this are sent. None: the model's vocabulary where its config.json is at
    #: hand, else 32,000. Too large a number can stop a server that does not check.
    vocab_size: int | None = None
    #: The environment variable that holds the API key.
    api_key_env: str = ""
    #: Processes that send.
    clients: int = 1

    def launcher(self) -> ServerLauncher:
        """Return what connects to it. Raises StudyError for an unset key or a bad URL."""
        from tuner.engines.http_wire import Target
        from tuner.engines.server import ServerLauncher

        Target.parse(self.url)
        headers = {}
        if self.api_key_env:
            key = os.environ.get(self.api_key_env)
            if not key:
                fault = f"the environment variable {self.api_key_env} is not set"
                raise StudyError(Problem("", "--api-key-env", fault))
            headers["Authorization"] = f"Bearer {key}"
        return ServerLauncher(
            url=self.url,
            model=self.model,
            vocab_size=self.vocab_size,
            headers=headers,
            clients=self.clients,
        )


def replay_command(
    workload: Path,
    endpoint: Endpoint,
    measure: str | None = None,
    out_dir: Path | None = None,
    as_json: bool = False,
) -> int:
    """Measure an endpoint with a workload file; return the exit code (1: no measurement).

    ``measure`` takes one instead of those of the file. ``out_dir`` keeps ``requests.parquet`` and
    ``measurement.json``. Raises StudyError for what is wrong with the input.
    """
    launcher = endpoint.launcher()
    wanted = _wanted(load_workload(workload).build(), measure)
    console = err if as_json else out
    with _folder(out_dir) as folder:
        job = Job(0, EngineConfig(endpoint.model or endpoint.url), wanted, str(folder))
        outcome = _evaluated(
            job, launcher, lambda phase: console.print(f"{phase} ...", style="dim")
        )
    if as_json:
        print_json(_json(outcome))
    else:
        _tell(outcome)
    return 0 if isinstance(outcome, Measured) else NO_FRONT


def _wanted(workload: Workload, measure: str | None) -> Workload:
    if measure is None:
        return workload
    if measure not in MEASURES:
        fault = f"expected one of {', '.join(MEASURES)}, found {measure!r}"
        raise StudyError(Problem("", "--measure", fault))
    return replace(workload, measures=(measure,))


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _evaluated(job: Job, launcher: ServerLauncher, on_phase: OnPhase) -> Outcome:
    from tuner.engines.http_loop import PreciseLoop

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        outcome, _ = runner.run(evaluate(job, launcher, on_phase))
    return outcome


def _json(outcome: Outcome) -> dict[str, Json]:
    return {"outcome": type(outcome).__name__.lower(), **asdict(outcome)}


def _tell(outcome: Outcome) -> None:
    match outcome:
        case Measured(measurement):
            _tell_facts(measurement.facts)
            for measure in MEASURES:
                if f"{measure}.requests" in measurement.counts:
                    out.print(_distributions(measure, measurement))
                    out.print(_scalars(measure, measurement))
            if any(metric.startswith("capacity.") for metric in measurement.values):
                out.print(_scalars("capacity", measurement))
            for reason in dict.fromkeys(measurement.absent.values()):
                out.print(f"no capacity: {reason}", style="yellow", markup=False, soft_wrap=True)
            for warning in measurement.warnings:
                out.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
        case Infeasible(reason, detail) | Faulted(reason, detail):
            err.print(f"{reason}: {detail}", style="red", markup=False, soft_wrap=True)
        case Dominated():
            raise AssertionError("a single measurement is never cut short")


def _tell_facts(facts: Mapping[str, Json]) -> None:
    for name in _FACTS:
        if facts.get(name) is not None:
            out.print(f"{name.replace('_', ' ')}: {facts[name]}", markup=False, soft_wrap=True)


def _distributions(measure: str, measurement: Measurement) -> Table:
    """Return a row per latency, and the send lateness always."""
    n, errors = (measurement.counts[f"{measure}.{what}"] for what in ("requests", "errors"))
    table = Table(title=f"{measure}: {n} requests, {errors} failed", title_justify="left")
    table.add_column("")
    for column in ("n", *STATISTICS):
        table.add_column(column, justify="right")
    for name in DISTRIBUTIONS:
        metric = f"{measure}.{name}"
        cells = [_cell(measurement, f"{metric}.{statistic}") for statistic in STATISTICS]
        count = measurement.counts.get(metric, 0)
        table.add_row(title(metric).partition(" (")[0], str(count), *cells)
    return table


def _scalars(measure: str, measurement: Measurement) -> Table:
    titled = measure if measure == "capacity" else None
    table = Table(title=titled, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name in dict.fromkeys((*SCALARS, *COUNTERS, *CAPACITY)):
        metric = f"{measure}.{name}"
        if metric in measurement.values:
            table.add_row(title(metric).partition(" (")[0], _cell(measurement, metric))
    return table


def _cell(measurement: Measurement, metric: str) -> str:
    value = measurement.values.get(metric)
    return "-" if value is None else quantity(value, metric)
