"""Parts of a trace that can be replayed apart from each other."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.trace import Request


def parted(requests: Sequence[Request], parts: int) -> list[list[Request]]:
    """Part requests into at most so many lists, alike in output tokens, each in order.

    Requests of one session, and those that wait for each other, stay together.
    """
    out: list[list[Request]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    chosen: dict[int, int] = {}
    for group, request in zip(_groups(requests), requests, strict=True):
        part = chosen.setdefault(group, tokens.index(min(tokens)))
        tokens[part] += request.output_tokens
        out[part].append(request)
    return [part for part in out if part]


def _groups(requests: Sequence[Request]) -> list[int]:
    """Return one number per request, the same for those that belong together."""
    rows = {request.id: row for row, request in enumerate(requests)}
    firsts: dict[int, int] = {}
    joined = list(range(len(requests)))

    def root(row: int) -> int:
        while joined[row] != row:
            joined[row] = joined[joined[row]]
            row = joined[row]
        return row

    for row, request in enumerate(requests):
        together = [rows[parent] for parent in request.parents if parent in rows]
        if request.session >= 0:
            together.append(firsts.setdefault(request.session, row))
        for other in together:
            joined[root(row)] = root(other)
    return [root(row) for row in range(len(requests))]
