"""``tuner replay`` against a server whose right numbers are known."""

import json
from pathlib import Path

import pytest

from tests.engines.fake_server import Script, running
from tuner.cli_replay import Endpoint, replay_command
from tuner.errors import StudyError

ROWS = 40


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    trace = tmp_path / "trace.jsonl"
    rows = ({"t_us": i * 20_000, "in_tok": 16, "out_tok": 4} for i in range(ROWS))
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "workload.yaml"
    file.write_text("trace: {path: trace.jsonl}\nmeasures: [saturated]\nwarmup: {requests: 4}\n")
    return file


def test_the_table_has_every_latency_and_the_lateness(
    workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(Script(step_s=0.01, skip=5, every=4, status=429)) as url:
        assert replay_command(workload, Endpoint(url), out_dir=tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert f"saturated: {ROWS} requests, {ROWS // 4} failed" in shown
    for words in ("Time to first token", "Send lateness", "Output throughput", "Failed requests"):
        assert words in shown
    assert "25.0 %" in shown
    assert "token times: counted by the server in every chunk" in shown
    assert (tmp_path / "out" / "requests.parquet").is_file()


def test_json_holds_every_value_and_how_many_it_comes_from(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(Script(chunk=2, step_s=0.01, cached_tokens=8)) as url:
        code = replay_command(workload, Endpoint(url, "fake", 500), "saturated", as_json=True)
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    measurement = told["measurement"]
    assert told["outcome"] == "measured"
    assert measurement["counts"]["saturated.e2e"] == ROWS
    assert measurement["counts"]["saturated.itl"] == ROWS * 3
    assert measurement["values"]["saturated.generated_tokens"] == ROWS * 4
    assert measurement["values"]["saturated.error_share"] == 0
    assert {"saturated.lateness.p50", "saturated.lateness.max"} <= set(measurement["values"])
    assert measurement["facts"]["vocab_size"] == 500


def test_no_endpoint_is_a_reason_not_a_table(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay_command(workload, Endpoint("http://127.0.0.1:9")) == 1
    assert "unreachable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "measure", "said"),
    [
        (Endpoint("ftp://x"), None, "url: expected http"),
        (Endpoint("http://x:1", api_key_env="NO_SUCH_KEY"), None, "NO_SUCH_KEY is not set"),
        (Endpoint("http://x:1"), "sideways", "found 'sideways'"),
    ],
)
def test_bad_input_is_told_before_anything_is_sent(
    workload: Path, endpoint: Endpoint, measure: str | None, said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        replay_command(workload, endpoint, measure)


def test_a_bound_that_the_server_never_meets_leaves_no_capacity(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = workload.read_text().replace("[saturated]", "[capacity]")
    workload.write_text(text + "slo: {e2e_ms: 5}\n")
    with running(Script(step_s=0.01)) as url:
        assert replay_command(workload, Endpoint(url)) == 0
    shown = capsys.readouterr().out
    assert "no capacity: even at 0.0625 of the recorded rate the SLO does not hold" in shown
    assert "Probes" in shown
