"""vLLM's logprobs of a given answer, and its own greedy answer, through a running AsyncLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.accuracy import Scored


async def score(
    llm: Any, name: str, prompt: Sequence[int], tokens: int, answer: Sequence[int] | None
) -> Scored:
    """Answer a prompt greedily, then look at an answer token by token. See ``Scoring``.

    The answer is looked at as part of a prompt, also an engine's own: so both engines do the same
    arithmetic over the same tokens, and only their settings differ. Raises what vLLM raises.
    """
    own = (await _ended(llm, f"{name}-answer", prompt, {"max_tokens": tokens})).outputs[0]
    given = list(answer or own.token_ids)
    asked = {"max_tokens": 1, "prompt_logprobs": 1}
    seen = await _ended(llm, f"{name}-score", [*prompt, *given], asked)
    logprobs, top = [], []
    for place, token in enumerate(given, start=len(prompt)):
        told = seen.prompt_logprobs[place]
        logprobs.append(float(told[token].logprob))
        top.append(max(told, key=lambda one: told[one].logprob))
    return Scored(tuple(own.token_ids), tuple(logprobs), tuple(top))


async def _ended(llm: Any, name: str, prompt: Sequence[int], asked: dict[str, int]) -> Any:
    """Return the whole output of one greedy request."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    sampling = SamplingParams(
        **asked,
        temperature=0.0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    last = None
    async for output in llm.generate(tokens_input(list(prompt)), sampling, request_id=name):
        last = output
    return last
