"""Formats whose real files are not here, made up as their documents describe them."""

import json

import numpy as np
import pytest

from tuner import traces
from tuner.errors import TraceError
from tuner.trace import Ragged, Trace
from tuner.traces import own


@pytest.fixture
def lines(tmp_path):
    def write(*rows, name="t.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def mooncake(length, ids, at=0):
    return {"timestamp": at, "input_length": length, "output_length": 3, "hash_ids": ids}


# --- units and block sizes ---


def test_mooncake_means_milliseconds_and_timed_trace_seconds(lines):
    path = lines(mooncake(10, [1], 0), mooncake(12, [2], 2))
    assert traces.read(path).arrival_us.tolist() == [0, 2_000]
    assert traces.read(path, "timed_trace").arrival_us.tolist() == [0, 2_000_000]
    read = traces.read(path, "timed_trace", sec_multiplier=0.001)
    assert read.arrival_us.tolist() == [0, 2_000]


@pytest.mark.parametrize(
    ("length", "ids", "advice"),
    [
        (20, [1, 2], "block_size=16"),
        (512, [1, 2], "block_size=256"),
        (1025, [1, 2], "block_size=1024"),
        (513, [1], "block_size=1024"),
    ],
)
def test_ids_that_do_not_fit_the_length_are_refused(lines, length, ids, advice):
    path = lines(mooncake(512, [0]), mooncake(length, ids))
    with pytest.raises(TraceError, match=f"{len(ids)} ids do not fit {length} tokens") as caught:
        traces.read(path)
    assert caught.value.problems[0].field == "line 2"
    assert advice in caught.value.hint


def test_block_size_can_be_given(lines):
    trace = traces.read(lines(mooncake(20, [1, 2])), block_size=16)
    assert trace[0].block_tokens == (16, 4)


def test_without_ids_the_unit_is_asked_for(lines):
    path = lines({"timestamp": 0, "input_length": 5, "output_length": 1})
    with pytest.raises(TraceError, match="format not recognised") as caught:
        traces.read(path)
    assert "timed_trace" in caught.value.hint
    assert len(traces.read(path, "mooncake")) == 1


def test_timed_trace_labels_can_be_chosen(lines):
    path = lines({"t": 0, "i": 17, "o": 1, "h": [3, 4]})
    trace = traces.read(
        path,
        "timed_trace",
        label_timestamp="t",
        label_input_length="i",
        label_output_length="o",
        label_hash_ids="h",
    )
    assert trace[0].block_tokens == (16, 1)


# --- choosing ---


def test_an_unknown_format_gets_the_nearest_name(lines):
    with pytest.raises(TraceError, match="no format 'moncake'; did you mean mooncake"):
        traces.read(lines(mooncake(1, [1])), "moncake")


def test_an_unknown_option_is_named(lines):
    with pytest.raises(TraceError, match=r"format mooncake: .*'blocksize'"):
        traces.read(lines(mooncake(1, [1])), blocksize=16)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"none\.csv: no such file"):
        traces.read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01\x02\xff\xfe", b"[]", b"{}", b"\x1f\x8bnot gzip"]
)
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        traces.read(path)


# --- JSON lines ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "one JSON object"),
        (json.dumps({**mooncake(5, [1]), "input_length": "five"}), "expected a number"),
        (json.dumps({**mooncake(5, [1]), "input_length": True}), "expected a number"),
        (json.dumps(mooncake(5, [-1])), "integers >= 0"),
        (json.dumps(mooncake(5, "ab")), "integers >= 0"),
    ],
)
def test_a_bad_line_is_refused_by_number(lines, tmp_path, text, said):
    path = lines(mooncake(5, [1]))
    path.write_text(path.read_text() + "\n" + text)
    with pytest.raises(TraceError, match=said) as caught:
        traces.read(path)
    assert caught.value.problems[0].field == "line 3"


def test_missing_and_negative_values_in_json_are_counted(lines):
    path = lines(
        mooncake(5, [1]),
        {**mooncake(5, [1]), "timestamp": None},
        {**mooncake(5, [1]), "input_length": float("nan")},
        {**mooncake(5, [1]), "input_length": -3},
        {**mooncake(5, [1]), "output_length": 0},
        {**mooncake(5, [1]), "timestamp": -1},
    )
    assert traces.read(path).provenance.dropped == {
        "missing_value": 2,
        "negative_time": 1,
        "negative_tokens": 1,
        "zero_output": 1,
    }


# --- formats ---


def test_bailian_links_chats_to_their_root(lines):
    def chat(number, parent, at, length, ids):
        return {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": at,
            "input_length": length,
            "output_length": 4,
            "type": "text",
            "turn": 1,
            "hash_ids": ids,
        }

    trace = traces.read(
        lines(
            chat(10, -1, 0.0, 20, [1, 2]),
            chat(11, 10, 1.25, 40, [1, 2, 3]),
            chat(12, -1, 1.5, 16, [9]),
            chat(13, 11, 2.0, 50, [1, 2, 3, 4]),
            chat(14, 999, 3.0, 16, [5]),
        )
    )
    assert trace.provenance.format == "bailian"
    assert [request.parents for request in trace] == [(), (0,), (), (1,), ()]
    assert [request.session for request in trace] == [0, 0, 2, 0, 4]
    assert trace[1].block_tokens == (16, 16, 8)
    assert trace.arrival_us[1] == 1_250_000


def test_burstgpt_sessions_and_failures(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "100.0,a,10,GPT-4,5,5,10,Conversation log\n"
        "130.0,a,2,GPT-4,6,5,11,Conversation log\n"
        "131.0,,2,ChatGPT,7,0,7,API log\n"
        "131.0,a,2,ChatGPT,8,1,9,Conversation log\n"
        "133.0,a,50,ChatGPT,9,1,10,Conversation log\n"
        "140.0,a,1,ChatGPT,9,1,10,Conversation log\n"
    )
    trace = traces.read(path)
    assert trace.provenance.dropped == {"zero_output": 1}
    # 131 arrived 1 s before its predecessor ended, 140 long before: neither waited for it.
    assert [request.parents for request in trace] == [(), (0,), (), (2,), ()]
    assert [request.gap_s for request in trace] == [None, 20.0, None, 0.0, None]
    assert trace.resolution_us == 1_000_000
    only = traces.read(path, model="GPT-4")
    assert (len(only), only.provenance.dropped) == (2, {"other_model": 4})
    assert only.provenance.rows_read == 6


def test_sharegpt_keeps_lengths_of_the_first_two_turns(tmp_path):
    def turn(who, text):
        return {"from": who, "value": text}

    path = tmp_path / "s.json"
    path.write_text(
        json.dumps(
            [
                {"id": "1", "conversations": [turn("human", "a" * 40), turn("gpt", "b" * 9)]},
                {"id": "2", "conversations": [turn("human", "only")]},
            ]
        )
    )
    trace = traces.read(path)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10], [3])
    assert trace.provenance.dropped == {"fewer_than_two_turns": 1}
    assert "estimates: 4 characters" in trace.provenance.notes[0]
    assert "arrivals are invented" in trace.provenance.notes[1]


def test_custom_prompts(lines):
    path = lines({"prompt": "a" * 8, "output_tokens": 7}, {"prompt": "b" * 4})
    assert traces.read(path).output_tokens.tolist() == [7]
    assert sorted(traces.read(path, output_tokens=9).output_tokens.tolist()) == [7, 9]
    with pytest.raises(TraceError, match="no row says its output_tokens"):
        traces.read(lines({"prompt": "a"}))


def test_usage_logs_of_gateways(lines):
    trace = traces.read(
        lines(
            {
                "startTime": 1_700_000_000.5,
                "endTime": 1_700_000_002.5,
                "prompt_tokens": 10,
                "completion_tokens": 4,
                "status": "success",
                "litellm_session_id": "s",
            },
            {
                "startTime": "2023-11-14T22:13:25.5Z",
                "endTime": "2023-11-14T22:13:26",
                "usage": {"input_tokens": 11, "output_tokens": 5},
                "litellm_session_id": "s",
            },
            {"created": 1_700_000_000_000, "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
            {"startTime": 1, "prompt_tokens": 1, "completion_tokens": 1, "status": "failure"},
        )
    )
    assert trace.provenance.format == "usage"
    assert trace.provenance.dropped == {"failed": 1}
    assert trace.arrival_us.tolist() == [0, 500_000, 5_500_000]
    assert trace[2].parents == (1,)
    assert trace[2].gap_s == 3.0


def test_otlp_json_lines(lines):
    def span(name, start, tokens, parent=""):
        usage = [
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": str(tokens)}},
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "7"}},
        ]
        return {
            "traceId": "t",
            "spanId": name,
            "parentSpanId": parent,
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + start),
            "endTimeUnixNano": str(1_700_000_000_500_000_000 + start),
            "attributes": usage if tokens else [],
        }

    def export(*spans):
        return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}

    trace = traces.read(
        lines(
            export(span("a", 0, 10), span("http", 0, 0)),
            export(span("b", 2_000_000_000, 20, "a")),
        )
    )
    assert trace.prompt_tokens.tolist() == [10, 20]
    assert trace.provenance.dropped == {"other_span": 1}
    assert (trace[1].parents, trace[1].gap_s) == ((0,), 1.5)


def test_weka_sub_agents_wait_and_are_waited_for(tmp_path):
    def call(t, size, api, think):
        return {"t": t, "type": "n", "in": size, "out": 5, "hash_ids": list(range(size // 64)),
                "api_time": api, "think_time": think}  # fmt: skip

    agent = {
        "t": 12.0,
        "type": "subagent",
        "requests": [call(0.0, 70, 2, 0.0), call(4.0, 80, 1, 2)],
    }
    session = {"id": "a", "block_size": 64, "hash_id_scope": "local",
               "requests": [call(0.0, 130, 10, 0.0), agent, call(20.0, 200, 1, 1)]}  # fmt: skip
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps(session))
    trace = traces.read(tmp_path)
    first = [request for request in trace if request.session == 0]
    numbers = [request.id for request in first]
    parents = [[numbers.index(parent) for parent in request.parents] for request in first]
    assert parents == [[], [0], [1], [0, 2]]
    assert [request.gap_s for request in first] == [None, 2.0, 2.0, 3.0]
    assert first[0].block_tokens == (64, 64)
    ids = [{block for r in trace if r.session == s for block in r.blocks} for s in (0, 1)]
    assert not ids[0] & ids[1]


def test_ragpulse_names_a_component_without_length(tmp_path):
    for part, key in [("sys_prompt", "sys_prompt_id"), ("passages", "passage_id"),
                      ("history", "history_id"), ("web_search", "web_search_id"),
                      ("user_input", "user_input_id")]:  # fmt: skip
        (tmp_path / f"1_{part}.jsonl").write_text(json.dumps({key: 1, "token_length": 3}) + "\n")
    row = {"timestamp": "7", "input_length": 10, "output_length": 2, "session_id": "s",
           "hash_ids": {"sys_prompt": [1], "user_input": [1]}}  # fmt: skip
    path = tmp_path / "0_trace.jsonl"
    path.write_text(json.dumps(row) + "\n\n")
    trace = traces.read(path)
    assert (trace[0].block_tokens, len(set(trace[0].blocks))) == ((3, 3), 2)
    row["hash_ids"]["history"] = [4]
    path.write_text(json.dumps(row))
    with pytest.raises(TraceError, match="line 1: history: id 4 is not in its length table"):
        traces.read(path)


# --- our own ---


def full_trace():
    return Trace.build(
        [0, 1_000, 2_000],
        [40, 50, 60],
        [4, 5, 6],
        blocks=Ragged.of([[7, 8], [7], []]),
        block_tokens=Ragged.of([[16, 8], [16], []]),
        session=np.asarray([3, 3, -1]),
        parents=Ragged.of([[], [0], [0, 1]]),
        gap_us=np.asarray([-1, 0, 250]),
        slo_class=np.asarray([1, 0, 1]),
        class_names=("batch", "chat"),
        priority=np.asarray([0, -1, 2]),
    )


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_own_format_gives_back_every_column(tmp_path, name):
    trace = full_trace().recorded("head", n=3)
    own.write(trace, tmp_path / name)
    back = traces.read(tmp_path / name)
    assert back.digest == trace.digest
    assert list(back) == list(trace)
    assert back.provenance.transforms == trace.provenance.transforms


def test_own_format_needs_only_three_columns(lines):
    path = lines(
        {"t_us": 5_000_000, "in_tok": 3, "out_tok": 1, "extra": {"a": 1}},
        {"t_us": 5_000_001, "in_tok": 4, "out_tok": 2, "status": "timeout"},
        {"t_us": 5_000_002, "in_tok": 4, "out_tok": 2, "session": "x", "gap_us": None},
    )
    trace = traces.read(path)
    assert trace.arrival_us.tolist() == [0, 2]
    assert [request.session for request in trace] == [-1, 0]
    assert trace.provenance.dropped == {"failed": 1}
    assert trace.provenance.notes == ("ignored columns: extra",)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"blocks": [1]}, "blocks without block_lens"),
        ({"blocks": [1], "block_lens": [1, 2]}, "1 blocks but 2 block_lens"),
        ({"blocks": [1], "block_lens": [9]}, "do not fit a prompt of 3 tokens"),
        ({"parents": [5]}, "there are only 1 requests"),
        ({"gap_us": "soon"}, "expected a number"),
    ],
)
def test_own_format_refuses_what_contradicts_itself(lines, row, said):
    with pytest.raises(TraceError, match=f"line 1: .*{said}|line 1: {said}"):
        traces.read(lines({"t_us": 0, "in_tok": 3, "out_tok": 1, **row}))


def test_a_meta_file_of_other_content_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    own.write(full_trace(), path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(TraceError, match=r"differs from what t\.meta\.json describes"):
        traces.read(path)


def test_the_uniform_block_size_may_come_from_outside(lines):
    path = lines({"t_us": 0, "in_tok": 20, "out_tok": 1, "blocks": [1, 2]})
    assert traces.read(path, block_tokens=16)[0].block_tokens == (16, 4)
