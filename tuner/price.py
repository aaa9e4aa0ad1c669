"""What tokens cost: a price per GPU hour over the measured throughput."""

from __future__ import annotations

from dataclasses import replace

from tuner.metrics import COST
from tuner.records import Measured, Outcome
from tuner.study_sections import Price

#: What the cost is derived from.
THROUGHPUT = "saturated.output_tokens_per_s"


def priced(outcome: Outcome, gpus: int, price: Price | None) -> Outcome:
    """Return the outcome with the cost of a million output tokens at saturation, in ``facts`` the
    currency. Without a price or a throughput above 0 it stays as it is.

    An engine on the CPU counts as one GPU.
    """
    if price is None or not isinstance(outcome, Measured):
        return outcome
    measurement = outcome.measurement
    tokens_per_s = measurement.values.get(THROUGHPUT, 0.0)
    if tokens_per_s <= 0:
        return outcome
    cost = gpus * price.gpu_hour / 3600 / tokens_per_s * 1e6
    return Measured(
        replace(
            measurement,
            values={**measurement.values, COST: cost},
            facts={**measurement.facts, "currency": price.currency},
        )
    )
