"""RAGPulse: retrieval-augmented questions, each prompt a list of components with known lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tuner.trace import Trace
from tuner.traces.draft import SECOND_US, Draft, ZeroOutput, finish
from tuner.traces.hashed import BlockColumn, Pair
from tuner.traces.own import numbered
from tuner.traces.source import Head, Row, Source

#: Component lists in prompt order -> (part of the length table's file name, its id column).
_PARTS = {
    "sys_prompt": ("sys_prompt", "sys_prompt_id"),
    "passages_ids": ("passages", "passage_id"),
    "history": ("history", "history_id"),
    "web_search": ("web_search", "web_search_id"),
    "user_input": ("user_input", "user_input_id"),
}
#: (list, component id) -> (block id, tokens).
Lengths = Mapping[tuple[str, int], tuple[int, int]]


def recognises(head: Head) -> bool:
    """Whether it is the request file, or one of the length tables (which ``read`` refuses)."""
    if isinstance(head.first.get("hash_ids"), dict) and "input_length" in head.first:
        return True
    return head.has_keys("token_length") and len(head.first) == 2


def read(source: Source, *, zero_output: ZeroOutput = "drop") -> Trace:
    """Read ``timestamp`` (text of whole seconds), lengths, ``session_id`` and component ids.

    Needs the five length tables beside the file. Components become blocks in prompt order (system
    prompt, passages, history, web, user); the template tokens between them are a fresh tail.
    """
    if "input_length" not in next(source.rows(), (0, {"input_length": 0}))[1]:
        raise source.fail("is a length table of RAGPulse; give the trace file beside it")
    lengths = _lengths(source)
    times, prompts, outputs, sessions = [], [], [], []
    blocks = BlockColumn()
    for line, row in source.rows():
        times.append(source.number(row, "timestamp", line) * SECOND_US)
        prompts.append(source.number(row, "input_length", line))
        outputs.append(source.number(row, "output_length", line))
        sessions.append(row.get("session_id"))
        blocks.add(_components(source, row, line, lengths))
    draft = Draft(
        arrival_us=times,
        prompt_tokens=prompts,
        output_tokens=outputs,
        columns={**blocks.columns(), "session": numbered(sessions)},
        resolution_us=SECOND_US,
        chain=True,
    )
    return finish(source, "ragpulse", draft, zero_output=zero_output)


def _lengths(source: Source) -> Lengths:
    known: dict[tuple[str, int], tuple[int, int]] = {}
    for name, (part, column) in _PARTS.items():
        tables = [p for p in source.path.parent.glob(f"*{part}*.jsonl*") if p != source.path]
        if len(tables) != 1:
            raise source.fail(
                f"expected one length table *{part}*.jsonl beside the trace, found {len(tables)}"
            )
        _add(Source(Path(tables[0])), name, column, known)
    return known


def _add(
    source: Source, name: str, column: str, known: dict[tuple[str, int], tuple[int, int]]
) -> None:
    for line, row in source.rows():
        number = source.number(row, column, line)
        tokens = source.number(row, "token_length", line)
        if not (number >= 0 and tokens >= 0):
            raise source.fail(f"expected {column} and token_length, both >= 0", line=line)
        known[name, int(number)] = (len(known), int(tokens))


def _components(source: Source, row: Row, line: int, lengths: Lengths) -> Pair:
    given = source.object(row.get("hash_ids") or {}, "hash_ids", line)
    unknown = set(given) - set(_PARTS)
    if unknown:
        raise source.fail(f"hash_ids: unknown lists {', '.join(sorted(unknown))}", line=line)
    found = []
    for name in _PARTS:
        for number in source.ids(given, name, line):
            if (name, number) not in lengths:
                raise source.fail(f"{name}: id {number} is not in its length table", line=line)
            found.append(lengths[name, number])
    # A component without tokens shares nothing.
    pairs = np.asarray([pair for pair in found if pair[1]], np.int64).reshape(-1, 2)
    total, prompt = int(pairs[:, 1].sum()), source.number(row, "input_length", line)
    if total > prompt:
        raise source.fail(
            f"components of {total} tokens do not fit a prompt of {prompt:g} tokens", line=line
        )
    return pairs[:, 0], pairs[:, 1]
