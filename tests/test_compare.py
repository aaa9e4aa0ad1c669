"""A against B: who is measured when, what a name stands for, and what the runs may claim."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.study_case import study_text, write
from tuner import compare as comparing
from tuner import machine
from tuner.cli import app
from tuner.compare import Question, compare
from tuner.compare_sides import drift, sides
from tuner.config import EngineConfig
from tuner.errors import StoreError, StudyError
from tuner.finish import write_all
from tuner.machine import Gpu
from tuner.objectives import Constraint, Objective
from tuner.records import Faulted, Measured, Measurement, TrialRecord
from tuner.results import StudyResults, load_results, open_store, stored
from tuner.runner import run_study
from tuner.study import load_study
from tuner.surroundings import Surroundings
from tuner.tune import StopRequest

UP, DOWN = "saturated.output_tokens_per_s", "paced.e2e.p99"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of four points on a simulated engine, with its presets."""
    folder = tmp_path_factory.mktemp("compare")
    text = study_text(
        space="{knobs: {max-num-seqs: {choice: [1, 4, 8, 16]}}}",
        engine="{kind: simulated, env: {A: b}}",
        budget="{trials: 4}",
    )
    spec = load_study(write(folder, text, "s.yaml"))
    run_study(spec, Surroundings(folder / "out"))
    write_all(folder / "out", "")
    return folder / "out"


def trial_of(folder: Path, seqs: int) -> str:
    records = load_results(folder).records
    return next(str(r.number) for r in records if r.config.args["max_num_seqs"] == seqs)


def runs(folder: Path, name: str) -> list[TrialRecord]:
    return stored(open_store(folder), name)


def test_both_sides_take_turns_and_more_repeats_add_to_what_is_there(made: Path) -> None:
    slow, fast = trial_of(made, 1), trial_of(made, 16)
    question = Question(made, (slow, fast), repeats=2)
    found = compare(question, Surroundings(made))
    name = f"{load_results(made).name}-compare-{slow}-{fast}"
    assert [r.point["member"] for r in runs(made, name)] == [0, 1, 1, 0]
    assert [r.config.args["max_num_seqs"] for r in runs(made, name)] == [1, 16, 16, 1]
    row = next(row for row in found.rows if row.metric == UP)
    assert row.verdict == "better"
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(row.means[1] / row.means[0])
    assert found.folder == made / "compare" / f"{slow}-{fast}"
    assert (found.folder / "trials" / "0" / "requests.parquet").is_file()
    again = compare(Question(made, (slow, fast), repeats=4), Surroundings(made))
    assert [r.point["member"] for r in runs(made, name)] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert {len(row.a) for row in again.rows} == {4}


def test_an_interrupted_comparison_says_nothing_and_continues(made: Path) -> None:
    question = Question(made, (trial_of(made, 4), trial_of(made, 8)), repeats=2)
    stopped = compare(question, Surroundings(made, stop=StopRequest(requested=True)))
    assert stopped.rows == ()
    assert not stopped.decided
    assert compare(question, Surroundings(made)).decided


def canned(
    monkeypatch: pytest.MonkeyPatch, a: Sequence[float | None], b: Sequence[float | None]
) -> None:
    """Give these throughputs in place of measurements; None is a run that broke."""
    records = []
    for member, values in enumerate((a, b)):
        for turn, value in enumerate(values):
            outcome = (
                Faulted("worker_lost", "gone")
                if value is None
                else Measured(Measurement({UP: value, DOWN: 2.0 * value}))
            )
            point = {"member": member, "repeat": turn}
            records.append(TrialRecord(len(records), EngineConfig("m"), point, outcome))
    monkeypatch.setattr(comparing, "measure_again", lambda *_: "done")
    monkeypatch.setattr(comparing, "stored", lambda *_: records)


def test_noise_is_no_difference_and_says_how_often_to_repeat(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned(monkeypatch, [100, 110, 95, 104], [103, 104, 101, 98])
    question = Question(made, ("defaults", trial_of(made, 4)), difference=0.05)
    row = next(r for r in compare(question, Surroundings(made)).rows if r.metric == UP)
    assert row.verdict == "not shown"
    logs = [math.log(b / a) for a, b in zip(row.a, row.b, strict=True)]
    mean = sum(logs) / 4
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / 3)
    assert row.needed == math.ceil(((1.959964 + 0.841621) * spread / math.log(1.05)) ** 2)
    coarse = Question(made, question.names, difference=0.5)
    wide = next(r for r in compare(coarse, Surroundings(made)).rows if r.metric == UP)
    assert wide.needed == 2


def test_more_is_better_or_worse_as_the_metric_has_it(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned(monkeypatch, [100, 101, 99, 100], [120, 121, 119, 121])
    found = compare(Question(made, ("defaults", trial_of(made, 4))), Surroundings(made))
    assert {row.metric: row.verdict for row in found.rows} == {UP: "better", DOWN: "worse"}


def test_a_round_that_broke_on_one_side_counts_for_neither(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned(monkeypatch, [100, 50, 99], [120, None, 119])
    found = compare(Question(made, ("defaults", trial_of(made, 4))), Surroundings(made))
    row = next(r for r in found.rows if r.metric == UP)
    assert (row.a, row.b) == ((100, 99), (120, 119))
    assert any("a run of B gave no result: worker_lost" in note for note in found.notes)


def test_one_round_decides_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canned(monkeypatch, [100], [150])
    found = compare(Question(made, ("defaults", trial_of(made, 4))), Surroundings(made))
    assert not found.decided
    assert {(row.ratio, row.verdict, row.needed) for row in found.rows} == {
        (None, "not shown", None)
    }


def test_another_configuration_under_the_same_name_is_refused(made: Path) -> None:
    file = write(made.parent, "model: m\nmax-num-seqs: 4\n", "mine.yaml")
    stop = Surroundings(made, stop=StopRequest(requested=True))
    compare(Question(made, (str(file), "defaults")), stop)
    file.write_text("model: m\nmax-num-seqs: 8\n")
    with pytest.raises(StoreError, match="max_num_seqs"):
        compare(Question(made, (str(file), "defaults")), stop)


def of(made: Path, *names: str) -> list[EngineConfig]:
    found = sides(names, load_results(made), load_study(made / "study.yaml"))
    return [side.config for side in found]


def test_a_side_is_a_trial_a_preset_a_file_or_the_defaults(made: Path) -> None:
    file = made / "presets" / "max-throughput.yaml"
    best = trial_of(made, 16)
    trial, preset, path, defaults = of(made, best, "max-throughput", str(file), "defaults")
    assert trial == preset == path
    assert trial.args["max_num_seqs"] == 16
    assert path.env == {"A": "b"}
    assert "max_num_seqs" not in defaults.args


def test_an_edited_file_counts_as_it_is_written(made: Path) -> None:
    original = made / "presets" / "max-throughput.yaml"
    text = original.read_text().replace("max-num-seqs: 16", "max-num-seqs: 5")
    text += "no-enable-prefix-caching: true\ncompilation-config: '{\"mode\":0}'\n"
    file = write(made.parent, text, "edited.yaml")
    file.with_suffix(".json").write_text(original.with_suffix(".json").read_text())
    (config,) = of(made, str(file))
    assert config.args == {
        "max_num_seqs": 5,
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 0},
    }
    assert config.env == {"A": "b"}


def test_every_name_that_stands_for_nothing_is_reported(made: Path) -> None:
    with pytest.raises(StudyError) as caught:
        of(made, "max-troughput", "77")
    first, second = (str(problem) for problem in caught.value.problems)
    assert "no preset 'max-troughput'" in first
    assert "max-throughput" in first
    assert "no trial 77: they go up to 3" in second
    with pytest.raises(StudyError, match="flat keys"):
        of(made, str(write(made.parent, "engine: {}\n", "nested.yaml")))
    with pytest.raises(StudyError, match="cannot be read"):
        of(made, "no-such-file.yaml")


def test_a_preset_from_elsewhere_says_so(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = made / "presets" / "max-throughput.yaml"
    file = write(made.parent, original.read_text(), "elsewhere.yaml")
    preset = json.loads(original.with_suffix(".json").read_text())
    preset["provenance"]["versions"] = {"vllm": "0.24.0"}
    preset["provenance"]["hardware"] = {"gpus": ["NVIDIA H200"]}
    file.with_suffix(".json").write_text(json.dumps(preset))
    (side,) = sides([str(file)], load_results(made), load_study(made / "study.yaml"))
    monkeypatch.setattr(machine, "versions", lambda: {"vllm": "0.32.0"})
    monkeypatch.setattr(machine, "gpus", list)
    assert drift(side) == [
        f"{file} was found with vLLM 0.24.0; 0.32.0 is installed here",
        f"{file} was found on NVIDIA H200; here: no GPU",
    ]
    monkeypatch.setattr(machine, "versions", lambda: {"vllm": "0.24.0+cu130"})
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(0, "NVIDIA H200", 1, 0, "1")])
    assert drift(side) == []


def test_only_a_live_engine_is_compared_live(made: Path) -> None:
    question = Question(made, (trial_of(made, 1), trial_of(made, 4)), live=True)
    with pytest.raises(StudyError, match="simulated cannot be changed while it runs"):
        compare(question, Surroundings(made))


def test_the_command_prints_json_and_leaves_its_files(made: Path) -> None:
    arguments = ["compare", str(made), trial_of(made, 1), "max-throughput", "--repeats", "2"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    throughput = next(row for row in answer["metrics"] if row["metric"] == UP)
    assert throughput["verdict"] == "better"
    assert throughput["ratio"]["n"] == 2
    folder = Path(answer["folder"])
    assert json.loads((folder / "compare.json").read_text()) == answer
    assert {"compare.prom", "grafana.json"} <= {path.name for path in folder.iterdir()}
    shown = CliRunner().invoke(app, arguments)
    assert "B is better" in shown.stdout
    assert "a simulated engine repeats itself" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["0", "nothing"], "no preset 'nothing'"),
        (["0", "1", "--engine", "tgi"], "--engine: expected one of vllm, server, simulated"),
    ],
)
def test_bad_input_ends_with_2(made: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["compare", str(made), *arguments])
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_folder_without_a_study_ends_with_2(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["compare", str(tmp_path), "0", "1"]).exit_code == 2


def test_results_are_as_they_were(made: Path) -> None:
    before: StudyResults = load_results(made)
    compare(Question(made, ("defaults", "balanced"), repeats=2), Surroundings(made))
    after = load_results(made)
    assert [r.number for r in after.records] == [r.number for r in before.records]
    assert [r.number for r in after.front] == [r.number for r in before.front]


def test_a_bound_says_which_way_is_better_where_the_name_does_not(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_study(made / "study.yaml")
    bounds = (Constraint("paced.x_share", lower=0.5), Constraint("paced.y", upper=2.0))
    bounded = replace(spec, constraints=(*bounds, Constraint("own.z", lower=1.0)))
    objectives = (*spec.objectives, Objective("own.z", maximize=False))
    values = dict.fromkeys(("paced.x_share", "paced.y", "own.z"), ((1.0, 1.0), (2.0, 2.0)))
    rows = comparing._rows(replace(bounded, objectives=objectives), values, 0.05)
    assert {row.metric: row.maximize for row in rows} == {
        "paced.x_share": True,
        "paced.y": False,
        "own.z": False,
    }


def test_an_argument_that_is_no_json_is_bad_input(made: Path) -> None:
    file = write(made.parent, "model: m\ncompilation-config: '{bad'\n", "no-json.yaml")
    with pytest.raises(StudyError, match=r"no-json\.yaml: compilation-config: not JSON"):
        compare(Question(made, (str(file), "defaults")), Surroundings(made))


def test_two_names_of_one_configuration_are_not_called_defaults(made: Path) -> None:
    number = trial_of(made, 16)
    file = write(made.parent, "model: org/model\nmax-num-seqs: 16\n", "same.yaml")
    done = CliRunner().invoke(app, ["compare", str(made), number, str(file), "--repeats", "2"])
    assert done.exit_code == 0, done.output
    assert "vLLM's defaults" not in done.output
    assert f"A {number}: the same configuration as B" in " ".join(done.output.split())
