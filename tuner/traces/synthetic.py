"""Workloads where no trace exists: arrivals, lengths, shared system prompts, conversations.

Everything comes from one seeded Philox generator: the same mapping gives the same trace. No
synthetic load has the slow drift of real traffic: at the scale of minutes it is too even.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.config import Json
from tuner.errors import Problem, TraceError
from tuner.trace import UNKNOWN_GAP, Provenance, Ragged, Trace
from tuner.traces import arrivals
from tuner.traces.draws import Rng, lengths

#: Seconds per output token assumed for the recorded times of later turns (replay does not use it).
_TOKEN_S = 0.02
_DEFAULTS: dict[str, Json] = {
    "requests": 200,
    "rate_per_s": 2.0,
    "seed": 0,
    "arrivals": "poisson",
    "prompt_tokens": {"lognormal": {"median": 512, "p99": 4096}},
    "output_tokens": {"lognormal": {"median": 128, "p99": 1024}},
    "system_prompts": None,
    "chat": None,
    "name": "synthetic",
}
_NESTED = {
    "system_prompts": {"count": 1, "tokens": 256, "skew": 0.0},
    "chat": {"turns_mean": 3.0, "turns_max": 20, "think_s": 10.0},
}


def generate(spec: Mapping[str, Json]) -> Trace:
    """Make a trace from a mapping. All keys are optional.

    - ``requests`` (sessions where ``chat`` is given), their ``rate_per_s``, ``seed``, ``name``
    - ``arrivals``: "poisson", "constant", "offline" (all at once), {"gamma": {"cv"}},
      {"bursts": {"every_s", "length_s", "factor"}}, {"daily": {"period_s", "amplitude"}}
    - ``prompt_tokens``, ``output_tokens``: a number, {"lognormal": {"median", "p99", "min",
      "max"}}, {"uniform": {"min", "max"}}, {"empirical": {"path", "format"}}: a trace's own lengths
      (with the same file for both, pairs are drawn, so that their correlation stays)
    - ``system_prompts``: {"count", "tokens", "skew"}: each session starts with one of ``count``
      shared prompts (the n-th has weight n ** -skew), in front of its own ``prompt_tokens``
    - ``chat``: {"turns_mean", "turns_max", "think_s"}: geometric numbers of turns; the prompt of
      each is the conversation so far (answers are segments of their own) and ``prompt_tokens``
      new ones, sent an exponential ``think_s`` after the last answer

    TraceError lists every unknown key, or names the bad value.
    """
    _check(spec)
    given = {**_DEFAULTS, **spec}
    for key, defaults in _NESTED.items():
        if given[key] is not None:
            given[key] = {**defaults, **given[key]}
    rng = np.random.Generator(np.random.Philox(int(given["seed"])))
    try:
        sessions = _Sessions.drawn(rng, given)
    except (ValueError, TypeError, KeyError) as error:
        raise TraceError(Problem("", "synthetic", str(error))) from error
    trace = sessions.single() if given["chat"] is None else sessions.conversations()
    step = {"op": "generate", **{key: given[key] for key in _DEFAULTS}}
    provenance = Provenance(format="synthetic", rows_read=len(trace), transforms=(step,))
    return replace(trace, name=str(given["name"]), provenance=provenance)


def _check(spec: Mapping[str, Json]) -> None:
    problems = []
    levels = [("synthetic", spec, _DEFAULTS)]
    for key, defaults in _NESTED.items():
        if isinstance(spec.get(key), Mapping):
            levels.append((f"synthetic.{key}", spec[key], defaults))
    for at, mapping, known in levels:
        for key in sorted(set(mapping) - set(known)):
            near = difflib.get_close_matches(key, known, 1)
            guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            problems.append(Problem("", f"{at}.{key}", f"unknown; {guess}"))
    if problems:
        raise TraceError(problems)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """The random draws; what they mean is decided without further randomness."""

    starts_us: Any
    turns: Any
    prompts: Any
    outputs: Any
    #: Number of the shared system prompt per session, -1 without.
    system: Any
    system_tokens: int
    think_us: Any

    @classmethod
    def drawn(cls, rng: Rng, given: Mapping[str, Any]) -> _Sessions:
        count, rate = int(given["requests"]), float(given["rate_per_s"])
        if count < 1 or rate <= 0:
            raise ValueError("requests must be at least 1 and rate_per_s > 0")
        starts = np.rint(arrivals.draw(rng, given["arrivals"], count, rate) * 1e6).astype(np.int64)
        turns = _turns(rng, given["chat"], count)
        total = int(turns.sum())
        prompts, outputs = lengths(rng, given["prompt_tokens"], given["output_tokens"], total)
        system, tokens = _systems(rng, given["system_prompts"], count)
        think_s = 0.0 if given["chat"] is None else float(given["chat"]["think_s"])
        think = np.rint(rng.exponential(think_s, total) * 1e6).astype(np.int64)
        return cls(starts, turns, prompts, outputs, system, tokens, think)

    def single(self) -> Trace:
        """Return one request per session."""
        if not self.system_tokens:
            return Trace.build(self.starts_us, self.prompts, self.outputs)
        rows = [[int(number)] for number in self.system]
        return Trace.build(
            self.starts_us,
            self.prompts + self.system_tokens,
            self.outputs,
            blocks=Ragged.of(rows),
            block_tokens=Ragged.of([[self.system_tokens]] * len(rows)),
        )

    def conversations(self) -> Trace:
        """Return every turn; its segments: system prompt, then question and answer by turns."""
        arrival, prompt, session, gap = [], [], [], []
        blocks: list[list[int]] = []
        tokens: list[list[int]] = []
        parents: list[list[int]] = []
        fresh = int(self.system.max(initial=-1)) + 1
        row = 0
        for number, turns in enumerate(self.turns.tolist()):
            ids = [int(self.system[number])] if self.system_tokens else []
            sizes = [self.system_tokens] * len(ids)
            now = int(self.starts_us[number])
            for turn in range(turns):
                # Question and answer of row r are the segments fresh + 2r and fresh + 2r + 1.
                ids, sizes = [*ids, fresh + 2 * row], [*sizes, int(self.prompts[row])]
                now += int(self.think_us[row]) if turn else 0
                arrival.append(now)
                prompt.append(sum(sizes))
                session.append(number)
                gap.append(int(self.think_us[row]) if turn else UNKNOWN_GAP)
                parents.append([row - 1] if turn else [])
                blocks.append(ids)
                tokens.append(sizes)
                ids, sizes = [*ids, fresh + 2 * row + 1], [*sizes, int(self.outputs[row])]
                now += round(int(self.outputs[row]) * _TOKEN_S * 1e6)
                row += 1
        return Trace.build(
            arrival,
            prompt,
            self.outputs,
            blocks=Ragged.of(blocks),
            block_tokens=Ragged.of(tokens),
            session=np.asarray(session, np.int64),
            parents=Ragged.of(parents),
            gap_us=np.asarray(gap, np.int64),
        )


def _turns(rng: Rng, chat: Mapping[str, Any] | None, count: int) -> Any:
    if chat is None:
        return np.ones(count, np.int64)
    mean, most = float(chat["turns_mean"]), int(chat["turns_max"])
    if mean < 1 or most < 1:
        raise ValueError("chat: turns_mean and turns_max must be at least 1")
    return np.minimum(rng.geometric(1 / mean, count), most)


def _systems(rng: Rng, spec: Mapping[str, Any] | None, count: int) -> tuple[Any, int]:
    if spec is None:
        return np.full(count, -1), 0
    prompts, tokens = int(spec["count"]), int(spec["tokens"])
    if prompts < 1 or tokens < 1:
        raise ValueError("system_prompts: count and tokens must be at least 1")
    weights = np.arange(1, prompts + 1, dtype=np.float64) ** -float(spec["skew"])
    return rng.choice(prompts, count, p=weights / weights.sum()), tokens
