"""Request records read back: a row per request with its latencies, and the gaps between tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def requests_frame(file: Path) -> pd.DataFrame:
    """Return one row per replayed request of a ``requests.parquet``, latencies in seconds.

    Definitions are those of ``metrics``: TTFT and E2E from the scheduled arrival, TPOT over the
    tokens after the first, ``itl_max_s`` the largest gap. What a request has not is NaN.
    """
    table = pq.read_table(file)
    frame: pd.DataFrame = table.drop_columns(["token_s"]).to_pandas()
    offsets, times = _tokens(table)
    counts = np.diff(offsets)
    some = counts > 0
    first, last = (np.full(len(frame), np.nan) for _ in range(2))
    first[some], last[some] = times[offsets[:-1][some]], times[offsets[1:][some] - 1]
    frame["ttft_s"] = first - frame["scheduled_s"]
    frame["e2e_s"] = last - frame["scheduled_s"]
    answered = frame["answered_tokens"].to_numpy()
    steps = np.where(answered > 1, answered - 1, 1)
    frame["tpot_s"] = np.where(some & (answered > 1), (last - first) / steps, np.nan)
    rows, gaps = _gaps(offsets, times)
    frame["itl_max_s"] = pd.Series(gaps).groupby(rows).max().reindex(frame.index)
    wanted = frame["output_tokens"]
    frame["ok"] = (frame["error"] == "") & (frame["answered_tokens"] >= wanted) & (wanted > 0)
    return frame


def token_gaps(file: Path, measure: str) -> Floats:
    """Return the seconds between consecutive tokens of all scored, answered requests, pooled."""
    frame = requests_frame(file)
    offsets, times = _tokens(pq.read_table(file, columns=["token_s"]))
    rows, gaps = _gaps(offsets, times)
    wanted = (frame["measure"] == measure) & frame["ok"] & frame["scored"]
    return np.asarray(gaps[wanted.to_numpy()[rows]], np.float64)


def _tokens(table: pa.Table) -> tuple[NDArray[np.int64], Floats]:
    """Return the token times of all rows, end to end, and where each row begins and ends."""
    column = table.column("token_s").combine_chunks()
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in chunks]
    # ``flatten`` heeds a chunk's own offset, ``values`` does not.
    times = [chunk.flatten().to_numpy(zero_copy_only=False).astype(float) for chunk in chunks]
    counts = np.concatenate([np.zeros(1, np.int64), *lengths])
    return np.cumsum(counts), np.concatenate([np.zeros(0), *times])


def _gaps(offsets: NDArray[np.int64], times: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return each gap between tokens of one request, and the row that it belongs to."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    within = rows[1:] == rows[:-1]
    return rows[1:][within], np.diff(times)[within]
