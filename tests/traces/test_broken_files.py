"""Files with anything in the wrong place: they read with counts that add up, or TraceError."""

import contextlib
import json
import random
import re

import pytest

from tuner import traces
from tuner.errors import TraceError
from tuner.traces.describe import describe

_SPAN = {
    "spanId": "a",
    "traceId": "t",
    "startTimeUnixNano": "1700000000000000000",
    "endTimeUnixNano": "1700000000500000000",
    "status": {"code": 1},
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "7"}},
    ],
}
_TURN = {"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 2, "think_time": 1}
#: Format -> a sound file (rows are repeated where the format has rows).
SOUND = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2024-05-10 00:00:00.5Z,3,4\n" * 3,
    "burstgpt": "Timestamp,Session ID,Elapsed time,Request tokens,Response tokens\n"
    + "5.0,a,3,10,20\n" * 3,
    "splitwise": "request_type,arrival_timestamp,prompt_size,token_size\n" + "2,1,5,6\n" * 3,
    "own": [
        {"t_us": 5, "in_tok": 9, "out_tok": 3, "blocks": [1, 2], "block_lens": [4, 4], "prio": 1,
         "session": "a", "parents": [], "gap_us": 5, "cls": "x"},
    ] * 3,
    "mooncake": [{"timestamp": 3, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}] * 3,
    "bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20,
         "output_length": 3, "hash_ids": [1, 2]},
    ] * 3,
    "usage": [
        {"startTime": 1700000000.5, "endTime": "2023-11-14T22:13:25Z", "session_id": "s",
         "status": "success", "usage": {"prompt_tokens": 5, "completion_tokens": 6}},
    ] * 3,
    "custom": [{"prompt": "some words", "output_tokens": 5}] * 3,
    "sharegpt": [
        [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}],
    ],
    "otel": [{"resourceSpans": [{"scopeSpans": [{"spans": [_SPAN]}]}]}] * 2,
    "weka": [
        {"block_size": 64, "hash_id_scope": "local",
         "requests": [_TURN, {"t": 3.0, "type": "subagent", "requests": [_TURN]}, _TURN]},
    ],
}  # fmt: skip
WRONG = [
    "null", "NaN", "-1", "1e400", "9" * 24, "[]", "{}", '"x"', "true", "\xff", "\n", ",", '"', "0",
    "", "[1]", "1e18", "Infinity", "-Infinity", "1.5", "\x00",
]  # fmt: skip
_VALUE = re.compile(r'-?\d+(\.\d+)?|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}')


def broken(text, rng):
    """Replace one or two values, or a piece anywhere, by something wrong."""
    for _ in range(rng.randint(1, 2)):
        values = list(_VALUE.finditer(text))
        if values and rng.random() < 0.8:
            start, end = rng.choice(values).span()
        else:
            start = rng.randrange(len(text) + 1)
            end = start + rng.randint(0, 3)
        text = text[:start] + rng.choice(WRONG) + text[end:]
    return text


@pytest.mark.parametrize("fmt", SOUND)
def test_a_broken_file_reads_or_is_refused(fmt, tmp_path):
    sound = SOUND[fmt]
    text = sound if isinstance(sound, str) else "".join(json.dumps(row) + "\n" for row in sound)
    path = tmp_path / "t"
    path.write_text(text)
    assert len(traces.read(path, fmt)) >= 1
    rng = random.Random(fmt)
    for _ in range(150):
        path.write_text(broken(text, rng), encoding="latin-1")
        with contextlib.suppress(TraceError):
            trace = traces.read(path, fmt)
            found = trace.provenance
            assert found.rows_read == len(trace) + sum(found.dropped.values())
            json.dumps(describe(trace, 100), allow_nan=False)
