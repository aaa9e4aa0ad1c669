"""Scoring one configuration: reference prompts, one after another, on an engine of its own."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tuner.accuracy import Scored, Scoring
from tuner.engines import Launcher
from tuner.errors import ConfigRejected, EngineFault, RequestRejected
from tuner.job import Job
from tuner.patience import Patience
from tuner.records import Cost, Faulted, Infeasible, Measured, Measurement, Outcome
from tuner.trace import Request
from tuner.traces.tokens import TokenSource

#: Tokens of a reference prompt, where the workload's longest request is as long.
PROMPT_TOKENS = 64
#: The name under which the scored prompts stand in a measurement's facts.
SCORED = "scored"


@dataclass(frozen=True, slots=True)
class ScoringJob(Job):
    """Score a configuration on reference prompts made for the job's workload."""

    prompts: int = 16
    #: Tokens of each answer.
    tokens: int = 32
    #: The baseline's answers, one per prompt; empty for the baseline itself.
    answers: tuple[tuple[int, ...], ...] = ()

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of prompt and answer, such that whatever runs the workload can run both."""
        longest = self.workload.longest_tokens
        answer = max(1, min(self.tokens, longest // 2))
        return max(1, min(PROMPT_TOKENS, longest - answer - 1)), answer


async def score_job(
    job: Job, launcher: Launcher, on_phase: Callable[[str], None]
) -> tuple[Outcome, Cost]:
    """Run a scoring job to its outcome; never raises for what goes wrong in it.

    What was scored stands in the facts of the measurement: see ``scored``.
    """
    assert isinstance(job, ScoringJob)
    clock = asyncio.get_running_loop().time
    began = clock()
    outcome: Outcome
    try:
        found = await _scores(job, launcher, on_phase)
        outcome = Measured(Measurement({}, facts={SCORED: [asdict(one) for one in found]}))
    except ConfigRejected as rejected:
        outcome = Infeasible(rejected.reason, rejected.detail)
    except EngineFault as fault:
        outcome = Faulted(fault.reason, fault.detail)
    except RequestRejected as refused:
        outcome = Faulted("not_scored", str(refused))
    except Exception:
        outcome = Faulted("unknown", traceback.format_exc())
    return outcome, Cost(other_s=clock() - began)


async def _scores(
    job: ScoringJob, launcher: Launcher, on_phase: Callable[[str], None]
) -> list[Scored]:
    log = Path(job.directory) / "engine.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    on_phase("starting engine")
    async with contextlib.AsyncExitStack() as stack:
        patience = Patience(job.deadlines, log)
        try:
            async with patience.while_it_works():
                engine = await stack.enter_async_context(launcher.launch(job.config, str(log)))
        except TimeoutError:
            raise EngineFault("launch_timeout", patience.spent()) from None
        if not isinstance(engine, Scoring):
            raise EngineFault("not_scored", "this engine gives no logprobs")
        on_phase("accuracy")
        source = TokenSource(
            job.workload.trace.digest,
            int(engine.facts["vocab_size"]),
            job.workload.seed,
            scope="accuracy",
        )
        asked, tokens = job.lengths
        found = []
        for number in range(job.prompts):
            prompt = source.prompt(Request(number, 0.0, asked, tokens))
            answer = job.answers[number] if job.answers else None
            try:
                async with asyncio.timeout(job.deadlines.request_s):
                    # One at a time: what else is in a batch changes the last digits.
                    found.append(await engine.score(prompt, tokens, answer))
            except TimeoutError:
                late = f"no answer to prompt {number} within {job.deadlines.request_s:g} s"
                raise EngineFault("not_scored", late) from None
        return found


def scored(outcome: Measured) -> list[Scored]:
    """Return what a scoring job measured."""
    return [
        Scored(tuple(one["answer"]), tuple(one["logprobs"]), tuple(one["top"]))
        for one in outcome.measurement.facts[SCORED]
    ]
