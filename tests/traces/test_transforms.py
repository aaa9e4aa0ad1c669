"""Transforms: what they keep, what they change, and that they say so."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.traces.made import BLOCK, block_traces
from tests.traces.shared import SHARED, needs_shared
from tuner import traces
from tuner.errors import TraceError
from tuner.trace import Ragged, Trace
from tuner.traces import transforms
from tuner.traces.groups import prefix_groups, session_groups, share_too_early
from tuner.traces.lengths import block_size, grouped, length_scale, max_tokens, row_sums
from tuner.traces.reuse import predicted_hit_share
from tuner.traces.transforms import apply, head, hold_out, rate_scale, spread_ties, thin, window

STEPS = [
    {"window": {"start_s": 0, "duration_s": 60}},
    {"head": 5},
    {"rate_scale": 2.0},
    {"thin": {"keep": 0.6, "by": "request"}},
    {"length_scale": 2},
    {"max_tokens": {"max_tokens": 300, "policy": "cap"}},
    {"spread_ties": {"resolution_s": 3}},
]


def sound(trace):
    """Check what holds for every trace."""
    assert (np.diff(trace.arrival_us) >= 0).all()
    assert (trace.prompt_tokens >= 1).all()
    assert (row_sums(trace.block_tokens) <= trace.prompt_tokens).all()
    assert np.array_equal(trace.blocks.offsets, trace.block_tokens.offsets)
    assert (trace.block_tokens.values >= 1).all()


@given(block_traces(), st.sampled_from(STEPS))
def test_every_step_is_recorded_sound_and_repeatable(trace, step):
    name = next(iter(step))
    try:
        done = apply(trace, [step])
    except TraceError:
        assume(False)
    sound(done)
    (record,) = done.provenance.transforms
    assert record["op"] == name
    assert apply(trace, [step]).digest == done.digest
    assert apply(trace, [record]).digest == done.digest
    assert trace.provenance.transforms == ()


@given(block_traces(), st.floats(0.1, 10))
def test_time_warp_keeps_order_count_and_lengths(trace, k):
    done = rate_scale(trace, k)
    assert len(done) == len(trace)
    assert np.array_equal(done.prompt_tokens, trace.prompt_tokens)
    assert done.span_s == pytest.approx(trace.span_s / k, abs=2e-6)
    assert predicted_hit_share(done) == predicted_hit_share(trace)


def test_time_warp_leaves_think_times_unless_asked():
    trace = Trace.build([0, 8], [1, 1], [1, 1], gap_us=np.asarray([-1, 4]))
    assert rate_scale(trace, 2).gap_us.tolist() == [-1, 4]
    assert rate_scale(trace, 2, scale_gaps=True).gap_us.tolist() == [-1, 2]


@given(block_traces(), st.floats(0.05, 1), st.integers(0, 5))
def test_thinning_keeps_whole_sessions_and_smaller_is_a_subset(trace, keep, seed):
    groups = session_groups(trace)
    large = thin(trace, keep, seed=seed)
    kept = set(large.arrival_us.tolist())
    small = thin(trace, keep / 2, seed=seed)
    assert set(small.arrival_us.tolist()) <= kept
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        if len(set(trace.arrival_us.tolist())) == len(trace):
            assert len({bool(trace.arrival_us[n] in kept) for n in members}) == 1
    assert len(thin(trace, 1.0)) == len(trace)


def test_thinning_by_request_keeps_about_the_share():
    trace = Trace.build(np.arange(20_000), np.ones(20_000), np.ones(20_000))
    done = thin(trace, 0.3)
    assert done.provenance.transforms[-1] == {
        "op": "thin",
        "keep": 0.3,
        "by": "request",
        "seed": 0,
    }
    assert len(done) == pytest.approx(6_000, abs=200)
    assert thin(trace, 0.3, seed=1).digest != done.digest


def test_prefix_groups_look_past_the_common_system_prompt():
    trace = Trace.build(
        range(5),
        [40] * 5,
        [1] * 5,
        blocks=Ragged.of([[0, 1], [0, 2], [0, 1, 5], [0], [0, 2]]),
        block_tokens=Ragged.of([[16, 16], [16, 16], [16, 16, 8], [16], [16, 16]]),
    )
    groups = prefix_groups(trace)
    assert groups[0] == groups[2] != groups[1] == groups[4]
    assert len(set(groups.tolist())) == 3


def test_relatives_are_one_group_even_without_a_session():
    trace = Trace.build(
        range(6),
        [1] * 6,
        [1] * 6,
        session=np.asarray([-1, 7, -1, 7, -1, -1]),
        parents=Ragged.of([[], [], [0], [2], [], [4]]),
    )
    assert session_groups(trace).tolist() == [0, 0, 0, 0, 4, 4]


@given(block_traces(), st.floats(0, 100), st.floats(1, 100), st.floats(0, 50))
def test_window_keeps_sessions_that_start_inside(trace, start, duration, lead_in):
    done = window(trace, start, duration, lead_in)
    sound(done)
    begin = round(start * 1e6) - done.lead_in_us
    end = round(start * 1e6) + round(duration * 1e6)
    groups = session_groups(trace)
    first = {g: trace.arrival_us[groups == g].min() for g in np.unique(groups)}
    wanted = [
        int(trace.arrival_us[n]) - begin for n in range(len(trace))
        if begin <= first[groups[n]] < end
    ]  # fmt: skip
    assert done.arrival_us.tolist() == wanted
    assert done.lead_in_us == min(round(lead_in * 1e6), round(start * 1e6))


@given(block_traces(), st.floats(0.1, 0.9), st.floats(0, 30))
def test_hold_out_splits_by_time_without_loss(trace, share, lead_in):
    early, late = hold_out(trace, share, lead_in)
    scored = int((session_starts(late) >= late.lead_in_us).sum())
    assert len(early) + scored == len(trace)
    assert [part.provenance.transforms[-1]["part"] for part in (early, late)] == [
        "tune",
        "held_out",
    ]


def session_starts(trace):
    groups = session_groups(trace)
    return np.asarray([trace.arrival_us[groups == group].min() for group in groups])


@given(block_traces(), st.sampled_from([1, 2, 3, 5]))
def test_scaling_lengths_redefines_the_block_and_keeps_reuse(trace, factor):
    size = block_size(trace)
    assume(size in (None, BLOCK))
    done = length_scale(trace, factor)
    assert np.array_equal(done.blocks.values, trace.blocks.values)
    assert done.prompt_tokens.tolist() == (trace.prompt_tokens * factor).tolist()
    assert done.output_tokens.tolist() == (trace.output_tokens * factor).tolist()
    assert predicted_hit_share(done) == pytest.approx(predicted_hit_share(trace))


def test_scaling_down_rounds_the_block_to_sixteen_and_partials_up():
    trace = Trace.build(
        [0, 1],
        [1034, 3],
        [100, 1],
        blocks=Ragged.of([[1, 2, 3], []]),
        block_tokens=Ragged.of([[512, 512, 9], []]),
    )
    done = length_scale(trace, 0.1, output_alpha=0.5)
    assert done[0].block_tokens == (48, 48, 1)
    assert done.prompt_tokens.tolist() == [98, 1]
    assert done.output_tokens.tolist() == [50, 1]
    assert done.provenance.transforms[-1]["found_prompt_alpha"] == 48 / 512


@given(block_traces(), st.integers(1, 4))
def test_grouping_blocks_keeps_whole_shared_groups(trace, group):
    done = grouped(trace, group)
    sound(done)
    assert np.array_equal(row_sums(done.block_tokens), row_sums(trace.block_tokens))
    assert np.array_equal(done.prompt_tokens, trace.prompt_tokens)
    for one in range(len(trace)):
        for other in range(one):
            before = common(trace, one, other)
            assert common(done, one, other) in (before // group, -(-before // group))


def common(trace, one, other):
    pairs = [list(zip(trace[n].blocks, trace[n].block_tokens, strict=True)) for n in (one, other)]
    same = 0
    for left, right in zip(*pairs, strict=False):
        if left != right:
            break
        same += 1
    return same


def test_scaling_below_a_cache_block_makes_several_blocks_one():
    trace = Trace.build(
        [0, 1],
        [64, 64],
        [10, 10],
        blocks=Ragged.of([[1, 2, 3, 4], [1, 2, 5, 6]]),
        block_tokens=Ragged.of([[16] * 4, [16] * 4]),
    )
    done = length_scale(trace, 0.5)
    assert [request.block_tokens for request in done] == [(16, 16), (16, 16)]
    assert done[0].blocks[0] == done[1].blocks[0]
    assert done[0].blocks[1] != done[1].blocks[1]
    assert predicted_hit_share(done) == predicted_hit_share(trace) == 0.25
    assert done.provenance.transforms[-1]["found_blocks_grouped"] == 2


def test_segments_scale_each_by_itself():
    trace = Trace.build(
        [0], [1000], [1], blocks=Ragged.of([[1, 2]]), block_tokens=Ragged.of([[300, 500]])
    )
    assert length_scale(trace, 0.1)[0].block_tokens == (30, 50)
    assert length_scale(trace, 0.1).prompt_tokens.tolist() == [100]


@given(block_traces(), st.integers(2, 200))
def test_bounding_tokens_counts_what_it_took(trace, limit):
    total = trace.prompt_tokens + trace.output_tokens
    for policy in ("drop", "cap"):
        done = max_tokens(trace, limit, policy)
        sound(done)
        kept = done.prompt_tokens + done.output_tokens
        assert (kept <= limit).all()
        record = done.provenance.transforms[-1]
        assert record["found_requests"] == (total > limit).sum()
        assert record["found_token_share"] == pytest.approx(1 - kept.sum() / total.sum())
        assert len(done) == (len(trace) if policy == "cap" else (total <= limit).sum())


def test_ties_are_spread_inside_the_step_in_their_order():
    trace = Trace.build([0] * 50 + [3_000_000] * 50 + [7_000_000], range(1, 102), [1] * 101)
    done = spread_ties(trace, 3.0)
    assert np.array_equal(done.prompt_tokens, trace.prompt_tokens)
    assert (done.arrival_us[:50] < 3_000_000).all()
    assert (done.arrival_us[50:100] < 6_000_000).all()
    assert done.arrival_us[100] == 7_000_000
    assert len(set(done.arrival_us.tolist())) == 101
    assert done.arrival_us[:50].mean() == pytest.approx(1_500_000, rel=0.2)


def test_coarse_times_are_spread_by_default_and_kept_on_request():
    trace = Trace.build([0, 0, 1_000_000], [1, 2, 3], [1, 1, 1], resolution_us=1_000_000)
    done = apply(trace, [{"rate_scale": 2}])
    assert [step["op"] for step in done.provenance.transforms] == ["spread_ties", "rate_scale"]
    assert done.arrival_us[0] != done.arrival_us[1]
    kept = apply(trace, [{"spread_ties": False}])
    assert (kept.digest, kept.provenance.transforms) == (trace.digest, ())
    assert apply(trace, [{"spread_ties": True}]).resolution_us == 1
    assert apply(done, []).digest == done.digest


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{"widow": {}}], r"transforms\[0\].widow: no such transform; did you mean window"),
        ([{"thin": {"keep": 0.5, "rate": 1}}], "no parameter rate; there are keep, by, seed"),
        ([{"head": 1}, {"head": 0}], r"transforms\[1\].head: n must be at least 1"),
        ([{"head": 1, "thin": 1}], "expected one step"),
        ([{"thin": 2}], r"keep must be in \(0, 1\]"),
        ([{"window": {"start_s": 1e6}}], "leaves no request"),
        ([{"rate_scale": 0}], "k must be > 0"),
        ([{"rate_scale": {}}], "missing 1 required"),
        ([{"max_tokens": {"max_tokens": 5, "policy": "keep"}}], "expected 'drop' or 'cap'"),
        ([{"thin": {"keep": 0.5, "by": "moon"}}], "expected auto, session"),
    ],
)
def test_a_bad_step_is_named(steps, said):
    with pytest.raises(TraceError, match=said):
        apply(Trace.build([0, 1], [5, 5], [1, 1]), steps)


def test_all_bad_steps_are_named_at_once():
    with pytest.raises(TraceError) as caught:
        apply(Trace.build([0], [1], [1]), [{"heads": 1}, {"thin": {"x": 1}}])
    assert len(caught.value.problems) == 2


def test_turns_sent_too_early_are_told_where_ends_are_known():
    trace = Trace.build(
        [0, 10_000_000, 30_000_000],
        [1, 1, 1],
        [1, 1, 1],
        parents=Ragged.of([[], [0], [1]]),
        gap_us=np.asarray([-1, 4_000_000, 15_000_000]),
    )
    # Parents lasted 6 s of 10 s and 5 s of 20 s.
    assert [share_too_early(trace, k) for k in (1, 2, 5)] == [0.0, 0.5, 1.0]
    assert share_too_early(Trace.build([0], [1], [1])) is None


@needs_shared
def test_prefix_thinning_keeps_reuse_and_request_thinning_destroys_it():
    trace = traces.read(SHARED / "mooncake_conversation/conversation_trace.first28min.jsonl")
    whole = predicted_hit_share(trace)
    assert predicted_hit_share(thin(trace, 0.25)) == pytest.approx(whole, abs=0.06)
    assert predicted_hit_share(thin(trace, 0.25, by="request")) < 0.6 * whole
    assert predicted_hit_share(head(length_scale(trace, 1 / 32), 5294)) == pytest.approx(
        whole, abs=0.001
    )


@needs_shared
def test_a_lead_in_restores_reuse():
    trace = traces.read(SHARED / "mooncake_conversation/conversation_trace.first28min.jsonl")
    cold = predicted_hit_share(window(trace, 600, 600))
    warm = window(trace, 600, 600, lead_in_s=300)
    scored = warm.arrival_us >= warm.lead_in_us
    from tuner.traces.reuse import hit_tokens

    share = hit_tokens(warm)[scored].sum() / warm.prompt_tokens[scored].sum()
    assert share > cold + 0.04


def test_the_steps_are_those_of_the_documents():
    assert list(transforms.STEPS) == [
        "window", "head", "rate_scale", "thin", "length_scale", "max_tokens", "spread_ties",
    ]  # fmt: skip
