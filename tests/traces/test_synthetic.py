"""Made workloads: seeded, and with the statistics that were asked for."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tuner import traces
from tuner.errors import TraceError
from tuner.trace import Trace
from tuner.traces import own
from tuner.traces.describe import dispersion, gap_cv
from tuner.traces.synthetic import generate

WORKLOADS = Path(__file__).parent.parent.parent / "workloads" / "traces"


def test_the_same_mapping_gives_the_same_trace():
    spec = {"requests": 50, "chat": {}, "system_prompts": {"count": 2}}
    assert generate(spec).digest == generate(spec).digest
    assert generate({**spec, "seed": 1}).digest != generate(spec).digest
    assert generate(spec).provenance.transforms[0]["op"] == "generate"


@pytest.mark.parametrize(
    ("arrivals", "cv"), [("poisson", 1.0), ({"gamma": {"cv": 3.0}}, 3.0), ("constant", 0.0)]
)
def test_gaps_vary_as_asked(arrivals, cv):
    trace = generate({"requests": 20_000, "rate_per_s": 10, "arrivals": arrivals})
    assert trace.rate_per_s == pytest.approx(10, rel=0.06)
    assert gap_cv(trace.arrival_us) == pytest.approx(cv, rel=0.06, abs=1e-6)


def test_bursts_are_as_dense_as_asked_at_the_same_mean():
    shape = {"bursts": {"every_s": 50, "length_s": 5, "factor": 8}}
    trace = generate({"requests": 20_000, "rate_per_s": 10, "arrivals": shape})
    assert trace.rate_per_s == pytest.approx(10, rel=0.03)
    inside = trace.arrival_us / 1e6 % 50 < 5
    dense, thin = inside.sum() / 5, (~inside).sum() / 45
    assert dense / thin == pytest.approx(8, rel=0.1)
    assert dispersion(trace.arrival_us, 10) > 5


def test_a_day_has_a_quiet_start_and_a_busy_middle():
    shape = {"daily": {"period_s": 1000, "amplitude": 0.8}}
    trace = generate({"requests": 20_000, "rate_per_s": 20, "arrivals": shape})
    counts = np.histogram(trace.arrival_us / 1e6 % 1000, bins=10, range=(0, 1000))[0]
    assert counts[4] > 5 * counts[0]
    assert trace.rate_per_s == pytest.approx(20, rel=0.03)


def test_a_batch_is_there_at_once():
    assert generate({"requests": 5, "arrivals": "offline"}).span_s == 0


def test_lengths_follow_their_distribution():
    trace = generate(
        {
            "requests": 50_000,
            "prompt_tokens": {"lognormal": {"median": 500, "p99": 5000, "max": 8000}},
            "output_tokens": 64,
        }
    )
    assert np.percentile(trace.prompt_tokens, [50, 99]) == pytest.approx([500, 5000], rel=0.05)
    assert trace.prompt_tokens.max() <= 8000
    assert set(trace.output_tokens.tolist()) == {64}


def test_empirical_lengths_keep_their_pairs(tmp_path):
    path = tmp_path / "t.jsonl"
    own.write(Trace.build([0, 1, 2], [10, 20, 30], [1, 2, 3]), path)
    lengths = {"empirical": {"path": str(path)}}
    trace = generate({"requests": 100, "prompt_tokens": lengths, "output_tokens": lengths})
    assert np.array_equal(trace.prompt_tokens, trace.output_tokens * 10)
    alone = generate({"requests": 100, "prompt_tokens": lengths, "output_tokens": 5})
    assert set(alone.prompt_tokens.tolist()) == {10, 20, 30}


def test_system_prompts_are_shared_and_skewed():
    trace = generate({"requests": 3000, "system_prompts": {"count": 3, "tokens": 100, "skew": 1.0}})
    counts = np.bincount(trace.blocks.values)
    assert counts / counts.sum() == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.04)
    assert set(trace.block_tokens.values.tolist()) == {100}
    assert (trace.prompt_tokens > 100).all()


def test_a_conversation_grows_by_question_and_answer():
    trace = generate(
        {
            "requests": 40,
            "rate_per_s": 0.01,
            "prompt_tokens": 7,
            "output_tokens": 5,
            "system_prompts": {"tokens": 20},
            "chat": {"turns_mean": 4, "think_s": 2},
        }
    )
    turns = {}
    for request in trace:
        turn = turns.get(request.session, 0)
        assert request.prompt_tokens == 20 + 7 + 12 * turn
        assert request.block_tokens == (20, 7, *(5, 7) * turn)
        assert len(request.parents) == (turn > 0)
        assert (request.gap_s is None) == (turn == 0)
        if turn:
            (parent,) = request.parents
            assert trace[parent].session == request.session
            assert request.blocks[:-2] == trace[parent].blocks
        turns[request.session] = turn + 1
    assert sum(turns.values()) / len(turns) == pytest.approx(4, rel=0.3)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"request": 5}, "synthetic.request: unknown; did you mean requests"),
        ({"chat": {"turns": 5}}, "synthetic.chat.turns: unknown"),
        ({"arrivals": "poison"}, "arrivals: no 'poison'; did you mean poisson"),
        ({"arrivals": {"gamma": {"cv": 0}}}, "cv must be > 0"),
        ({"arrivals": {"gamma": {"shape": 2}}}, "no parameter shape"),
        ({"prompt_tokens": 0}, "prompt_tokens: must be at least 1"),
        ({"prompt_tokens": {"lognormal": {"median": 5, "p99": 4}}}, "0 < median <= p99"),
        ({"prompt_tokens": {"lognormal": {"median": 5}}}, "p99"),
        ({"requests": 0}, "requests must be at least 1"),
        ({"system_prompts": {"count": 0}}, "count and tokens must be at least 1"),
        ({"chat": {"turns_mean": 0.5}}, "must be at least 1"),
    ],
)
def test_a_bad_mapping_is_explained(spec, said):
    with pytest.raises(TraceError, match=said):
        generate(spec)


def test_the_small_traces_here_are_what_their_script_makes():
    found = importlib.util.spec_from_file_location("make", WORKLOADS / "make.py")
    make = importlib.util.module_from_spec(found)
    found.loader.exec_module(make)
    for name, spec in make.SPECS.items():
        assert traces.read(WORKLOADS / name).digest == generate(spec).digest
    chat = traces.read(WORKLOADS / "chat.jsonl")
    assert 130 <= len(chat) <= 150
    assert 7 < chat.span_s < 8.5
    assert chat.prompt_tokens.min() >= 30
    assert chat.prompt_tokens.max() <= 250
    assert 2_400 < chat.output_tokens.sum() < 2_800
