"""``tuner run``: run or resume a study and say what came out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.accuracy_study import accuracy_study, wanted
from tuner.again import confirm_study
from tuner.attribution_table import summary as summary_of
from tuner.cli import INTERRUPTED, NO_FRONT, err, out, print_json
from tuner.config import Json
from tuner.events import Observer
from tuner.explain import explain_study
from tuner.finish import Taken, write_all
from tuner.gain import gain
from tuner.objectives import Objective
from tuner.progress import Lines, LiveDisplay
from tuner.records import Dominated, Faulted, Infeasible, Measured
from tuner.report_failures import KINDS, failures
from tuner.report_table import front_table
from tuner.report_text import seconds
from tuner.results import StudyResults, load_results
from tuner.runner import run_study
from tuner.signals import interruptible
from tuner.study import load_study
from tuner.surroundings import Surroundings
from tuner.tune import StopRequest


def run_command(
    study: Path, out_dir: Path | None, overrides: Sequence[str], as_json: bool, command: str
) -> int:
    """Run a study file; return the exit code."""
    spec = load_study(study, overrides)
    folder = out_dir or Path("results") / spec.name
    console = err if as_json else out
    stop = StopRequest()
    with watching(spec.objectives, as_json) as observer:
        around = Surroundings(folder, [observer], stop)
        with interruptible(stop, console.print):
            run_study(spec, around)
            if wanted(spec) and not stop.requested:
                accuracy_study(spec, around)
            if spec.confirm.members and not stop.requested:
                confirm_study(spec, around)
            if spec.attribution.trials and not stop.requested:
                explain_study(spec, around)
    results = load_results(folder)
    taken = write_all(folder, command)
    if as_json:
        print_json(summary(results, taken))
    else:
        _tell(results, taken)
    if stop.requested:
        return INTERRUPTED
    return 0 if results.front else NO_FRONT


@contextlib.contextmanager
def watching(objectives: Sequence[Objective], as_json: bool) -> Iterator[Observer]:
    """Give a live display on a terminal, plain lines elsewhere (to stderr beside JSON)."""
    console = err if as_json else out
    if console.is_terminal:
        with LiveDisplay(console, objectives) as display:
            yield display
    else:
        yield Lines(console, objectives)


def summary(results: StudyResults, taken: Taken) -> dict[str, Json]:
    """Return what ``tuner run --json`` prints."""
    kinds = {"measured": Measured, "infeasible": Infeasible, "faulted": Faulted}
    costs = [record.cost for record in results.records]
    return {
        "trials": {
            name: sum(isinstance(r.outcome, kind) for r in results.records)
            for name, kind in {**kinds, "dominated": Dominated}.items()
        },
        "starts": sum(cost.start_s > 0 for cost in costs),
        "reconfigures": sum(cost.reconfigure_s > 0 for cost in costs),
        "seconds": {
            kind: sum(getattr(cost, f"{kind}_s") for cost in costs)
            for kind in ("start", "reconfigure", "replay", "other")
        },
        "saved": {
            "seconds": sum(cost.saved_s for cost in costs),
            "gpu_seconds": sum(cost.saved_gpu_s for cost in costs),
        },
        "gain": None if (found := gain(results.records)) is None else found.to_json(),
        "front": None if taken.front is None else str(taken.front),
        "presets": [str(path) for path in taken.presets],
        "report": str(taken.report),
    }


def _tell(results: StudyResults, taken: Taken) -> None:
    told = summary(results, taken)
    spent, trials = told["seconds"], told["trials"]
    presets = results.presets(results.provenance())
    if results.front:
        best, bounds = results.deployable, results.intervals
        out.print(front_table(best, results.objectives, results.baselines, presets, bounds))
        for line in verdicts(results):
            out.print(line, soft_wrap=True)
        for line in summary_of(results.attribution) if results.attribution else ():
            out.print(line, soft_wrap=True)
    else:
        out.print("no configuration gave a result", style="red")
    tell_failures(results)
    counted = ", ".join(f"{n} {name}" for name, n in trials.items() if n)
    shares = ", ".join(f"{kind} {seconds(s)}" for kind, s in spent.items() if s)
    out.print(f"trials    {counted}; {told['starts']} engine starts; {shares}")
    if saved := told["saved"]["seconds"]:
        gpu_s = told["saved"]["gpu_seconds"]
        of_gpus = f" ({seconds(gpu_s)} of GPUs)" if gpu_s else ""
        out.print(f"saved     at least {seconds(saved)} of replays{of_gpus}, by early ends")
    out.print(f"gain      {gain(results.records) or 'none: nothing was measured'}", soft_wrap=True)
    for path in taken.presets:
        out.print(f"preset    {short(path)}", soft_wrap=True)
    out.print(f"report    {short(taken.report)}", soft_wrap=True)
    out.print(f"dashboard tuner dashboard {short(results.folder)}", soft_wrap=True)


def verdicts(results: StudyResults) -> list[str]:
    """Return one line per confirmed member, baseline and objective: ratio, interval, verdict."""
    labels = {one.trial: one.config.label for one in results.confirmed if one.is_baseline}
    return [
        f"confirmed trial {one.trial} against {labels[found.baseline]}: {found.metric} "
        f"x {found.ratio.value:.3f} [{found.ratio.low:.3f}, {found.ratio.high:.3f}] "
        f"over {found.ratio.n} repeats: {found.verdict}"
        for one in results.confirmed
        if not one.is_baseline
        for found in one.comparisons
        if found.ratio is not None
    ]


def tell_failures(results: StudyResults) -> None:
    """Print what ended trials without a result, the most frequent first."""
    for failure in failures(results.records):
        if failure.kind in (KINDS[Infeasible], KINDS[Faulted]):
            text = f"{len(failure.trials)} x {failure.reason}: {failure.advice}"
            out.print(text, style="yellow", markup=False, soft_wrap=True)


def short(path: Path) -> str:
    """Return a path as people read it: relative where it lies below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
