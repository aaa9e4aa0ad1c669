"""What becomes of rows that are not as they should be: handled and counted, or refused by line."""

import gzip

import numpy as np
import pyarrow as pa
import pytest

from tuner import traces
from tuner.errors import TraceError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.fixture
def azure(tmp_path):
    def read(*rows, end="\n", header=HEADER, **options):
        path = tmp_path / "a.csv"
        path.write_bytes(end.join([header, *rows]).encode())
        return traces.read(path, **options)

    return read


def test_crlf_no_final_newline_and_seven_digits(azure):
    trace = azure(
        "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", end="\r\n"
    )
    assert trace.arrival_us.tolist() == [0, 4_314_579]


@pytest.mark.parametrize(
    ("first", "second", "apart_us"),
    [
        ("2024-05-10 00:00:00+00:00", "2024-05-10 00:00:00.009930+00:00", 9_930),
        ("2024-05-10T00:00:00Z", "2024-05-10T02:00:01+02:00", 1_000_000),
        ("2024-05-10 00:00:00", "2024-05-10 00:00:00.5", 500_000),
        ("2024-05-09 20:00:00.25-04:00", "2024-05-10 00:00:00.250001+00:00", 1),
    ],
)
def test_mixed_fractions_and_zones(azure, first, second, apart_us):
    trace = azure(f"{first},1,1", f"{second},2,2")
    assert trace.arrival_us.tolist() == [0, apart_us]
    assert trace.prompt_tokens.tolist() == [1, 2]


def test_byte_order_mark_blank_lines_and_unsorted_rows(azure):
    trace = azure(
        "", "2024-05-10 00:00:02,2,2", "  ", "2024-05-10 00:00:01,1,1", "", header="\ufeff" + HEADER
    )
    assert trace.prompt_tokens.tolist() == [1, 2]
    assert trace.provenance.rows_read == 2


def test_what_cannot_be_replayed_is_counted_by_reason(azure):
    trace = azure(
        "2024-05-10 00:00:00,10,5",
        "2024-05-10 00:00:01,NaN,5",
        ",10,5",
        "2024-05-10 00:00:03,-1,5",
        "2024-05-10 00:00:04,10,-5",
        "2024-05-10 00:00:05,10,0",
        "2024-05-10 00:00:06,0,5",
        "2024-05-10 00:00:07,1.5,5",
        "2024-05-10 00:00:08,3000000000,5",
        "2024-05-10 00:00:09,inf,5",
        "2024-05-10 00:00:10,20.0,6",
    )
    assert trace.prompt_tokens.tolist() == [10, 20]
    assert trace.provenance.rows_read == 11
    assert trace.provenance.dropped == {
        "missing_value": 3,
        "negative_tokens": 2,
        "fractional_tokens": 1,
        "too_many_tokens": 1,
        "zero_prompt": 1,
        "zero_output": 1,
    }


def test_no_output_can_be_replayed_as_prefill_and_is_noted(azure):
    rows = ("2024-05-10 00:00:00,10,0", "2024-05-10 00:00:01,10,3")
    trace = azure(*rows, zero_output="prefill")
    assert trace.output_tokens.tolist() == [1, 3]
    assert trace.provenance.notes == (
        "1 requests without output are replayed for their prefill (1 token)",
    )
    with pytest.raises(TraceError, match="zero_output: expected 'drop' or 'prefill'"):
        azure(*rows, zero_output="keep")


@pytest.mark.parametrize(
    ("rows", "line", "said"),
    [
        (["2024-05-10 00:00:00,1,1", "2024-05-10 00:00:01,many,1"], 3, "'many' is not a number"),
        (["", "2024-05-10 00:00:00,1,1", "", "yesterday,1,1"], 5, "'yesterday' is not a time"),
        (["2024-05-10 00:00:00,1"], 2, "expected 3 fields, found 2"),
        (["2024-05-10 00:00:00,1,1", "2024-05-10 00:00:00,1,1,1"], 3, "expected 3 fields, found 4"),
        (
            ["2024-05-10 00:00:00,1,1", "2024-05-10 00:00:00Z,1,1"],
            3,
            "one has a zone, one not",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(azure, rows, line, said):
    with pytest.raises(TraceError, match=said) as caught:
        azure(*rows)
    assert [problem.field for problem in caught.value.problems] == [f"line {line}"]
    assert caught.value.problems[0].file.endswith("a.csv")


@pytest.mark.parametrize("rows", [[], [""], ["2024-05-10 00:00:00,1,0"]])
def test_a_file_without_usable_rows_is_refused(azure, rows):
    with pytest.raises(TraceError, match="no request can be used"):
        azure(*rows)


def test_images_are_noted(azure):
    trace = azure(
        "2025-01-01 00:00:00,2,10,5",
        "2025-01-01 00:00:01,0,10,5",
        header="TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
    )
    assert trace.provenance.notes[0].startswith("1 requests had images")


def test_columns_in_another_order_and_more_of_them(azure):
    trace = azure("7,x,3,2024-05-10 00:00:00", header="GeneratedTokens,Q,ContextTokens,TIMESTAMP")
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (3, 7)


def test_a_missing_column_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens\n")
    with pytest.raises(TraceError, match="no column GeneratedTokens; there are TIMESTAMP"):
        traces.read(path, "azure")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_are_known_by_their_bytes(tmp_path, codec):
    text = f"{HEADER}\n2024-05-10 00:00:00,1,1\n".encode()
    path = tmp_path / "a.csv"  # the name says nothing of the compression
    if codec == "gzip":
        path.write_bytes(gzip.compress(text[:50]) + gzip.compress(text[50:]))  # two members
    else:
        with pa.CompressedOutputStream(str(path), codec) as stream:
            stream.write(text)
    assert len(traces.read(path)) == 1


def test_many_batches_keep_rows_and_labels(tmp_path):
    rows = 300_000
    path = tmp_path / "b.csv"
    with path.open("w") as stream:
        stream.write("Timestamp,Session ID,Request tokens,Response tokens\n")
        stream.writelines(f"{n},s{n % 1000:04},{n % 97 + 1},{n % 89 + 1}\n" for n in range(rows))
    trace = traces.read(path)
    n = np.arange(rows)
    assert np.array_equal(trace.prompt_tokens, n % 97 + 1)
    assert np.array_equal(trace.session, n % 1000)
    assert trace[1000].parents == (0,)
