"""From a workload file to a Workload: its trace read or made, cut, transformed, and split."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.config import Json, canonical
from tuner.errors import Problem, StudyError, TraceError
from tuner.job import Slo, Workload
from tuner.study_sections import WorkloadSection, keys_of, parse
from tuner.study_text import as_json
from tuner.trace import Trace
from tuner.yaml_file import At, Tree

_OUT_OF_ORDER = "leaves no request"


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A checked workload file. Building the workload reads the trace, once per process."""

    name: str
    section: WorkloadSection
    #: The file that it was read from, for messages.
    file: str = field(default="", compare=False)

    def build(self) -> Workload:
        """Return the workload to tune on. Raises StudyError with file and field."""
        return build_workload(self)

    def held_out(self) -> Workload | None:
        """Return the held-out part to confirm on, None where the file keeps none."""
        return None if self.section.held_out == 0 else _workload(self, _parts(self)[1])

    def to_json(self) -> dict[str, Json]:
        """Return what a workload file would say."""
        return {"name": self.name, **as_json(self.section)}


def read_workload(tree: Tree, at: At, default_name: str) -> WorkloadSpec | None:
    """Return the workload at ``at``; None after noting every fault."""
    section = parse(WorkloadSection, tree, at)
    if section is None:
        return None
    before = len(tree.problems)
    if (section.trace is None) == (section.synthetic is None):
        found = "neither" if section.trace is None else "both"
        tree.report(at, f"needs exactly one of trace, synthetic; found {found}.")
    if not section.measures or len(set(section.measures)) < len(section.measures):
        tree.report((*at, "measures"), "needs at least one measure, each named once.")
    if "capacity" in section.measures and not _bounded(section):
        message = "capacity asks how much load an slo bears: set slo (ttft_ms, p99.itl_ms, ...)."
        tree.report((*at, "measures"), message)
    _check_percentiles(section, tree, at)
    section = _with_path(section, tree, at)
    _check_synthetic(section, tree, at)
    _check_steps(section, tree, (*at, "transforms"))
    if len(tree.problems) > before:
        return None
    name = section.name or default_name
    return WorkloadSpec(name, replace(section, name=None), tree.place((*at, "measures")).file)


def _bounded(section: WorkloadSection) -> bool:
    slo = section.slo
    return bool(slo.percentiles()) or any(b.seconds() for b in (slo, *slo.classes.values()))


def _check_percentiles(section: WorkloadSection, tree: Tree, at: At) -> None:
    for name, bounds in section.slo.percentiles().items():
        if not bounds:
            message = "bounds nothing: needs ttft_ms, tpot_ms, itl_ms or e2e_ms."
            tree.report((*at, "slo", name), message)


def _with_path(section: WorkloadSection, tree: Tree, at: At) -> WorkloadSection:
    """Return the section with an absolute trace path; a missing file is noted.

    A folder may stand for a file where the trace's format is one of folders.
    """
    if section.trace is None:
        return section
    way = (*at, "trace", "path")
    path = tree.place(way).base / section.trace.path
    if fault := _path_fault(path, section.trace.format):
        fetch = f" Get it from {section.trace.fetch}" if section.trace.fetch else ""
        tree.report(way, f"{os.path.normpath(path)}: {fault}.{fetch}")
    return replace(section, trace=replace(section.trace, path=os.path.abspath(path)))


def _path_fault(path: Path, format: str | None) -> str:
    """Return why no trace of this format can be at ``path``, "" where one can."""
    from tuner.traces import FOLDERS
    from tuner.traces.source import Source

    if not path.is_dir():
        return "" if path.is_file() else "there is no such file"
    if format not in (None, *FOLDERS):
        return f"is a directory, but format {format} is read from one file"
    return "" if Source(path).files() else "is a directory without any .json file"


def _check_synthetic(section: WorkloadSection, tree: Tree, at: At) -> None:
    from tuner.traces import synthetic

    if section.synthetic is None:
        return
    try:
        synthetic.generate({**section.synthetic, "requests": 1})
    except TraceError as error:
        for problem in error.problems:
            *_, key = problem.field.split(".")
            inside = (key,) if key in section.synthetic else ()
            tree.report((*at, "synthetic", *inside), problem.message)
    except (ValueError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        tree.report((*at, "synthetic"), f"cannot be made: {error}.")


def _check_steps(section: WorkloadSection, tree: Tree, at: At) -> None:
    """Try each step on a trace of two requests: unknown names and bad values show at once."""
    from tuner.traces import transforms

    probe = Trace.build([0, 1_000_000], [64, 64], [8, 8], name="probe")
    for n, step in enumerate(section.transforms):
        try:
            transforms.apply(probe, [step])
        except TraceError as error:
            for problem in error.problems:
                if problem.message != _OUT_OF_ORDER:
                    name = problem.field.partition(".")[2]
                    inside = (name,) if name in step else ()
                    tree.report((*at, n, *inside), problem.message)


def build_workload(spec: WorkloadSpec, base_dir: Path | None = None) -> Workload:
    """Read the trace and return the workload. A relative path starts from ``base_dir``."""
    if base_dir is not None and spec.section.trace is not None:
        path = str(base_dir / spec.section.trace.path)
        trace = replace(spec.section.trace, path=path)
        spec = replace(spec, section=replace(spec.section, trace=trace))
    return _workload(spec, _parts(spec)[0])


def workload_warnings(workload: Workload) -> list[str]:
    """Return what to know before a workload is believed: how far an open replay of sessions is off.

    Turns whose think time or parent's end is unknown are not in the shares.
    """
    from tuner.traces.groups import share_too_early

    parents = workload.trace.parents
    if workload.sessions != "open" or parents is None or not len(parents.values):
        return []
    early = {slowdown: share_too_early(workload.trace, slowdown) for slowdown in (1, 2, 4)}
    known = [f"{share:.0%} at {k}x" for k, share in early.items() if share is not None]
    shares = ", ".join(known) or "how many is unknown"
    return [
        f"{workload.name}: sessions: open sends turns at their recorded times, even before the "
        f"turn that they follow has ended. Sent too early, by how many times as long as recorded "
        f"a request takes: {shares}. sessions: partly-open waits."
    ]


def _workload(spec: WorkloadSpec, trace: Trace) -> Workload:
    section = spec.section
    bounds = {"default": section.slo.seconds()} if section.slo.seconds() else {}
    bounds |= {name: inner.seconds() for name, inner in section.slo.classes.items()}
    return Workload(
        name=spec.name,
        trace=trace,
        measures=tuple(section.measures),
        slo=Slo(bounds, section.slo.attainment, section.slo.percentiles()),
        warmup_requests=section.warmup.requests,
        lead_in_s=trace.lead_in_us / 1e6,
        sessions=section.sessions,
        seed=section.seed,
    )


def _parts(spec: WorkloadSpec) -> tuple[Trace, Trace]:
    """Return the trace to tune on and the held-out one (the same where none is held out)."""
    keys = ("trace", "synthetic", "window", "transforms", "held_out")
    recipe = {key: value for key, value in spec.to_json().items() if key in keys}
    stamp = 0 if spec.section.trace is None else _changed_ns(Path(spec.section.trace.path))
    try:
        return _built(canonical({"name": spec.name, **recipe}), stamp)
    except TraceError as error:
        raise StudyError(_placed(error.problems, spec.file), error.hint) from error


def _changed_ns(path: Path) -> int:
    """Return when a file or anything in a folder last changed, 0 for what is not there."""
    from tuner.traces.source import Source

    if not path.exists():
        return 0
    return max(file.stat().st_mtime_ns for file in (path, *Source(path).files()))


def _placed(problems: Sequence[Problem], file: str) -> list[Problem]:
    """Say in which workload file a step or a synthetic trace is at fault."""
    ours = ("transforms", "synthetic", *keys_of(WorkloadSection))
    return [
        replace(problem, file=file) if problem.field.startswith(ours) else problem
        for problem in problems
    ]


@functools.lru_cache(maxsize=4)
def _built(recipe: str, stamp: int) -> tuple[Trace, Trace]:
    from tuner.traces import read, synthetic, transforms

    given = json.loads(recipe)
    if "synthetic" in given:
        trace = synthetic.generate(given["synthetic"])
    else:
        source = given["trace"]
        trace = read(Path(source["path"]), source.get("format"), **source.get("options", {}))
    window = given.get("window")
    first = [{"window": window}] if window else []
    trace = replace(trace, name=given["name"])
    trace = transforms.apply(trace, [*first, *given.get("transforms", [])])
    share = given.get("held_out", 0)
    if not share:
        return trace, trace
    lead_in_s = trace.lead_in_us / 1e6
    parts = transforms.hold_out(trace, share, lead_in_s)
    for part in parts:
        if not len(part):
            raise TraceError(Problem("", "held_out", f"{share} leaves a part without requests."))
    return parts
