"""The JSONL of ``vllm bench serve --dataset-name timed_trace``."""

from __future__ import annotations

from tuner.trace import Trace
from tuner.traces import hashed
from tuner.traces.draft import ZeroOutput, finish
from tuner.traces.source import Head, Source


def recognises(head: Head) -> bool:
    """Never: its keys are Mooncake's or freely chosen, and its unit is the user's to say."""
    return False


def read(  # noqa: PLR0913 -- the options of the format itself
    source: Source,
    *,
    chunk_hash_size: int = 16,
    sec_multiplier: float = 1.0,
    label_timestamp: str = "timestamp",
    label_input_length: str = "input_length",
    label_output_length: str = "output_length",
    label_hash_ids: str = "hash_ids",
    zero_output: ZeroOutput = "drop",
) -> Trace:
    """Read with vLLM's own options and defaults: seconds, blocks of 16, labels to choose.

    Unlike vLLM, ids that do not fit the length are refused instead of cutting the prompt short.
    """
    layout = hashed.Layout(
        chunk_hash_size,
        sec_multiplier * 1e6,
        label_timestamp,
        label_input_length,
        label_output_length,
        label_hash_ids,
    )
    return finish(source, "timed_trace", hashed.draft(source, layout), zero_output=zero_output)
