"""What repeats prove: members against baselines in words, and what it would cost to know better."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.confirm import Comparison, Confirmed
from tuner.intervals import Interval, repeats_needed
from tuner.objectives import Objective
from tuner.presets import BASELINE, DEFAULT_BASELINE, ratios
from tuner.records import Measured, TrialRecord
from tuner.report_text import better, change, seconds, short

#: What is not shown is looked for down to this difference; a smaller one hardly matters.
_LEAST_DIFFERENCE = 0.05
#: Of a promised gain this share may be left, and it has not vanished: it is only not proven.
_KEPT = 0.5
#: Bounds this factor apart leave everything open.
_ANYTHING = 10
#: A change of the search this large that is not shown any more counts as vanished.
_PROMISED = 0.02


@dataclass(frozen=True, slots=True)
class Proof:
    """The confirmation of a study: what the repeats say together, and the repeats themselves."""

    confirmed: Sequence[Confirmed] = ()
    repeats: Sequence[TrialRecord] = ()
    folder: Path = Path()
    #: Digest of the trace that the search replayed, '' where it is not known.
    searched_digest: str = ""
    #: What configurations cost in accuracy, in one line each, where that was measured.
    drifts: Mapping[int, str] = field(default_factory=dict)

    def of(self, trial: int) -> Confirmed | None:
        """Return what was confirmed of a trial, None where it was not measured again."""
        return next((one for one in self.confirmed if one.trial == trial), None)

    @property
    def held_out(self) -> bool:
        """Whether the repeats replayed another part of the trace than the search."""
        return bool(self.searched_digest) and any(
            isinstance(r.outcome, Measured)
            and r.outcome.measurement.facts.get("trace_digest") != self.searched_digest
            for r in self.repeats
        )

    @property
    def default(self) -> Confirmed | None:
        """vLLM's defaults, where they were measured again."""
        return next((c for c in self.confirmed if c.config.label == DEFAULT_BASELINE), None)


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison as shown: "+36 %", "+31 % to +41 %", and its verdict."""

    name: str
    change: str
    interval: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Against:
    """A member against one baseline, one cell per objective."""

    baseline: str
    repeats: int
    cells: tuple[Cell, ...]


def comparisons(one: Confirmed, baseline: int) -> list[Comparison]:
    """Return a member's comparisons with one baseline, in the objectives' order."""
    return [found for found in one.comparisons if found.baseline == baseline]


def against(one: Confirmed, proof: Proof) -> list[Against]:
    """Return a member against every baseline, vLLM's defaults first."""
    names = {c.trial: c.config.label for c in proof.confirmed if c.is_baseline}
    order = sorted(names, key=lambda trial: (names[trial] != DEFAULT_BASELINE, trial))
    out = []
    for trial in order:
        found = comparisons(one, trial)
        if found:
            cells = tuple(_cell(comparison) for comparison in found)
            n = max((c.ratio.n for c in found if c.ratio is not None), default=0)
            out.append(Against(baseline_name(names[trial]), n, cells))
    return out


def baseline_name(label: str) -> str:
    """Return a baseline's label as it stands in a sentence."""
    if label == DEFAULT_BASELINE:
        return "vLLM's defaults"
    name = label.removeprefix(BASELINE).strip()
    return name if name.startswith("--") else f"“{name}”"


def _cell(found: Comparison) -> Cell:
    if found.ratio is None:
        return Cell(short(found.metric), "", "", found.verdict)
    value, ends = change(found.ratio.value), interval_text(found.ratio)
    return Cell(short(found.metric), value, ends, found.verdict)


def interval_text(ratio: Interval) -> str:
    """Return an interval of a ratio as changes: "+31 % to +41 %"; words where it says nothing."""
    if ratio.high > _ANYTHING * ratio.low:
        return "anything: the repeats lie too far apart"
    return f"{change(ratio.low)} to {change(ratio.high)}"


def standing(one: Confirmed, baseline: Confirmed) -> str:
    """Return "gain", "trade", "worse", or "not shown": what is proven against a baseline."""
    shown = {found.verdict for found in comparisons(one, baseline.trial)}
    if "better" in shown:
        return "trade" if "worse" in shown else "gain"
    return "worse" if "worse" in shown else "not shown"


def proven_gain(one: Confirmed, baseline: Confirmed, objectives: Sequence[Objective]) -> float:
    """Return the sum of proven gains and losses as logarithms; above 0 is better."""
    by_metric = {objective.metric: objective.maximize for objective in objectives}
    return sum(
        math.log(found.ratio.value) * (1 if by_metric[found.metric] else -1)
        for found in comparisons(one, baseline.trial)
        if found.ratio is not None and found.verdict != "not shown"
    )


def proven_text(one: Confirmed, baseline: Confirmed) -> str:
    """Return what is shown, in words: "+36 % output throughput, -23 % P99 end-to-end latency"."""
    found = comparisons(one, baseline.trial)
    shown = [
        f"{change(c.ratio.value)} {short(c.metric)}"
        for c in found
        if c.ratio is not None and c.verdict != "not shown"
    ]
    hidden = [short(c.metric) for c in found if c.verdict == "not shown"]
    parts = [", ".join(shown)] if shown else []
    parts += [f"no difference shown in {' and '.join(hidden)}"] if hidden else []
    return "; ".join(parts)


def vanished(
    one: Confirmed, baseline: Confirmed, records: Sequence[TrialRecord], order: Sequence[Objective]
) -> list[str]:
    """Return a sentence for each gain that the search promised and the repeats do not show."""
    by_trial = {record.number: record for record in records}
    ours, theirs = by_trial.get(one.trial), by_trial.get(baseline.trial)
    if ours is None or theirs is None:
        return []
    promised = ratios(ours, theirs, order)
    found = {c.metric: c for c in comparisons(one, baseline.trial)}
    out = []
    for objective in order:
        ratio, again = promised.get(objective.metric, 1.0), found.get(objective.metric)
        big = better(ratio, objective) and abs(ratio - 1) >= _PROMISED
        if big and again is not None and again.ratio is not None and again.verdict != "better":
            measured = math.log(again.ratio.value) / math.log(ratio)
            out.append(
                f"{_fate(again.verdict, measured)}: the search's single measurement gave "
                f"{change(ratio)} {short(objective.metric)}; measured again it is "
                f"{change(again.ratio.value)} ({interval_text(again.ratio)})."
            )
    return out


def _fate(verdict: str, kept: float) -> str:
    """Name what became of a promised gain. ``kept``: the share of it that the repeats' mean has."""
    if verdict == "worse":
        return "A gain that is a loss"
    return "A gain that is not proven" if kept >= _KEPT else "A gain that vanished"


def price(one: Confirmed, baseline: Confirmed, proof: Proof) -> str:
    """Say what more certainty would cost: repeats, time and the command that does it.

    What is not shown needs so many repeats that a difference as large as the one seen would show,
    or one of ``_LEAST_DIFFERENCE``; where all is shown, four times the repeats halve the intervals.
    '' without any spread.
    """
    found = [c for c in comparisons(one, baseline.trial) if c.ratio is not None]
    open_ = [c for c in found if c.verdict == "not shown"]
    have = len(one.scores)
    wanted = [
        (needed, c, difference)
        for c in open_
        if c.ratio is not None
        for difference in [max(_LEAST_DIFFERENCE, abs(math.expm1(abs(math.log(c.ratio.value)))))]
        if (needed := repeats_needed(c.ratio, difference)) is not None
    ]
    if wanted:
        needed, comparison, difference = max(wanted, key=lambda each: each[0])
        what = f"a difference of {difference * 100:.2g} % in {short(comparison.metric)}"
        if needed <= have:
            return f"Enough repeats: {what} would most likely have shown."
        aim = f"to tell {what} from noise takes about {needed} repeats"
    elif found and not open_ and any(c.ratio and c.ratio.high > c.ratio.low for c in found):
        needed, aim = 4 * have, f"intervals half as wide take {4 * have} repeats"
    else:
        return ""
    return f"To know better: {aim} instead of {have}, {_takes(needed - have, proof, needed)}"


def _takes(more: int, proof: Proof, repeats: int) -> str:
    each = [record.cost.total_s for record in proof.repeats if record.scores is not None]
    members = len(proof.confirmed)
    took = rounded(more * members * statistics.median(each)) if each else "an unknown time"
    command = again(proof.folder, f"confirm.repeats={repeats}")
    return f"about {took} more for all {members} confirmed configurations: {command}"


def again(folder: Path, *sets: str) -> str:
    """Return the command that resumes a study with some values changed, in backquotes."""
    words = ["tuner", "run", str(folder / "study.yaml"), "--out", str(folder)]
    for each in sets:
        words += ["--set", each]
    return f"`{shlex.join(words)}`"


def rounded(value_s: float) -> str:
    """Return an estimated duration in whole minutes from a minute on: "about" needs no seconds."""
    if value_s < 60:
        return seconds(value_s)
    return seconds(math.ceil(value_s / 60) * 60).removesuffix(" 00 s").replace("60 s", "1 min")
