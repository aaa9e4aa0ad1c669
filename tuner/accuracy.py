"""What a configuration changes in the model's answers: drift of logprobs, and agreement.

The baseline answers reference prompts greedily. Each candidate then scores the baseline's answers,
token by token, and answers the prompts itself. Equal arithmetic gives a drift of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from tuner.config import EngineConfig, Json
from tuner.records import TrialRecord

#: Engine arguments that change the numbers a model computes, or who proposes its tokens.
QUANTIZING = ("quantization", "kv_cache_dtype", "speculative_config")
#: Values of theirs that change nothing.
_AS_IS: tuple[Json, ...] = (None, "auto", {}, "")
#: Attribute of a study that holds the drifts, by trial number.
ATTRIBUTE = "accuracy"


@dataclass(frozen=True, slots=True)
class Scored:
    """An engine's greedy answer to a prompt, and what it thinks of a given answer."""

    #: Its own tokens, greedily chosen.
    answer: tuple[int, ...]
    #: Natural logarithm of the probability of each token of the given answer.
    logprobs: tuple[float, ...]
    #: The token that it holds most likely at each place of the given answer.
    top: tuple[int, ...]


@runtime_checkable
class Scoring(Protocol):
    """What an engine may offer besides ``Engine``."""

    async def score(
        self, prompt: Sequence[int], tokens: int, answer: Sequence[int] | None
    ) -> Scored:
        """Answer a prompt with ``tokens`` tokens, and score ``answer``; None: its own answer."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a configuration's answers are from the baseline's. Logprobs in nats."""

    #: Mean and largest absolute difference of a token's logprob.
    mean: float
    worst: float
    #: Share of places at which the most likely token is the baseline's.
    top1_agreement: float
    #: Share of prompts that are answered with the very same tokens.
    exact_match: float
    #: Tokens compared.
    tokens: int
    #: The study's bound on ``worst``; None for none.
    bound: float | None = None

    @property
    def misses(self) -> bool:
        """Whether the bound is missed."""
        return self.bound is not None and self.worst > self.bound

    def __str__(self) -> str:
        """Say it in one line."""
        bound = "" if self.bound is None else f", bound {self.bound:g}"
        return (
            f"logprob drift {self.mean:.4f} at the mean, {self.worst:.4f} at worst{bound}; "
            f"same top token {self.top1_agreement:.1%}, same answer {self.exact_match:.1%} "
            f"({self.tokens} tokens)"
        )

    @classmethod
    def between(
        cls, reference: Sequence[Scored], found: Sequence[Scored], bound: float | None = None
    ) -> Drift:
        """Compare what two engines made of the same prompts and the reference's answers.

        Raises ValueError where there is nothing to compare or they are of different lengths.
        """
        pairs = list(zip(reference, found, strict=True))
        apart = [
            abs(ours - theirs)
            for want, have in pairs
            for theirs, ours in zip(want.logprobs, have.logprobs, strict=True)
        ]
        if not apart or not all(math.isfinite(value) for value in apart):
            raise ValueError("no finite logprobs to compare")
        same = [a == b for want, have in pairs for a, b in zip(want.top, have.top, strict=True)]
        equal = [want.answer == have.answer for want, have in pairs]
        return cls(
            float(np.mean(apart)),
            float(np.max(apart)),
            float(np.mean(same)),
            float(np.mean(equal)),
            len(apart),
            bound,
        )


def changes_numbers(config: EngineConfig) -> bool:
    """Whether a configuration may answer otherwise than the plain model does."""
    return bool(changing(config))


def changing(config: EngineConfig) -> list[str]:
    """Return the arguments by which a configuration may answer otherwise."""
    return [name for name in QUANTIZING if config.args.get(name) not in _AS_IS]


def to_attribute(drifts: Mapping[int, Drift]) -> dict[str, Json]:
    """Return drifts by trial number as a study stores them."""
    return {str(number): asdict(drift) for number, drift in drifts.items()}


def from_attribute(stored: Mapping[str, Json] | None) -> dict[int, Drift]:
    """Return what ``to_attribute`` gave."""
    return {int(number): Drift(**one) for number, one in (stored or {}).items()}


def bounded(records: Sequence[TrialRecord], drifts: Mapping[int, Drift]) -> list[TrialRecord]:
    """Return the records, with a violated constraint for each that drifts beyond its bound."""
    return [
        replace(record, violations=(*record.violations, drift.worst - (drift.bound or 0.0)))
        if (drift := drifts.get(record.number)) is not None and drift.misses
        else record
        for record in records
    ]
