"""``tuner check``: a study looked at without starting an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from tuner.cli import BAD_INPUT, out, print_json
from tuner.cli_check_memory import tell_memory
from tuner.preview import Preview, preview, values_text
from tuner.report_text import seconds
from tuner.study import StudySpec, load_study


def check_command(study: Path, overrides: Sequence[str], as_json: bool) -> int:
    """Check a study file; return the exit code: 2 where nothing of it can ever start."""
    spec = load_study(study, overrides)
    found = preview(spec, Path("results") / spec.name)
    if as_json:
        print_json(found.to_json(spec))
    else:
        _tell(spec, found)
    return BAD_INPUT if found.feasible_share == 0 else 0


def _tell(spec: StudySpec, found: Preview) -> None:
    for warning in found.warnings(spec):
        out.print(warning, style="yellow", markup=False, soft_wrap=True)
    table = Table("knob", "change", "values", "only when", box=None, padding=(0, 2, 0, 0))
    for knob in spec.space.knobs:
        when = ", ".join(f"{n} in {list(v)}" for n, v in knob.when.items())
        warmth = found.temperatures.get(knob.name, "")
        table.add_row(knob.name, warmth, values_text(knob), when)
    out.print(table)
    out.print(
        "hot: changed on the live engine; warm: a start from cache; cold: a start that compiles"
    )
    if found.checked_for:
        out.print(f"checked    for {found.checked_for}, which this machine does not have")
    out.print(f"points     {found.points or 'too many to list'}", markup=False)
    share = found.feasible_share or 0.0
    out.print(f"can start  {share:.0%} of {found.looked_at} looked at")
    for why in found.reasons:
        line = f"           {why.share:.0%} never ({why.count}): {why.reason}: {why.detail}"
        out.print(line, markup=False, soft_wrap=True)
    for suggestion in found.suggestions:
        out.print(f"narrow     {suggestion}", markup=False, soft_wrap=True)
    tell_memory(found)
    for known in found.known_good:
        out.print(f"first      {known.label}", markup=False)
    trace = found.workload.trace
    out.print(f"workload   {found.workload.name}: {len(trace)} requests in {trace.span_s:.1f} s")
    out.print(f"cost       {_cost(found)}", soft_wrap=True)


def _cost(found: Preview) -> str:
    trials, each = found.cost["trials"], found.cost["seconds_per_trial"]
    budget = f"{trials} trials" if trials else "no limit on trials"
    if each is None:
        least = seconds(found.cost["paced_replay_s"])
        return f"{budget}; a paced replay takes {least}, an engine start is not known yet"
    return f"{budget} of {seconds(each)} each, as recorded: {seconds(found.cost['seconds'])}"
