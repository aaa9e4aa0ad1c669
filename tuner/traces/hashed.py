"""JSONL rows with a time, two lengths and ids of equal prefix blocks (Mooncake, timed_trace)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.trace import IntArray, Ragged
from tuner.traces.draft import Draft
from tuner.traces.source import MOST, Row, Source

Pair = tuple[IntArray, IntArray]


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of the columns, the unit of the time, and the tokens of a block."""

    block_size: int
    #: Microseconds per unit of the time column.
    unit_us: float
    time: str = "timestamp"
    prompt: str = "input_length"
    output: str = "output_length"
    ids: str = "hash_ids"


@dataclass(slots=True)
class BlockColumn:
    """Collects the blocks of each row."""

    ids: list[IntArray] = field(default_factory=list)
    tokens: list[IntArray] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        """Append a row."""
        self.ids.append(pair[0])
        self.tokens.append(pair[1])

    def columns(self) -> dict[str, Any]:
        """Return them as columns of a Trace, {} where no row has any."""
        if not any(len(ids) for ids in self.ids):
            return {}
        return {"blocks": Ragged.of(self.ids), "block_tokens": Ragged.of(self.tokens)}


def draft(source: Source, layout: Layout) -> Draft:
    """Read the rows. TraceError names the line whose ids do not fit its length."""
    times, prompts, outputs = [], [], []
    blocks = BlockColumn()
    for line, row in source.rows():
        times.append(source.number(row, layout.time, line) * layout.unit_us)
        prompts.append(source.number(row, layout.prompt, line))
        outputs.append(source.number(row, layout.output, line))
        blocks.add(full_blocks(source, row, line, layout))
    return Draft(
        arrival_us=times, prompt_tokens=prompts, output_tokens=outputs, columns=blocks.columns()
    )


def full_blocks(source: Source, row: Row, line: int, layout: Layout) -> Pair:
    """Return the ids and tokens of a row's blocks; the last block may be partial.

    TraceError, with the block size that would fit, where the number of ids is not the prompt's
    length divided by the block size, rounded up (C43).
    """
    ids = np.asarray(source.ids(row, layout.ids, line), np.int64)
    length = source.number(row, layout.prompt, line)
    if not len(ids) or not 0 < length < MOST:
        return ids[:0], ids[:0]
    prompt, size = int(length), layout.block_size
    if size < 1:
        raise source.fail(f"block_size: expected at least 1, found {size}")
    if not size * (len(ids) - 1) < prompt <= size * len(ids):
        raise source.fail(
            f"{layout.ids}: {len(ids)} ids do not fit {prompt} tokens in blocks of {size}",
            line=line,
            hint=f"Give the block size of this file: block_size={_fitting(prompt, len(ids))}.",
        )
    tokens = np.full(len(ids), size, np.int64)
    tokens[-1] = prompt - size * (len(ids) - 1)
    return ids, tokens


def _fitting(prompt: int, count: int) -> str:
    """Return the usual block sizes that fit, or the range of all that do."""
    usual = [size for size in (16, 32, 64, 128, 256, 512, 1024) if -(-prompt // size) == count]
    if usual:
        return " or ".join(map(str, usual))
    low = -(-prompt // count)
    return f"{low}" if count == 1 else f"{low}..{(prompt - 1) // (count - 1)}"


def first_ids(row: Mapping[str, Any], key: str = "hash_ids") -> bool:
    """Whether the row has a list of ids (for detection)."""
    return isinstance(row.get(key), list)
