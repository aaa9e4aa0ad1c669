"""Token counts of texts, exact with a tokenizer or by a stated rule of thumb."""

from __future__ import annotations

import math
from collections.abc import Callable

from tuner.traces.source import Source

Counter = Callable[[str], int]


def counter(source: Source, chars_per_token: float, tokenizer: str | None) -> tuple[Counter, str]:
    """Return a function that counts a text's tokens, and the note that says how.

    ``tokenizer`` is the path of a ``tokenizer.json``; without one, characters are divided.
    """
    if tokenizer is None:
        if chars_per_token <= 0:
            raise source.fail("chars_per_token: must be > 0")
        note = f"token counts are estimates: {chars_per_token:g} characters per token"
        return lambda text: math.ceil(len(text) / chars_per_token), note
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(tokenizer)
    except Exception as error:  # the library raises plain Exception for every fault of the file
        raise source.fail(f"tokenizer {tokenizer}: {error}") from error
    return lambda text: len(loaded.encode(text).ids), f"token counts by {tokenizer}"
