"""Agentic coding sessions of kv-cache-tester ("weka"): one JSON object per session, or a folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.config import Json
from tuner.errors import TraceError
from tuner.trace import UNKNOWN_GAP, Ragged, Trace
from tuner.traces.arrivals import invented
from tuner.traces.draft import SECOND_US, Draft, ZeroOutput, finish
from tuner.traces.hashed import BlockColumn
from tuner.traces.source import MOST, Head, Row, Source


def recognises(head: Head) -> bool:
    """Whether it is a session with its own scope of hashes."""
    start = head.text[:4096]
    return '"hash_id_scope"' in start and '"block_size"' in start


def read(
    source: Source, *, rate_per_s: float = 0.1, seed: int = 0, zero_output: ZeroOutput = "drop"
) -> Trace:
    """Read a session file (or JSONL of sessions), or a folder of ``*.json`` sessions.

    The files know no common clock: sessions start by a Poisson process of ``rate_per_s`` in the
    order of the file names. Times are whole seconds. Block ids, local to a session, are made
    unique. A sub-agent's requests belong to the session; the first waits for the turn before,
    and the next turn waits for its last. Tokens after the last full block are a fresh tail.
    """
    found = _Rows()
    sessions = [(file, data) for file in source.files() for data in _sessions(Source(file))]
    starts, note = invented(len(sessions), rate_per_s, seed)
    for number, (file, session) in enumerate(sessions):
        found.add_session(Source(file), session, number, float(starts[number]))
    draft = Draft(
        arrival_us=np.asarray(found.start_s) * 1e6,
        prompt_tokens=found.prompt,
        output_tokens=found.output,
        columns=found.columns(),
        resolution_us=SECOND_US,
        notes=(f"session starts: {note}", "block ids are local to a session; none are shared"),
    )
    return finish(source, "weka", draft, zero_output=zero_output)


def _sessions(source: Source) -> list[dict[str, Json]]:
    try:
        whole = source.json()
        found = whole if isinstance(whole, list) else [whole]
    except TraceError:
        found = [row for _, row in source.rows()]
    return source.objects(found, "session")


def _unmeasured(requests: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Forget a sub-agent's first think time, which is not on its parent's clock."""
    return [{**requests[0], "think_time": None}, *requests[1:]] if requests else []


@dataclass(slots=True)
class _Rows:
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    parents: list[list[int]] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    blocks: BlockColumn = field(default_factory=BlockColumn)
    #: First id that no session has used yet.
    free_id: int = 0

    def add_session(self, source: Source, data: dict[str, Json], number: int, at: float) -> None:
        size = source.number({"block_size": 64, **data}, "block_size", 0)
        if not 1 <= size < MOST or size != int(size):
            raise source.fail(f"block_size: expected a whole number of tokens, found {size:g}")
        local = _Local(source, number, int(size), self.free_id)
        self._add_requests(local, source.objects(data.get("requests"), "requests"), at, [])
        self.free_id = local.next_free

    def _add_requests(
        self, local: _Local, requests: list[dict[str, Json]], at: float, waits_for: list[int]
    ) -> list[int]:
        """Add requests in order; return the rows that whatever comes next has to wait for.

        Sub-agents between two turns start after the turn before them, side by side.
        """
        for request in requests:
            began = at + local.source.number(request, "t", 0)
            if request.get("type") == "subagent":
                requests_inside = local.source.objects(request.get("requests", []), "requests")
                inner = self._add_requests(
                    local, _unmeasured(requests_inside), began, waits_for[:1]
                )
                waits_for = [*waits_for, *(row for row in inner if row not in waits_for)]
            else:
                self._add(local, request, began, waits_for)
                waits_for = [len(self.prompt) - 1]
        return waits_for

    def _add(self, local: _Local, request: Row, began: float, parents: list[int]) -> None:
        number = local.source.number
        self.start_s.append(began)
        self.end_s.append(began + number(request, "api_time", 0))
        self.prompt.append(number(request, "in", 0))
        self.output.append(number(request, "out", 0))
        self.session.append(local.session)
        self.parents.append(parents)
        self.think_s.append(number(request, "think_time", 0))
        ids = np.asarray(local.source.ids(request, "hash_ids", 0), np.int64)
        tokens = np.full(len(ids), local.block_size, np.int64)
        if len(ids) * local.block_size > self.prompt[-1]:
            raise local.source.fail(
                f"request {len(self.prompt)}: {len(ids)} blocks of {local.block_size} tokens "
                f"do not fit a prompt of {self.prompt[-1]:g} tokens"
            )
        self.blocks.add((ids + local.first_id, tokens))
        local.next_free = max(local.next_free, int(ids.max(initial=-1)) + local.first_id + 1)

    def columns(self) -> dict[str, Any]:
        gaps = [self._gap_us(row) for row in range(len(self.prompt))]
        return {
            **self.blocks.columns(),
            "session": np.asarray(self.session, np.int64),
            "parents": Ragged.of(self.parents),
            "gap_us": np.asarray(gaps, np.int64),
        }

    def _gap_us(self, row: int) -> int:
        """Return the think time: as recorded after one turn, from the ends after sub-agents."""
        parents = self.parents[row]
        if not parents:
            return UNKNOWN_GAP
        think = self.think_s[row]
        if len(parents) > 1 or math.isnan(think):
            think = max(0.0, self.start_s[row] - max(self.end_s[parent] for parent in parents))
        return round(think * 1e6) if 0 <= think * 1e6 < MOST else UNKNOWN_GAP


@dataclass(slots=True)
class _Local:
    """What is local to one session."""

    source: Source
    session: int
    block_size: int
    first_id: int
    next_free: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_free = self.first_id
