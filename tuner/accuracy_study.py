"""The accuracy guard: members of the front that change the model's numbers are scored, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.accuracy import ATTRIBUTE, Drift, Scored, changes_numbers, to_attribute
from tuner.accuracy_job import ScoringJob, scored
from tuner.config import EngineConfig
from tuner.job import Workload
from tuner.pools import Pool
from tuner.records import Faulted, Infeasible, Measured, TrialRecord
from tuner.results import load_results, open_store
from tuner.runner_pool import make_pool
from tuner.study import StudySpec
from tuner.surroundings import Surroundings
from tuner.tune import POLL_S

EVALUATE = "tuner.accuracy_job:score_job"


def wanted(spec: StudySpec) -> bool:
    """Whether a study is to be scored: where it says a bound, or confirms its front anyway."""
    section = spec.accuracy
    bounded = section.max_logprob_drift is not None
    real = spec.engine.kind != "simulated"
    return bool(real and section.prompts and (bounded or spec.confirm.members))


def accuracy_study(spec: StudySpec, around: Surroundings) -> str:
    """Score the front against the plain engine until every member of it is scored; say how it went.

    What drifts beyond the bound leaves the front; who takes its place is scored too. What an
    earlier run scored is not scored again.
    """
    _bound_again(spec, around.folder)
    if not _unscored(around.folder, set()):
        return "nothing on the front changes the model's numbers"
    with make_pool(spec, around, "vllm", {}, EVALUATE) as pool:
        return guard(Guard(spec, around, pool, spec.workload()))


@dataclass(slots=True)
class Guard:
    """The parts of one scoring: the pool runs ``score_job``."""

    spec: StudySpec
    around: Surroundings
    pool: Pool
    workload: Workload
    _tried: set[int] = field(default_factory=set)

    def score(
        self, number: int, config: EngineConfig, answers: Sequence[Scored]
    ) -> list[Scored] | None:
        """Score one configuration; None where that failed, which is told."""
        section = self.spec.accuracy
        self._tried.add(number)
        name = "baseline" if number < 0 else str(number)
        self.pool.submit(
            ScoringJob(
                number,
                config,
                self.workload,
                str(self.around.folder / "accuracy" / name),
                self.spec.engine.deadlines,
                prompts=section.prompts,
                tokens=section.tokens,
                answers=tuple(one.answer for one in answers),
            )
        )
        while (done := self.pool.collect(POLL_S)) is None:
            pass
        outcome = done[1]
        if isinstance(outcome, Measured):
            return scored(outcome)
        who = "the baseline" if number < 0 else f"trial {number}"
        assert isinstance(outcome, Infeasible | Faulted)  # a scoring job is never cut short
        why = f"{outcome.reason}: {outcome.detail}"
        self.around.say(f"accuracy of {who} was not measured: {why}")
        return None

    def next(self) -> TrialRecord | None:
        """Return a member of the front that nobody tried to score yet."""
        return next(iter(_unscored(self.around.folder, self._tried)), None)


def guard(parts: Guard) -> str:
    """Score the baseline, then one member of the front after another; return how it ended."""
    spec, around = parts.spec, parts.around
    reference = parts.score(-1, spec.base, ())
    if reference is None:
        return "the baseline could not be scored: nothing is known of accuracy"
    count = 0
    while not around.stop.requested and (record := parts.next()) is not None:
        found = parts.score(record.number, record.config, reference)
        if found is None:
            continue
        try:
            drift = Drift.between(reference, found, spec.accuracy.max_logprob_drift)
        except ValueError as error:
            around.say(f"accuracy of trial {record.number} was not measured: {error}")
            continue
        _store(around.folder, {record.number: drift})
        count += 1
        left = ": it leaves the front" if drift.misses else ""
        around.say(f"accuracy of trial {record.number}: {drift}{left}")
    return f"{count} members of the front scored"


def _unscored(folder: Path, tried: set[int]) -> list[TrialRecord]:
    found = load_results(folder)
    return [
        record
        for record in found.front
        if changes_numbers(record.config)
        and record.number not in found.drifts
        and record.number not in tried
    ]


def _bound_again(spec: StudySpec, folder: Path) -> None:
    """Hold what an earlier run scored against the bound of this one."""
    bound = spec.accuracy.max_logprob_drift
    known = load_results(folder).drifts
    _store(folder, {n: replace(drift, bound=bound) for n, drift in known.items()})


def _store(folder: Path, new: dict[int, Drift]) -> None:
    if new:
        drifts = {**load_results(folder).drifts, **new}
        open_store(folder).study.set_user_attr(ATTRIBUTE, to_attribute(drifts))
