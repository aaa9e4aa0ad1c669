"""The JSONL of ``vllm bench serve --dataset-name custom``: prompts as text, without times."""

from __future__ import annotations

import numpy as np

from tuner.trace import Trace
from tuner.traces.arrivals import invented
from tuner.traces.counting import counter
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether the first line is a prompt and nothing that tells of a recording."""
    return isinstance(head.first.get("prompt"), str) and not (
        {"usage", "prompt_tokens", "t_us", "timestamp", "startTime"} & set(head.first)
    )


def read(  # noqa: PLR0913 -- each is an option that a user may need
    source: Source,
    *,
    output_tokens: int | None = None,
    chars_per_token: float = 4.0,
    tokenizer: str | None = None,
    rate_per_s: float = 1.0,
    seed: int = 0,
    zero_output: ZeroOutput = "drop",
) -> Trace:
    """Read ``prompt`` and ``output_tokens`` (the option of that name is for rows without).

    Token counts come from ``tokenizer`` (a ``tokenizer.json``) or from ``chars_per_token``;
    arrivals are Poisson. Notes say so.
    """
    count, how = counter(source, chars_per_token, tokenizer)
    prompts, outputs = [], []
    for line, row in source.rows():
        if not isinstance(row.get("prompt"), str):
            raise source.fail("prompt: expected text", line=line)
        prompts.append(count(row["prompt"]))
        outputs.append(source.number(row, "output_tokens", line))
    if output_tokens is not None:
        outputs = np.nan_to_num(outputs, nan=output_tokens).tolist()
    elif np.isnan(outputs).all():
        raise source.fail(
            "no row says its output_tokens", hint="Give one for all: output_tokens=128."
        )
    arrival, note = invented(len(prompts), rate_per_s, seed)
    draft = Draft(
        arrival_us=arrival * 1e6,
        prompt_tokens=prompts,
        output_tokens=outputs,
        notes=(how, note),
    )
    return finish(source, "custom", draft, zero_output=zero_output)
