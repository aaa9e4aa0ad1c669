"""ShareGPT conversations. The texts have no times and are not kept: only their lengths are."""

from __future__ import annotations

from tuner.config import Json
from tuner.trace import Trace
from tuner.traces.arrivals import invented
from tuner.traces.counting import counter
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Whether it holds conversations."""
    start = head.text[:65_536]
    return all(f'"{key}"' in start for key in ("conversations", "from", "value"))


def read(
    source: Source,
    *,
    chars_per_token: float = 4.0,
    tokenizer: str | None = None,
    rate_per_s: float = 1.0,
    seed: int = 0,
    zero_output: ZeroOutput = "drop",
) -> Trace:
    """Read the first two turns of each conversation, as vLLM's benchmark does: prompt and answer.

    Conversations of fewer turns are dropped (``fewer_than_two_turns``). Token counts come from
    ``tokenizer`` (a ``tokenizer.json``) or from ``chars_per_token``; arrivals are Poisson. Notes
    say so.
    """
    count, how = counter(source, chars_per_token, tokenizer)
    pairs, short = [], 0
    for n, entry in enumerate(_entries(source)):
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            raise source.fail(f"entry {n}: expected a list `conversations`")
        texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
        if len(texts) < 2:
            short += 1
            continue
        if not all(isinstance(text, str) for text in texts):
            raise source.fail(f"entry {n}: expected turns with a text `value`")
        pairs.append((count(str(texts[0])), count(str(texts[1]))))
    arrival, note = invented(len(pairs), rate_per_s, seed)
    draft = Draft(
        arrival_us=arrival * 1e6,
        prompt_tokens=[prompt for prompt, _ in pairs],
        output_tokens=[output for _, output in pairs],
        dropped={"fewer_than_two_turns": short},
        notes=(how, note),
    )
    return finish(source, "sharegpt", draft, zero_output=zero_output)


def _entries(source: Source) -> list[Json]:
    if source.text(64).lstrip().startswith("["):
        whole = source.json()
        return whole if isinstance(whole, list) else [whole]
    return [row for _, row in source.rows()]
