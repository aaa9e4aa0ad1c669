"""A preset on a running server: what is changed, what needs a restart, what is undone."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import pytest
from typer.testing import CliRunner, Result

from tests.live_case import REASON, SECRET, STARTED, Served, serving
from tuner.cli import app
from tuner.config import Json
from tuner.live_apply import apply as put
from tuner.live_preset import parsed
from tuner.live_server import LiveServer

TOKEN = "MY_TOKEN"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv(TOKEN, SECRET)
    with serving(monkeypatch) as server:
        yield server


def preset(folder: Path, text: str, name: str = "preset.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(served: Served, path: Path, *options: str) -> Result:
    command = ["live", "apply", str(path), "--url", served.url, "--token-env", TOKEN, *options]
    return CliRunner().invoke(app, command)


def told(served: Served, path: Path, *options: str) -> tuple[int, dict[str, Json]]:
    result = run(served, path, "--json", *options)
    return result.exit_code, json.loads(result.stdout)


def test_live_arguments_are_changed_and_the_rest_is_named(served: Served, tmp_path: Path) -> None:
    file = preset(
        tmp_path,
        "model: org/model\nmax-num-seqs: 8\nscheduling-policy: priority\nblock-size: 32\n"
        "no-enable-prefix-caching: true\nkv-cache-dtype: auto\n"
        'compilation-config: \'{"cudagraph_mode":"PIECEWISE","mode":3}\'\n',
    )
    code, said = told(served, file)
    assert (code, said["result"]) == (0, "applied")
    assert served.core.values == {**STARTED, "max_num_seqs": 8, "scheduling_policy": "priority"}
    assert said["live"]["max_num_seqs"] == {"current": 32, "wanted": 8}
    assert said["restart"] == {
        "block_size": {"current": 16, "wanted": 32},
        "compilation_config.cudagraph_mode": {"current": "FULL", "wanted": "PIECEWISE"},
        "enable_prefix_caching": {
            "current": True,
            "wanted": False,
            "why": REASON,
        },
    }
    assert told(served, file)[1]["result"] == "unchanged"


def test_what_a_preset_leaves_out_goes_back_to_the_start(served: Served, tmp_path: Path) -> None:
    told(served, preset(tmp_path, "watermark: 0.1\nmax-num-seqs: 8\n"))
    told(served, preset(tmp_path, "max-num-seqs: 16\n"))
    assert served.core.values == {**STARTED, "max_num_seqs": 16}


def test_more_than_the_engine_was_started_with_needs_a_restart(
    served: Served, tmp_path: Path
) -> None:
    file = preset(tmp_path, "model: org/other\nmax-num-seqs: 64\nmax-num-batched-tokens: 512\n")
    code, said = told(served, file)
    assert (code, said["result"], list(said["live"])) == (0, "applied", ["max_num_batched_tokens"])
    assert "started with 32" in said["restart"]["max_num_seqs"]["why"]
    assert said["restart"]["model"] == {"current": "org/model", "wanted": "org/other"}


def test_a_dry_run_changes_nothing(served: Served, tmp_path: Path) -> None:
    code, said = told(served, preset(tmp_path, "max-num-seqs: 8\n"), "--dry-run")
    assert (code, said["result"]) == (0, "planned")
    assert said["live"] == {"max_num_seqs": {"current": 32, "wanted": 8}}
    assert served.core.sets == []


def test_a_busy_engine_is_waited_for(served: Served, tmp_path: Path) -> None:
    served.core.busy = 3
    code, said = told(served, preset(tmp_path, "max-num-seqs: 8\n"), "--drain-s", "20")
    assert (code, said["result"], served.core.values["max_num_seqs"]) == (0, "applied", 8)


def test_an_engine_that_stays_busy_is_left_alone(served: Served, tmp_path: Path) -> None:
    served.core.busy = 1_000_000
    code, said = told(served, preset(tmp_path, "max-num-seqs: 8\n"), "--drain-s", "0.1")
    assert (code, said["result"]) == (1, "refused")
    assert "not idle after 0.1 s" in said["error"]
    assert served.core.values == STARTED


def test_a_refusal_is_told_in_the_engines_words(served: Served, tmp_path: Path) -> None:
    result = run(served, preset(tmp_path, "scheduling-policy: nope\nmax-num-seqs: 8\n"))
    assert result.exit_code == 1
    assert "refused" in result.stdout
    assert "no such policy" in result.stderr
    assert served.core.values == STARTED


def test_what_reads_back_otherwise_is_changed_back(served: Served, tmp_path: Path) -> None:
    served.core.bends = {"watermark": 0.0}
    code, said = told(served, preset(tmp_path, "watermark: 0.1\nmax-num-seqs: 8\n"))
    assert (code, said["result"]) == (1, "rolled back")
    assert "asked and got" in said["error"]
    assert served.core.sets == [
        {"max_num_seqs": 8, "watermark": 0.1},
        {"max_num_seqs": 32, "watermark": 0.0},
    ]
    assert served.core.values == STARTED


def test_where_changing_back_fails_too_it_is_said(served: Served, tmp_path: Path) -> None:
    served.core.bends = {"watermark": 0.3}
    code, said = told(served, preset(tmp_path, "watermark: 0.1\n"))
    assert (code, said["result"], said["hint"]) == (1, "unknown", "restart the server")


def test_a_preset_of_a_results_folder_goes_by_its_name(served: Served, tmp_path: Path) -> None:
    for name, seqs in (("balanced", 16), ("low-latency", 4)):
        preset(tmp_path, f"max-num-seqs: {seqs}\n", f"presets/{name}.yaml")
    assert told(served, tmp_path, "--preset", "low-latency")[0] == 0
    assert served.core.values["max_num_seqs"] == 4
    result = run(served, tmp_path, "--preset", "fastest")
    assert result.exit_code == 2
    assert "no preset 'fastest'; it has balanced, low-latency" in result.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "max-num-sequs: 8\nwatermark: 0.1\n",
            "max_num_sequs: the running vLLM has no ",
        ),
        ("max-num-sequs: 8\n", "did you mean 'max_num_seqs'?"),
        ("[1, 2]\n", "expected a mapping"),
        ("a: [\n", "not YAML"),
        ("8: 8\n", "8: expected an argument's name"),
    ],
)
def test_bad_input_changes_nothing(served: Served, tmp_path: Path, text: str, problem: str) -> None:
    result = run(served, preset(tmp_path, text))
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr
    assert served.core.sets == []


def test_the_token_comes_from_the_environment(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = preset(tmp_path, "max-num-seqs: 8\n")
    monkeypatch.setenv(TOKEN, "another")
    result = run(served, file)
    assert (result.exit_code, "another one" in result.stderr) == (1, True)
    monkeypatch.delenv(TOKEN)
    result = run(served, file)
    assert (result.exit_code, "MY_TOKEN is not set" in result.stderr) == (2, True)


def test_an_engine_that_cannot_be_changed_says_why(served: Served, tmp_path: Path) -> None:
    served.core.off = "live changes do not work with this vLLM: the scheduler has no policy"
    result = run(served, preset(tmp_path, "max-num-seqs: 8\n"))
    assert (result.exit_code, "the scheduler has no policy" in result.stderr) == (1, True)


def test_no_server_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch) as gone:
        pass
    monkeypatch.setenv(TOKEN, SECRET)
    result = run(gone, preset(tmp_path, "max-num-seqs: 8\n"))
    assert (result.exit_code, "gives no answer" in result.stderr) == (1, True)
    assert SECRET in os.environ[TOKEN]


def test_exports_beside_the_presets_are_none(served: Served, tmp_path: Path) -> None:
    for name in ("balanced", "balanced.compose", "balanced.k8s"):
        preset(tmp_path, "max-num-seqs: 16\n", f"presets/{name}.yaml")
    assert "it has balanced\n" in run(served, tmp_path).stderr
    assert run(served, tmp_path, "--preset", "balanced.k8s").exit_code == 2


async def test_changing_back_holds_requests_back_as_the_change_did() -> None:
    """Else it would never find a busy server idle."""

    class Bent:
        drained: ClassVar[list[float]] = []

        async def state(self) -> dict[str, Json]:
            values = {"max_num_seqs": 32}
            return {"hot": list(values), "cold": {}, "started": values, "values": values}

        async def change(self, values: dict[str, Json], drain_s: float = 0.0) -> None:
            self.drained.append(drain_s)

    done = await put(cast("LiveServer", Bent()), parsed("max-num-seqs: 8", "p"), 20.0)
    assert (done.result, Bent.drained) == ("rolled back", [20.0, 20.0])
