"""``tuner compare``: two configurations measured in turns, and a verdict per metric."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tuner.cli import INTERRUPTED, NO_FRONT, err, out, print_json
from tuner.cli_run import short, watching
from tuner.compare import Compared, Question, Row, compare
from tuner.compare_files import to_json, write
from tuner.errors import Problem, StudyError
from tuner.report_text import differences, number, quantity, settings_text, title
from tuner.results import load_results
from tuner.signals import interruptible
from tuner.study_sections import KINDS
from tuner.surroundings import Surroundings
from tuner.tune import StopRequest

_VERDICTS = {
    "better": Text("B is better", "green"),
    "worse": Text("B is worse", "red"),
    "not shown": Text("no difference shown"),
}


def compare_command(question: Question, as_json: bool) -> int:
    """Answer a question; return the exit code (1: no metric could be compared)."""
    if question.engine is not None and question.engine not in KINDS:
        what = f"expected one of {', '.join(KINDS)}, found {question.engine!r}"
        raise StudyError(Problem("", "--engine", what))
    console = err if as_json else out
    stop = StopRequest()
    objectives = load_results(question.folder).objectives
    with watching(objectives, as_json) as observer, interruptible(stop, console.print):
        compared = compare(question, Surroundings(question.folder, [observer], stop))
    files = write(compared)
    if as_json:
        print_json(to_json(compared))
    else:
        _tell(compared)
        for file in files:
            out.print(f"written   {short(file)}", soft_wrap=True)
    if stop.requested:
        return INTERRUPTED
    return 0 if compared.decided else NO_FRONT


def _tell(compared: Compared) -> None:
    a, b = compared.sides
    for letter, side, twin, other in (("A", a, "B", b), ("B", b, "A", a)):
        apart = differences(side.config, other.config)
        what = settings_text(apart) if apart else f"the same configuration as {twin}"
        out.print(f"{letter} {side.name}: {what}", markup=False, soft_wrap=True)
    out.print(table(compared))
    for note in compared.notes:
        out.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    if not compared.decided:
        out.print("no metric was measured twice on both sides: nothing to compare", style="red")


def table(compared: Compared) -> Table:
    """Return one row per metric: both means, ratio with interval, verdict, repeats needed."""
    rounds = max((len(row.a) for row in compared.rows), default=0)
    share = f"{compared.question.difference * 100:g} %"
    caption = (
        f"{rounds} rounds on engine {compared.kind}; 95 % intervals, of which one in twenty misses."
    )
    shown = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    shown.add_column("metric")
    for column in (f"A {compared.sides[0].slug}", f"B {compared.sides[1].slug}", "B / A"):
        shown.add_column(column, justify="right")
    shown.add_column("verdict")
    shown.add_column(f"repeats to see {share}", justify="right")
    for row in compared.rows:
        means = [quantity(mean, row.metric) for mean in row.means]
        needed = "-" if row.needed is None else str(row.needed)
        shown.add_row(title(row.metric), *means, _ratio(row), _VERDICTS[row.verdict], needed)
    return shown


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    return f"{number(row.ratio.value)} [{number(row.ratio.low)}, {number(row.ratio.high)}]"
