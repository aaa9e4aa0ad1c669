"""Prompt tokens: pinned values, exactly shared prefixes, ordinary ids only."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.made import block_traces
from tuner.trace import Request
from tuner.traces import tokens
from tuner.traces.reuse import hit_tokens, predicted_hit_share
from tuner.traces.tokens import TokenSource, materialized_digest

REQUEST = Request(3, 0.0, 40, 1, (5, 9), (16, 16))
GOLDEN = [
    25309, 30486, 3534, 20423, 20635, 18673, 475, 30616, 4363, 27779, 19094, 20984, 26206, 23383,
    25697, 4295, 17250, 13441, 13076, 1571, 11644, 15680, 26777, 24751, 5901, 14029, 26297, 13820,
    30642, 25918, 30396, 6606, 7643, 1171, 16221, 24917, 28586, 30046, 13500, 21160,
]  # fmt: skip


def test_tokens_are_pinned():
    """These values may only change together with ``tokens.VERSION``."""
    source = TokenSource("abc", 32_000, 7)
    assert tokens.VERSION == 1
    assert source.prompt(REQUEST) == GOLDEN
    assert source.recipe == "bd501802bbf7bbe7"
    assert materialized_digest(source, [REQUEST]) == "e40f2c187724f092"


def test_another_process_with_another_hash_seed_makes_the_same():
    code = (
        "from tuner.trace import Request; from tuner.traces.tokens import TokenSource;"
        "print(TokenSource('abc', 32000, 7).prompt(Request(3, 0.0, 40, 1, (5, 9), (16, 16))))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "12345"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert ran.stdout.strip() == str(GOLDEN)


def test_the_order_of_use_does_not_matter_nor_does_the_cache(monkeypatch):
    requests = [Request(n, 0.0, 64, 1, (n % 3, 7), (16, 16)) for n in range(9)]
    source = TokenSource("d", 1000, 0)
    forwards = {r.id: source.prompt(r) for r in requests}
    monkeypatch.setattr(tokens, "_CACHE_TOKENS", 20)
    backwards = TokenSource("d", 1000, 0)
    assert all(backwards.prompt(r) == forwards[r.id] for r in reversed(requests))
    assert backwards._cached_tokens <= 20


def test_a_shorter_block_is_the_head_of_the_longer():
    source = TokenSource("d", 1000, 0)
    short = source.prompt(Request(0, 0.0, 10, 1, (4,), (10,)))
    long = source.prompt(Request(1, 0.0, 33, 1, (4,), (33,)))
    again = source.prompt(Request(2, 0.0, 17, 1, (4,), (17,)))
    assert long[:10] == short
    assert long[:17] == again


def test_seed_trace_scope_and_request_each_change_the_tokens():
    plain = Request(0, 0.0, 32, 1)
    sources = [
        TokenSource("d", 1000, 0),
        TokenSource("d", 1000, 1),
        TokenSource("e", 1000, 0),
        TokenSource("d", 1000, 0, scope="warmup"),
    ]
    prompts = [source.prompt(plain) for source in sources]
    prompts.append(sources[0].prompt(Request(1, 0.0, 32, 1)))
    assert len({tuple(prompt) for prompt in prompts}) == 5
    assert len({source.recipe for source in sources}) == 4


def test_only_ordinary_ids_and_all_of_them():
    special = {11, 13, 39}
    source = TokenSource("d", 40, 0, special)
    found = set(source.prompt(Request(0, 0.0, 5000, 1)))
    assert found == set(range(10, 40)) - special
    assert source.recipe != TokenSource("d", 40, 0).recipe


def test_ids_are_spread_evenly():
    source = TokenSource("d", 1010, 0)
    counts = np.bincount(source.tokens(Request(0, 0.0, 1_000_000, 1)), minlength=1010)[10:]
    assert counts.mean() == 1000
    # Poisson: the sum of squared deviations over the mean is chi-squared with 999 degrees.
    assert 800 < ((counts - 1000) ** 2 / 1000).sum() < 1200


def test_a_vocabulary_without_ordinary_ids_is_refused():
    with pytest.raises(ValueError, match="vocabulary of 11 has 1 ordinary"):
        TokenSource("d", 11, 0)


def lead(one, other):
    """Return how many leading tokens two prompts share."""
    size = min(len(one), len(other))
    unlike = np.flatnonzero(one[:size] != other[:size])
    return int(unlike[0]) if len(unlike) else size


@settings(derandomize=True)  # of 4 million ids two can meet by chance
@given(block_traces(), st.integers(1, 20))
def test_predicted_hits_are_those_of_the_tokens(trace, size):
    """A cache that has seen every earlier prompt hits just what the trace's blocks promise."""
    source = TokenSource(trace.digest, 2**22, 0)
    prompts = [source.tokens(request) for request in trace]
    leads = [
        max((lead(prompt, earlier) for earlier in prompts[:n]), default=0)
        for n, prompt in enumerate(prompts)
    ]
    assert hit_tokens(trace).tolist() == leads
    full = sum(min(n, len(p) - 1) // size * size for n, p in zip(leads, prompts, strict=True))
    assert predicted_hit_share(trace, size) == pytest.approx(full / sum(map(len, prompts)))
