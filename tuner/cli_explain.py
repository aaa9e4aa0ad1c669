"""``tuner explain``: which knobs a preset's gain comes from, measured beside the study."""

from __future__ import annotations

from pathlib import Path

from tuner.attribution_table import summary, table
from tuner.cli import INTERRUPTED, NO_FRONT, err, out, print_json
from tuner.cli_run import watching
from tuner.explain import explain_study
from tuner.finish import write_all
from tuner.results import load_results
from tuner.signals import interruptible
from tuner.study import load_study
from tuner.surroundings import Surroundings
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
