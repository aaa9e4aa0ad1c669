"""What a user sees while a study runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tuner.events import (
    Event,
    Notice,
    SlotPhase,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.objectives import Objective
from tuner.records import Dominated, Faulted, Infeasible, Measured, TrialRecord
from tuner.report_text import quantity, value_text
from tuner.tune import counts_as_trial

#: Longest part of a failure's detail that is shown in a line; the whole is in the store.
DETAIL = 160


@dataclass(slots=True)
class Lines:
    """Prints one line per thing that happened. For logs and pipes."""

    console: Console
    objectives: Sequence[Objective]

    def on_event(self, event: Event) -> None:
        """Print an event as a line; slot phases are left out."""
        text = describe(event, self.objectives)
        if text:
            self.console.print(text, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class LiveDisplay:
    """Lines above, and below them: progress, ETA, best so far, what each slot does now."""

    console: Console
    objectives: Sequence[Objective]
    clock: Callable[[], float] = time.monotonic
    _records: list[TrialRecord] = field(default_factory=list)
    _slots: dict[int, tuple[SlotPhase, float]] = field(default_factory=dict)
    _total: int | None = None
    _done: int = 0
    _began: float = 0.0
    _bar: Progress = field(init=False)
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[eta]}"),
        )
        self._live = Live(
            get_renderable=self._render, console=self.console, transient=True, refresh_per_second=4
        )

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def on_event(self, event: Event) -> None:
        """Take note of an event and print its line above the display."""
        match event:
            case StudyStarted(name, trials, finished):
                self._total, self._done, self._began = trials, finished, self.clock()
                self._bar.add_task(name, total=trials, completed=finished, eta="")
            case SlotPhase(slot):
                before = self._slots.get(slot)
                if before is None or before[0] != event:
                    self._slots[slot] = (event, self.clock())
            case TrialFinished(record):
                self._records.append(record)
                self._advance()
        text = describe(event, self.objectives)
        if text:
            self._live.console.print(text, highlight=False, soft_wrap=True)

    def _advance(self) -> None:
        run_now = sum(map(counts_as_trial, self._records))
        per_trial = (self.clock() - self._began) / run_now if run_now else None
        eta = ""
        if per_trial is not None and self._total is not None:
            left = max(self._total - self._done - run_now, 0)
            eta = f"{per_trial:.0f} s a trial, about {per_trial * left / 60:.0f} min left"
        for task in self._bar.task_ids:
            self._bar.update(task, completed=self._done + run_now, eta=eta)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._bar]
        best = _best(self._records, self.objectives)
        if best:
            parts.append(Text(f"  best so far: {best}"))
        for slot, (phase, since) in sorted(self._slots.items()):
            trial = "" if phase.trial is None else f"trial {phase.trial}, "
            parts.append(Text(f"  slot {slot}: {trial}{phase.phase} {self.clock() - since:.0f} s"))
        return Group(*parts)


def describe(event: Event, objectives: Sequence[Objective]) -> str:
    """Return one line on an event, '' where it does not deserve one."""
    match event:
        case StudyStarted(name, trials, finished):
            resumed = f", resumed after {finished} trials" if finished else ""
            budget = f"{trials} trials" if trials is not None else "no limit on trials"
            return f"study {name}: {budget}{resumed}"
        case TrialStarted(number, config, point):
            what = config.label or " ".join(f"{k}={value_text(v)}" for k, v in point.items())
            return f"trial {number} starts: {what}"
        case TrialFinished(record, front):
            mark = "  * on the front" if record.number in front else ""
            return f"trial {record.number} {_outcome(record, objectives)}{mark}"
        case Notice(message):
            return message
        case StudyFinished(reason, wall_s):
            return f"search ended after {wall_s:.0f} s: {reason}"
        case _:
            return ""


def _outcome(record: TrialRecord, objectives: Sequence[Objective]) -> str:
    cost = record.cost
    spent = (
        f"(start {cost.start_s:.1f} s, replay {cost.replay_s:.1f} s, other {cost.other_s:.1f} s)"
    )
    match record.outcome:
        case Measured() if record.scores is not None:
            shown = _values(record.scores, objectives)
            broken = "" if record.feasible else "  breaks a constraint"
            return f"measured: {shown} {spent}{broken}"
        case Infeasible(reason, detail):
            return f"can never run: {reason}: {_one_line(detail)}"
        case Faulted(reason, detail):
            return f"broke ({reason}): {_one_line(detail)}"
        case Dominated(_, detail):
            return f"stopped early, dominated: {_one_line(detail)} {spent}"
        case _:
            return "gave no result"


def _best(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> str:
    good = [record.scores for record in records if record.feasible and record.scores]
    if not good:
        return ""
    columns = list(zip(*good, strict=True))
    best = [
        max(column) if objective.maximize else min(column)
        for objective, column in zip(objectives, columns, strict=True)
    ]
    return _values(best, objectives)


def _values(values: Sequence[float], objectives: Sequence[Objective]) -> str:
    return ", ".join(
        f"{objective.metric} {quantity(value, objective.metric)}"
        for objective, value in zip(objectives, values, strict=True)
    )


def _one_line(detail: str) -> str:
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return text if len(text) <= DETAIL else text[: DETAIL - 3] + "..."
