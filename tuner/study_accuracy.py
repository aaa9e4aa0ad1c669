"""The part of a study file about what its front may cost in accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from tuner.study_sections import Count, Natural, Positive


@dataclass(frozen=True, slots=True)
class AccuracySection:
    """Reference prompts (0: none) and tokens of their answers, scored by front and baseline.

    ``max_logprob_drift``: a front member's largest difference of a token's logprob, in nats; None:
    measured, not bounded.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    max_logprob_drift: Positive | None = None
    prompts: Natural = 16
    tokens: Count = 32
