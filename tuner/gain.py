"""What live engines saved: trials per hour, and those that a start per trial would have given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.config import Json
from tuner.records import Dominated, Measured, TrialRecord
from tuner.report_text import seconds


@dataclass(frozen=True, slots=True)
class Gain:
    """Means over the trials of a study. An hour is a GPU hour where trials held GPUs."""

    starts: int
    reconfigures: int
    #: Seconds of one start, and of one change of a live engine; None where there was none.
    start_s: float | None
    reconfigure_s: float | None
    per_gpu: bool
    #: Measured trials (ended early or not) per hour spent on all trials, failed ones too.
    trials_per_hour: float
    #: The same, had every trial that changed a live engine been a start of the mean length.
    with_restarts: float

    def to_json(self) -> dict[str, Json]:
        """Return what ``tuner run --json`` prints of it."""
        return {
            "start_s": self.start_s,
            "reconfigure_s": self.reconfigure_s,
            "per": "GPU hour" if self.per_gpu else "hour",
            "trials_per_hour": self.trials_per_hour,
            "trials_per_hour_with_a_start_each": self.with_restarts,
            "factor": self.trials_per_hour / self.with_restarts,
        }

    def __str__(self) -> str:
        hour = "GPU hour" if self.per_gpu else "hour"
        starts = "" if self.start_s is None else f" of {seconds(self.start_s)}"
        text = f"{self.starts} starts{starts}"
        if self.reconfigure_s is None:
            return f"{text}, no live change; {self.trials_per_hour:.0f} trials per {hour}"
        return (
            f"{text}, {self.reconfigures} live changes of {seconds(self.reconfigure_s)}; "
            f"{self.trials_per_hour:.0f} trials per {hour}, a start per trial would have given "
            f"{self.with_restarts:.0f} (x {self.trials_per_hour / self.with_restarts:.1f})"
        )


def gain(records: Sequence[TrialRecord]) -> Gain | None:
    """Return what live engines saved; None where no trial was measured in any time."""
    costs = [record.cost for record in records]
    per_gpu = any(cost.gpus for cost in costs)
    spent = sum(cost.gpu_s if per_gpu else cost.total_s for cost in costs)
    ran = [record for record in records if isinstance(record.outcome, Measured | Dominated)]
    if not ran or spent <= 0:
        return None
    started = [r.cost.start_s for r in ran if r.cost.start_s > 0]
    live = [cost for cost in costs if cost.reconfigure_s > 0]
    start_s = float(np.mean(started)) if started else None
    saved = sum(
        ((start_s or 0.0) - cost.reconfigure_s) * (cost.gpus if per_gpu else 1) for cost in live
    )
    return Gain(
        sum(cost.start_s > 0 for cost in costs),
        len(live),
        start_s,
        float(np.mean([cost.reconfigure_s for cost in live])) if live else None,
        per_gpu,
        3600 * len(ran) / spent,
        3600 * len(ran) / (spent + saved),
    )
