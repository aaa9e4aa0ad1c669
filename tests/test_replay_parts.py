"""Parts of a trace: whole sessions, nothing lost, alike in size."""

import random

from tuner.replay_parts import parted
from tuner.trace import Request


def trace(n: int, sessions: int, seed: int) -> list[Request]:
    """Return single requests and sessions of chains, some of which wait for another session."""
    draw = random.Random(seed)
    last: dict[int, int] = {}
    made = []
    for i in range(n):
        session = draw.randrange(-sessions, sessions)
        parents = (last[session],) if session in last else ()
        if i and draw.random() < 0.05:
            parents = (*parents, draw.randrange(i))
        made.append(
            Request(
                3 * i,
                i * 0.1,
                4,
                draw.randrange(1, 9),
                session=max(session, -1),
                parents=tuple(3 * p for p in parents),
            )
        )
        if session >= 0:
            last[session] = i
    return made


def test_every_request_has_one_part_with_its_session_and_its_parents() -> None:
    for seed in range(20):
        requests = trace(60, 8, seed)
        parts = parted(requests, 3)
        assert sorted(r.id for part in parts for r in part) == [r.id for r in requests]
        part_of = {r.id: i for i, part in enumerate(parts) for r in part}
        for part in parts:
            assert [r.arrival_s for r in part] == sorted(r.arrival_s for r in part)
        sessions = {(r.session, part_of[r.id]) for r in requests if r.session >= 0}
        assert len({session for session, _ in sessions}) == len(sessions)
        assert all(part_of[p] == part_of[r.id] for r in requests for p in r.parents)


def test_parts_have_about_the_same_work_at_all_times() -> None:
    requests = [Request(i, i * 0.1, 4, 1 + i % 7) for i in range(200)]
    parts = parted(requests, 4)
    for until in (50, 100, 200):
        tokens = [sum(r.output_tokens for r in part if r.id < until) for part in parts]
        assert max(tokens) - min(tokens) <= 7


def test_a_parent_outside_of_the_requests_joins_nothing() -> None:
    alone = [Request(5, 0.0, 4, 1, parents=(1,)), Request(6, 0.0, 4, 1, parents=(1,))]
    assert [len(part) for part in parted(alone, 2)] == [1, 1]


def test_there_are_no_more_parts_than_sessions() -> None:
    one = [Request(i, 0.0, 4, 1, session=7) for i in range(5)]
    assert [len(part) for part in parted(one, 4)] == [5]
    assert parted([], 4) == []
