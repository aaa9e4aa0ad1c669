"""A recorded workload: requests in order of arrival, kept as columns so that millions fit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tuner.config import Json, canonical

IntArray = NDArray[np.integer[Any]]
UNKNOWN_GAP = -1


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace. Times are seconds from the start of the trace."""

    id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    #: Ids of the leading prompt segments. Equal ids mean equal tokens; the rest is fresh.
    blocks: tuple[int, ...] = ()
    #: Tokens of each block (same length as ``blocks``).
    block_tokens: tuple[int, ...] = ()
    session: int = -1
    #: Ids of the requests that must end before this one is sent.
    parents: tuple[int, ...] = ()
    #: Think time: end of the last parent to this arrival. None where unknown.
    gap_s: float | None = None
    slo_class: str = "default"
    #: vLLM's sense: lower goes first.
    priority: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A list of integer lists of unequal length: row i is ``values[offsets[i]:offsets[i+1]]``."""

    offsets: IntArray
    values: IntArray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | IntArray]) -> Self:
        """Pack rows (lists or arrays) of non-negative integers."""
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        filled = [np.asarray(row, np.int64) for row in rows if len(row)]
        return cls(offsets, np.concatenate(filled) if filled else np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> IntArray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: IntArray) -> Ragged:
        """Return the given rows, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Ragged(offsets, self.values[np.repeat(self.offsets[:-1][rows], lengths) + inside])


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a trace comes from and everything that was done to it, in order."""

    source: str = ""
    format: str = ""
    source_sha256: str = ""
    rows_read: int = 0
    #: Reason -> rows. ``rows_read == requests as read + sum(dropped.values())``.
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: ``{"op": name, ...parameters}`` per transform.
    transforms: tuple[dict[str, Json], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests sorted by arrival, as columns of n rows. Build one with ``Trace.build``."""

    arrival_us: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    #: Leading segment ids per request, and the tokens of each (same shape).
    blocks: Ragged | None = None
    block_tokens: Ragged | None = None
    #: Session number per request, -1 for none.
    session: IntArray | None = None
    #: Row numbers of the parents per request.
    parents: Ragged | None = None
    #: Think time in microseconds, UNKNOWN_GAP where unknown.
    gap_us: IntArray | None = None
    #: Index into ``class_names`` per request.
    slo_class: IntArray | None = None
    class_names: tuple[str, ...] = ("default",)
    priority: IntArray | None = None
    #: Coarsest step of the recorded times: 1, 1000, 1_000_000, ...
    resolution_us: int = 1
    #: Requests that arrive before this time warm the caches: sent, but not to be scored.
    lead_in_us: int = 0
    name: str = "trace"
    provenance: Provenance = field(default_factory=Provenance)

    @classmethod
    def build(cls, arrival_us: Any, prompt_tokens: Any, output_tokens: Any, **columns: Any) -> Self:
        """Make a trace from columns in any order: sorts (stably) and starts the clock at 0.

        ``parents`` are row numbers of the given, unsorted order and must point to other rows.
        """
        arrival = np.asarray(arrival_us, np.int64)
        trace = cls(
            arrival,
            np.asarray(prompt_tokens, np.int32),
            np.asarray(output_tokens, np.int32),
            **columns,
        )
        order = np.argsort(arrival, kind="stable")
        trace = trace.take(order)
        start = trace.arrival_us[0] if len(trace) else 0
        return replace(trace, arrival_us=trace.arrival_us - start)

    def __len__(self) -> int:
        return len(self.arrival_us)

    def __getitem__(self, row: int) -> Request:
        blocks = () if self.blocks is None else tuple(self.blocks[row].tolist())
        sizes = () if self.block_tokens is None else tuple(self.block_tokens[row].tolist())
        gap = UNKNOWN_GAP if self.gap_us is None else int(self.gap_us[row])
        return Request(
            id=row,
            arrival_s=float(self.arrival_us[row]) / 1e6,
            prompt_tokens=int(self.prompt_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            blocks=blocks,
            block_tokens=sizes,
            session=-1 if self.session is None else int(self.session[row]),
            parents=() if self.parents is None else tuple(self.parents[row].tolist()),
            gap_s=None if gap == UNKNOWN_GAP else gap / 1e6,
            slo_class=self.class_names[0 if self.slo_class is None else int(self.slo_class[row])],
            priority=0 if self.priority is None else int(self.priority[row]),
        )

    def __iter__(self) -> Iterator[Request]:
        return (self[row] for row in range(len(self)))

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last arrival; 0 for fewer than two requests."""
        return float(self.arrival_us[-1] - self.arrival_us[0]) / 1e6 if len(self) else 0.0

    @property
    def rate_per_s(self) -> float | None:
        """Mean arrivals per second, None where the span is zero."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else None

    @property
    def digest(self) -> str:
        """16 hex digits over everything that decides what is sent and when (not over the name)."""
        hasher = hashlib.sha256()
        for item in fields(self):
            value = getattr(self, item.name)
            parts = (value.offsets, value.values) if isinstance(value, Ragged) else (value,)
            for part in parts:
                if isinstance(part, np.ndarray):
                    hasher.update(item.name.encode())
                    hasher.update(np.ascontiguousarray(part, "<i8").tobytes())
        hasher.update(canonical(list(self.class_names)).encode())
        return hasher.hexdigest()[:16]

    def take(self, rows: IntArray) -> Self:
        """Return the given rows in that order; parents outside them are forgotten."""
        changes: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "parents" and value is not None:
                changes["parents"] = _renumbered(value, rows)
            elif isinstance(value, Ragged):
                changes[item.name] = value.take(rows)
            elif isinstance(value, np.ndarray):
                changes[item.name] = value[rows]
        return replace(self, **changes)

    def recorded(self, op: str, **parameters: Json) -> Self:
        """Return the trace with one more step in its provenance."""
        step = {"op": op, **parameters}
        done = replace(self.provenance, transforms=(*self.provenance.transforms, step))
        return replace(self, provenance=done)


def _renumbered(parents: Ragged, rows: IntArray) -> Ragged:
    new_row = np.full(len(parents), -1, np.int64)
    new_row[rows] = np.arange(len(rows))
    kept = parents.take(rows)
    values = new_row[kept.values]
    owner = np.repeat(np.arange(len(rows)), np.diff(kept.offsets))
    present = values >= 0
    counts = np.bincount(owner[present], minlength=len(rows))
    return Ragged(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), values[present])
