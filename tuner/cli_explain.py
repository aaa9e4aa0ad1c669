"""``tuner explain``: which knobs a preset's gain comes from, measured beside the study."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from tuner.attribution import Attribution, Effect, Ratio
from tuner.cli import INTERRUPTED, NO_FRONT, err, out, print_json
from tuner.cli_run import watching
from tuner.explain import explain_study
from tuner.finish import write_all
from tuner.results import load_results
from tuner.runner import Surroundings
from tuner.signals import interruptible
from tuner.study import load_study
from tuner.tune import StopRequest

#: Runs where neither the study nor the user says how many.
TRIALS = 12


def explain_command(folder: Path, trials: int | None, preset: str | None, as_json: bool) -> int:
    """Explain a study's preset, or go on with it; return the exit code."""
    load_results(folder)  # says what is wrong with a folder that holds no results
    stored = load_study(folder / "study.yaml").attribution
    wanted = [f"attribution.trials={trials or stored.trials or TRIALS}"]
    wanted += [f"attribution.preset={preset}"] if preset else []
    spec = load_study(folder / "study.yaml", wanted)
    stop = StopRequest()
    console = err if as_json else out
    with watching(spec.objectives, as_json) as observer, interruptible(stop, console.print):
        ended = explain_study(spec, Surroundings(folder, [observer], stop))
    found = load_results(folder).attribution
    write_all(folder, f"tuner explain {folder}")
    if as_json:
        print_json(None if found is None else found.to_json())
    elif found is None:
        out.print(ended)
    else:
        out.print(table(found))
        for line in summary(found):
            out.print(line, soft_wrap=True)
    if stop.requested:
        return INTERRUPTED
    return NO_FRONT if found is None else 0


def table(found: Attribution) -> Table:
    """Return one row per knob: what it is, what it is set back to, what that does."""
    rows = [effect for effect in found.effects if effect.ratios]
    metrics = list(rows[0].ratios) if rows else []
    told = Table(title=f"{found.preset} (trial {found.trial}), one knob at a time set back")
    for name in ("knob", "value", "set back to", *metrics, ""):
        told.add_column(name, overflow="fold")
    for effect in found.effects:
        one = effect.changed
        default = "left out" if one.default is None else str(one.default)
        ratios = [_ratio(effect, metric) for metric in metrics]
        told.add_row(one.knob, str(one.value), default, *ratios, effect.why or effect.standing)
    return told


def _ratio(effect: Effect, metric: str) -> str:
    ratio: Ratio | None = effect.ratios.get(metric)
    if ratio is None:
        return ""
    text = f"x {ratio.value:.3f}"
    return text if ratio.low is None else f"{text} [{ratio.low:.3f}, {ratio.high:.3f}]"


def summary(found: Attribution) -> list[str]:
    """Return the sentences under the table: what matters, what may go, over how many runs."""
    runs = "once" if found.repeats == 1 else f"{found.repeats} times"
    return [
        f"matters   {', '.join(found.matters) or 'no knob alone, beyond the noise'}",
        f"may go    {', '.join([*found.may_go, *found.same]) or 'none'}",
        f"each configuration measured {runs}; ratios are set back / {found.preset}",
    ]
