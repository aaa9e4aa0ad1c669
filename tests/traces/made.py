"""Traces that hypothesis makes up: prefix trees with sessions, at any times."""

import numpy as np
from hypothesis import strategies as st

from tuner.trace import Ragged, Trace

BLOCK = 16


@st.composite
def block_traces(draw, most=12):
    """Return a trace of 16-token blocks whose prefixes form a tree, with partial last blocks."""
    rows = draw(st.integers(1, most))
    arrivals = sorted(draw(st.lists(st.integers(0, 10**8), min_size=rows, max_size=rows)))
    blocks, tokens, prompts = [], [], []
    for _ in range(rows):
        # Few ids and shared stems make prefixes meet; an id means one thing after one prefix.
        path = draw(st.lists(st.integers(0, 2), max_size=4))
        ids = [int("1" + "".join(map(str, path[: n + 1]))) for n in range(len(path))]
        sizes = [BLOCK] * len(ids)
        if ids and draw(st.booleans()):
            sizes[-1] = draw(st.integers(1, BLOCK - 1))
        blocks.append(ids)
        tokens.append(sizes)
        prompts.append(sum(sizes) + draw(st.integers(0 if ids else 1, 40)))
    sessions = draw(st.lists(st.integers(-1, 4), min_size=rows, max_size=rows))
    outputs = draw(st.lists(st.integers(1, 500), min_size=rows, max_size=rows))
    return Trace.build(
        arrivals,
        prompts,
        outputs,
        blocks=Ragged.of(blocks),
        block_tokens=Ragged.of(tokens),
        session=np.asarray(sessions, np.int64),
    )
