"""``tuner trace``: exit codes, what goes to which stream, and files that read again."""

import json
import struct

import pytest
from typer.testing import CliRunner

from tuner import traces
from tuner.cli_trace import trace_app

ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:00:{n:02},{10 + n},{n}\n" for n in range(40)
)


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(ROWS)
    return path


def run(*args):
    return CliRunner().invoke(trace_app, [str(arg) for arg in args])


def test_info_as_json(azure):
    done = run("info", azure, "--json", "--max-model-len", 60)
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["format"] == "azure"
    assert facts["requests"] == 39
    assert facts["dropped"] == {"zero_output": 1}
    assert facts["span_s"] == 38
    assert facts["rate_per_s"] == 1
    assert facts["fits"]["too_long"] == 14


def test_info_as_picture_and_page(azure, tmp_path):
    done = run("info", azure, "--html", tmp_path / "a.html")
    assert done.exit_code == 0
    assert "39 of 40 rows read" in done.stdout
    assert "1 zero_output" in done.stdout
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_info_as_png(azure, tmp_path):
    path = tmp_path / "a.png"
    assert run("info", azure, "--png", path).exit_code == 0
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1200, 800)
    assert 5_000 < len(data) < 500_000


@pytest.mark.parametrize("rows", [1, 3])
def test_a_png_of_one_request_or_of_one_moment(tmp_path, rows):
    path = tmp_path / "$a$_b$.jsonl"
    path.write_text('{"t_us": 5, "in_tok": 4, "out_tok": 2}\n' * rows)
    done = run("info", path, "--png", tmp_path / "a.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.png").stat().st_size > 5_000


@pytest.mark.parametrize("kind", ["--png", "--html"])
def test_a_picture_that_cannot_be_written_is_told(azure, tmp_path, kind):
    done = run("info", azure, kind, tmp_path / "none" / "a")
    assert (done.exit_code, done.stderr) == (
        2,
        f"{tmp_path}/none/a: No such file or directory\n",
    )


def test_convert_to_stdout_gives_our_lines_only(azure):
    done = run("convert", azure, "-o", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 39
    assert lines[1] == {"t_us": 1_000_000, "in_tok": 12, "out_tok": 2}


@pytest.mark.parametrize("name", ["b.jsonl", "b.parquet"])
def test_convert_to_a_file_reads_again(azure, tmp_path, name):
    done = run("convert", azure, "-o", tmp_path / name)
    assert (done.exit_code, done.stdout) == (0, "")
    assert traces.read(tmp_path / name).digest == traces.read(azure).digest


def test_sample_records_its_steps(azure, tmp_path):
    out = tmp_path / "s.jsonl"
    done = run(
        "sample", azure, "-o", out, "--window", "10:20:5", "--thin", 0.5, "--rate-scale", 2,
        "--no-spread-ties",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    trace = traces.read(out)
    steps = [step["op"] for step in trace.provenance.transforms]
    assert steps == ["window", "thin", "rate_scale"]
    assert trace.lead_in_us == 2_500_000
    assert "made from: azure a.csv" in trace.provenance.notes


def test_bad_input_is_told_on_stderr_with_exit_code_2(azure, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text(ROWS + "2024-05-10 00:01:00,x,1\n")
    for args, said in [
        (("info", bad), f"{bad}: line 42: ContextTokens: 'x' is not a number"),
        (("info", tmp_path / "none"), "no such file"),
        (("info", azure, "--format", "azur"), "did you mean azure?"),
        (("info", azure, "--option", "zero_output"), "--option: expected name=value"),
        (("convert", azure, "-o", tmp_path / "no" / "b.jsonl"), "No such file or directory"),
        (("sample", azure, "-o", "-", "--window", "a:b"), "expected START:DURATION"),
        (("sample", azure, "-o", "-", "--thin", "7"), "keep must be in (0, 1]"),
    ]:
        done = run(*args)
        assert done.exit_code == 2, args
        assert said in done.stderr
        assert done.stdout == ""


def test_reader_options_reach_the_reader(azure):
    done = run("info", azure, "--json", "--option", "zero-output=prefill")
    assert json.loads(done.stdout)["requests"] == 40
