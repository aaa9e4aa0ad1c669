"""When a replay need not go on: what its requests have shown decides already what is asked of it.

Two judges of a replay: ``Race`` ends the paced replay of a trial that cannot reach the front any
more, ``Verdict`` answers whether an SLO holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner import metrics, pareto
from tuner.claims import Claim, Failing, Look, Missing, too_late
from tuner.job import Rivals, Slo
from tuner.objectives import Constraint, Objective
from tuner.records import RequestRecord
from tuner.stopping_percentiles import Slower, Watched, slower, watched
from tuner.trace import Request


@dataclass(slots=True)
class Proof:
    """Claims that together decide a trial. ``known``: its objectives measured before."""

    claims: Sequence[Claim]
    known: Mapping[str, float]

    def bound(self, look: Look) -> dict[str, float]:
        """Return the best values that the trial can still reach."""
        return {**self.known, **{claim.metric: claim.at_best(look) for claim in self.claims}}


@dataclass(slots=True)
class Race:
    """A judge of a trial's paced replay: ends it once one of the proofs stands.

    Nothing is decided before one request has succeeded: a broken engine is no slow one.
    """

    requests: int
    proofs: Sequence[Proof]
    good: int = 0
    failed: int = 0
    #: When it was decided, and by what.
    look: Look | None = None
    proven: Proof | None = None

    def take(self, record: RequestRecord) -> None:
        """Take note of a request that has ended."""
        if not record.scored:
            return
        self.good += record.ok
        self.failed += not record.ok
        for proof in self.proofs:
            for claim in proof.claims:
                claim.take(record)

    def decided(self, now_s: float, open: Collection[RequestRecord]) -> bool:
        """Whether the rest of the replay can no longer put the trial on the front."""
        scored = [record for record in open if record.scored]
        look = Look(now_s, self.requests, self.good, self.failed, scored)
        for proof in self.proofs if self.good else ():
            if all(claim.holds(look) for claim in proof.claims):
                self.look, self.proven = look, proof
                return True
        return False

    @property
    def bound(self) -> dict[str, float]:
        """The best values that the trial can still reach; empty while undecided."""
        return self.proven.bound(self.look) if self.proven and self.look else {}

    @property
    def detail(self) -> str:
        """What was proven and when, in words; '' while undecided."""
        if self.proven is None or self.look is None:
            return ""
        what = " and ".join(
            f"{claim.metric} cannot be better than {_value(claim, claim.at_best(self.look))}"
            for claim in self.proven.claims
        )
        ended = self.good + self.failed
        return f"{what}: certain after {ended} of {self.requests} requests"


def _value(claim: Claim, value: float) -> str:
    return f"{value * 1e3:,.1f} ms" if isinstance(claim, Slower) else f"{value:.6g}"


@dataclass(slots=True)
class Verdict:
    """A judge of one question: does a replay keep the SLO? Ends it when known."""

    requests: int
    slo: Slo
    #: Bounds on percentiles: all of them must be kept too.
    watched: Sequence[Watched] = ()
    met: int = 0
    missed: int = 0

    @classmethod
    def on(cls, scored: Sequence[Request], slo: Slo) -> Verdict:
        """Return the judge of a replay of these requests."""
        return cls(len(scored), slo, watched(scored, slo))

    def take(self, record: RequestRecord) -> None:
        """Take note of a request that has ended."""
        if record.scored:
            good = metrics.meets(record, self.slo)
            self.met += good
            self.missed += not good
            for percentile in self.watched:
                percentile.take(record)

    def decided(self, now_s: float, open: Collection[RequestRecord]) -> bool:
        """Whether enough requests have met and percentiles hold, or too many missed or one not."""
        look = Look(now_s, self.requests, 0, 0, [r for r in open if r.scored])
        allowed, late = self.slo.allowed_misses(self.requests), too_late(look, self.slo)
        if self.missed + late > allowed:
            self.missed += late
            return True
        if any(percentile.fails(look, allowed) for percentile in self.watched):
            return True
        enough = self.met >= self.requests - allowed
        return enough and all(percentile.holds() for percentile in self.watched)


def proofs(
    rivals: Rivals, known: Mapping[str, float], scored: Sequence[Request], slo: Slo
) -> list[Proof]:
    """Return what may prove, during a paced replay, that a trial will not be on the front.

    ``known`` are the values measured before it, ``scored`` the requests that will count. A trial is
    off the front where it breaks a constraint, or where one measured and feasible trial is at
    least as good in every known objective and strictly better in all that remain.
    """
    asked = _Asked(scored, _spare_failures(rivals.constraints, len(scored)), slo)
    found = [
        Proof([claim], {})
        for constraint in rivals.constraints
        for claim in asked.claims(constraint.metric, constraint.upper, constraint.lower)
    ]
    shown = {o.metric: known[o.metric] for o in rivals.objectives if o.metric in known}
    for member in _easiest(rivals, shown):
        claims = [
            claim
            for objective, score in zip(rivals.objectives, member, strict=True)
            if objective.metric not in shown
            for claim in asked.beats(objective, score)
        ]
        if claims and len(claims) == len(rivals.objectives) - len(shown):
            found.append(Proof(claims, shown))
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be proven is proven about these requests, of which ``spare`` may fail."""

    scored: Sequence[Request]
    spare: int
    slo: Slo

    def beats(self, objective: Objective, score: float) -> list[Claim]:
        """Return the claim that a rival's score is better."""
        upper, lower = (None, score) if objective.maximize else (score, None)
        return self.claims(objective.metric, upper, lower)

    def claims(self, metric: str, upper: float | None, lower: float | None) -> list[Claim]:
        """Return the claim that a metric of the paced replay misses a bound, if provable."""
        measure, _, name = metric.partition(".")
        if measure != "paced":
            return []
        if upper is not None and name == "error_share":
            return [Failing(metric, upper)]
        if lower is not None and name == "attainment":
            return [Missing(metric, lower, self.slo)]
        claim = None if upper is None else slower(metric, upper, self.spare, self.scored)
        return [] if claim is None else [claim]


def _easiest(rivals: Rivals, shown: Mapping[str, float]) -> list[Sequence[float]]:
    """Return the rivals not worse in what is known, those first to be lost against.

    Of two of them the one that is better in all that remains proves whatever the other does.
    """
    sign = np.array([-1.0 if o.maximize else 1.0 for o in rivals.objectives])
    ours = np.array([shown.get(o.metric, np.nan) for o in rivals.objectives]) * sign
    losses = np.array(rivals.front, np.float64).reshape(-1, len(sign)) * sign
    members = np.flatnonzero((losses <= ours)[:, ~np.isnan(ours)].all(axis=1))
    left = losses[members][:, np.isnan(ours)]
    if not left.size:
        return []
    return [rivals.front[row] for row in members[pareto.non_dominated(left)]]


def _spare_failures(constraints: Sequence[Constraint], requests: int) -> int:
    """Return how many requests may fail before the trial breaks a constraint by that alone."""
    shares = [
        c.upper for c in constraints if c.metric == "paced.error_share" and c.upper is not None
    ]
    return min([math.floor(share * requests + 1e-9) for share in shares], default=requests)
