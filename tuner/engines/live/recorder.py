"""Records what a scheduler issues, so that two engines can be compared step by step.

For the self-test of a started engine, for tests and benchmarks; it costs nothing while nobody
records. Runs inside EngineCore.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

_KEPT_AS = "_tuner_recording"


@dataclass(slots=True)
class _Recording:
    """Which request got how many tokens in every step; requests are numbered as they arrived."""

    numbers: dict[str, int]
    #: When each step was decided, seconds on a clock of its own.
    decided_s: list[float] = field(default_factory=list)
    hash: Any = field(default_factory=hashlib.sha256)
    steps: int = 0
    running_max: int = 0
    step_tokens_max: int = 0
    chunk_tokens_max: int = 0
    draft_tokens_max: int = 0
    preemptions: int = 0
    cached_tokens: int = 0

    def add(self, output: Any) -> None:
        """Count one step."""
        tokens = output.num_scheduled_tokens
        self.decided_s.append(time.perf_counter())
        if not tokens:
            return
        self.steps += 1
        self.running_max = max(self.running_max, len(tokens))
        self.step_tokens_max = max(self.step_tokens_max, output.total_num_scheduled_tokens)
        self.chunk_tokens_max = max(self.chunk_tokens_max, *tokens.values())
        drafts = [len(drafted) for drafted in output.scheduled_spec_decode_tokens.values()]
        self.draft_tokens_max = max(self.draft_tokens_max, *drafts, 0)
        self.preemptions += len(output.preempted_req_ids or ())
        self.cached_tokens += sum(one.num_computed_tokens for one in output.scheduled_new_reqs)
        named = sorted((self.numbers[name], count) for name, count in tokens.items())
        self.hash.update(repr(named).encode())


def install(kind: Any) -> None:
    """Give EngineCore ``tuner_record_start`` and ``tuner_record_stop``."""
    kind.tuner_record_start = tuner_record_start
    kind.tuner_record_stop = tuner_record_stop


def tuner_record_start(self: Any, count: int) -> list[str] | None:
    """Record the schedule of ``count`` requests, which wait while the scheduler is paused.

    Returns their ids in order of arrival, or None (and records nothing) before all have arrived.
    """
    waiting = list(self.scheduler.requests)
    if len(waiting) < count:
        return None
    recording = _Recording({name: at for at, name in enumerate(waiting)})
    setattr(self, _KEPT_AS, recording)
    schedule = self.scheduler.schedule

    def recorded(*args: Any, **named: Any) -> Any:
        output = schedule(*args, **named)
        recording.add(output)
        return output

    self.scheduler.schedule = recorded
    return waiting


def tuner_record_stop(self: Any) -> dict[str, Any]:
    """Stop recording; return the digest of the schedule, some totals and the ``step_s``."""
    del self.scheduler.schedule
    recording: _Recording = getattr(self, _KEPT_AS)
    names = ("steps", "running_max", "step_tokens_max", "chunk_tokens_max", "draft_tokens_max")
    totals = {name: getattr(recording, name) for name in (*names, "preemptions", "cached_tokens")}
    ends = recording.decided_s[1:]
    step_s = [end - begin for begin, end in zip(recording.decided_s, ends, strict=False)]
    return {"digest": recording.hash.hexdigest(), "step_s": step_s, **totals}
