"""Columns, order, parents and the digest of a trace."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tuner.trace import Ragged, Trace

rows_of_numbers = st.lists(st.lists(st.integers(0, 2**40), max_size=5), max_size=8)


@given(rows_of_numbers, st.randoms(use_true_random=False))
def test_ragged_gives_back_its_rows_in_any_order(rows, random):
    ragged = Ragged.of(rows)
    assert [row.tolist() for row in ragged] == rows
    order = list(range(len(rows)))
    random.shuffle(order)
    taken = ragged.take(np.asarray(order, np.int64))
    assert [row.tolist() for row in taken] == [rows[n] for n in order]


def test_ragged_takes_arrays_as_rows():
    ragged = Ragged.of([np.arange(3), [], np.arange(2)])
    assert [row.tolist() for row in ragged] == [[0, 1, 2], [], [0, 1]]


def test_build_sorts_stably_starts_at_zero_and_renumbers_parents():
    trace = Trace.build(
        [3_000_000, 1_000_000, 3_000_000],
        [30, 10, 31],
        [3, 1, 3],
        parents=Ragged.of([[1], [], [0]]),
        gap_us=np.asarray([500_000, -1, 0]),
    )
    assert trace.arrival_us.tolist() == [0, 2_000_000, 2_000_000]
    assert trace.prompt_tokens.tolist() == [10, 30, 31]
    assert [request.parents for request in trace] == [(), (0,), (1,)]
    assert [request.gap_s for request in trace] == [None, 0.5, 0.0]


def test_take_forgets_parents_that_are_left_out():
    trace = Trace.build([0, 1, 2], [1, 2, 3], [1, 1, 1], parents=Ragged.of([[], [0], [0, 1]]))
    kept = trace.take(np.asarray([0, 2]))
    assert [request.parents for request in kept] == [(), (0,)]


def test_digest_follows_what_is_sent_and_not_the_name():
    one = Trace.build([0, 10], [5, 6], [1, 2], name="a")
    same = Trace.build([0, 10], [5, 6], [1, 2], name="b")
    assert one.digest == same.digest
    others = [
        Trace.build([0, 11], [5, 6], [1, 2]),
        Trace.build([0, 10], [5, 7], [1, 2]),
        Trace.build([0, 10], [5, 6], [1, 3]),
        Trace.build([0, 10], [5, 6], [1, 2], session=np.asarray([0, 0])),
        Trace.build([0, 10], [5, 6], [1, 2], priority=np.asarray([0, 1])),
    ]
    assert len({one.digest, *(trace.digest for trace in others)}) == 6


def test_an_empty_trace_has_no_rate():
    trace = Trace.build([], [], [])
    assert (len(trace), trace.span_s, trace.rate_per_s) == (0, 0.0, None)
