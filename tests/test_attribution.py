"""Attribution: which knobs a gain comes from, found where one was planted."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import optuna
import pytest
import yaml
from typer.testing import CliRunner

from tests.study_case import load
from tuner import explain
from tuner.again import Again
from tuner.attribution import Changed, Plan, attribute, differences, minimal_config, without
from tuner.beforehand import ends
from tuner.cli import app
from tuner.config import EngineConfig
from tuner.demotion import ATTRIBUTE
from tuner.engines.simulated_costs import DEFAULTS
from tuner.explain import explain_study, reaching
from tuner.objectives import Objective
from tuner.records import Infeasible, Measured, Measurement, TrialRecord
from tuner.results import load_results, open_store
from tuner.runner import run_study
from tuner.store import sqlite_url
from tuner.study import StudySpec
from tuner.surroundings import Surroundings

UP, DOWN = Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False)
WINNER = EngineConfig("m", {"a": 1, "b": 2, "c": {"d": 3}, "e": 5})
KNOBS = ("a", "b", "c.d")


def plan() -> Plan:
    changed, same = differences([*KNOBS, "e", "gone"], WINNER, {"b": 20, "e": 5})
    return Plan("balanced", 7, WINNER, tuple(changed), tuple(same))


def runs(member: int, *scores: tuple[float, float]) -> list[TrialRecord]:
    measured = Measured(Measurement({}))
    return [
        TrialRecord(10 * member + i, WINNER, {"member": member, "repeat": i}, measured, pair)
        for i, pair in enumerate(scores)
    ]


def test_a_plan_sets_each_knob_back_alone_and_leaves_out_what_is_the_default() -> None:
    found = plan()
    assert found.same == ("e",)
    members = dict(found.members)
    assert members[0] == WINNER
    assert members[1].args == {"b": 2, "c": {"d": 3}, "e": 5}
    assert members[2].args == {**WINNER.args, "b": 20}
    assert members[3].args == {"a": 1, "b": 2, "e": 5}
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_what_harms_most_stands_first_and_what_does_nothing_may_go() -> None:
    records = [
        *runs(0, (100.0, 1.0)),
        *runs(1, (99.0, 1.01)),
        *runs(2, (80.0, 1.1)),
        *runs(3, (101.0, 1.5)),
    ]
    found = attribute(plan(), records, (UP, DOWN))
    assert found is not None
    assert [effect.changed.knob for effect in found.effects] == ["c.d", "b", "a"]
    assert found.matters == ("c.d", "b")
    assert found.may_go == ("a",)
    assert found.effects[0].loss == pytest.approx(0.5)
    assert found.effects[0].ratios[UP.metric].value == pytest.approx(1.01)
    assert minimal_config(found).args == {"b": 2, "c": {"d": 3}}


def test_repeats_decide_within_the_noise() -> None:
    steady = [(97.0, 1.0), (97.1, 1.0), (96.9, 1.0)]
    wild = [(80.0, 1.0), (110.0, 1.0), (90.0, 1.0)]
    winner = [(100.0, 1.0), (100.1, 1.0), (99.9, 1.0)]
    records = [*runs(0, *winner), *runs(1, *steady), *runs(2, *wild)]
    found = attribute(plan(), records, (UP, DOWN))
    assert found is not None
    standing = {effect.changed.knob: effect.standing for effect in found.effects}
    assert standing == {"a": "matters", "b": "unclear", "c.d": "not measured"}
    ratio = next(e for e in found.effects if e.changed.knob == "a").ratios[UP.metric]
    assert ratio.high is not None
    assert ratio.high < 1


def test_a_sure_trifle_does_not_matter() -> None:
    records = [*runs(0, (100.0, 1.0), (100.0, 1.0)), *runs(1, (99.5, 1.0), (99.5, 1.0))]
    found = attribute(plan(), records, (UP, DOWN))
    assert found is not None
    assert found.may_go == ("a",)


def test_what_may_go_alone_stays_where_it_matters_together() -> None:
    records = [*runs(0, (100.0, 1.0)), *runs(1, (99.0, 1.0)), *runs(2, (99.0, 1.0))]
    apart = attribute(plan(), records, (UP, DOWN))
    number, config = plan().minimal(["a", "b"])
    assert config.args == {"c": {"d": 3}}
    together = attribute(plan(), [*records, *runs(number, (60.0, 1.0))], (UP, DOWN))
    assert apart is not None
    assert together is not None
    assert apart.may_go == ("a", "b")
    assert together.may_go == ()
    assert minimal_config(together).args == {"a": 1, "b": 2, "c": {"d": 3}}


def test_a_knob_that_cannot_be_set_back_says_why() -> None:
    refused = TrialRecord(
        5, WINNER, {"member": 1, "repeat": 0}, Infeasible("out_of_memory", "too big")
    )
    one = Plan("balanced", 7, WINNER, (Changed("a", 1), Changed("b", 2, refused="not alone")))
    found = attribute(one, [*runs(0, (100.0, 1.0)), refused], (UP, DOWN))
    assert found is not None
    assert [effect.why for effect in found.effects] == ["out_of_memory: too big", "not alone"]
    assert found.may_go == ()


def test_without_the_winner_nothing_is_said() -> None:
    assert attribute(plan(), runs(1, (99.0, 1.0)), (UP, DOWN)) is None


def test_nested_arguments_are_left_open_one_by_one() -> None:
    config = EngineConfig("m", {"c": {"d": 3, "e": {"f": 1}}, "g": 2})
    assert without(config, ["c.d", "g"]).args == {"c": {"e": {"f": 1}}}
    assert without(config, ["c.e.f", "c.d"]).args == {"g": 2}
    assert without(config, ["x", "g.y"]).args == config.args


#: Of these only the quantized weights make a difference to 40 requests: there are never more than
#: 64 at once, nothing is scheduled by priority, and blocks are never short.
PLANTED = {
    "space": "{knobs: {quantization: {choice: [null, fp8]}},"
    " fixed: {max-num-seqs: 64, scheduling-policy: priority, block-size: 16}}",
    "workload": "{synthetic: {requests: 40, prompt_tokens: 64, output_tokens: 32},"
    " measures: [saturated]}",
    "objectives": "[{metric: saturated.output_tokens_per_s, direction: maximize}]",
    "budget": "{trials: 2}",
    "confirm": "{members: 0}",
    "attribution": "{trials: 5}",
}


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a study with a planted knob, on the simulated engine."""
    folder = tmp_path_factory.mktemp("planted")
    run_study(load(folder, **PLANTED), Surroundings(folder / "results"))
    return folder / "results"


@pytest.fixture(scope="module")
def explained(studied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, explained as the study asks for it: ``tuner run`` goes on where it was."""
    folder = tmp_path_factory.mktemp("explained") / "results"
    shutil.copytree(studied, folder)
    study = str(studied.parent / "case.yaml")
    done = CliRunner().invoke(app, ["run", study, "--out", str(folder)])
    assert done.exit_code == 0
    assert "matters   quantization\n" in done.output
    return folder


def test_the_planted_knob_is_the_one_that_matters(explained: Path) -> None:
    found = load_results(explained).attribution
    assert found is not None
    assert found.matters == ("quantization",)
    assert set(found.may_go) == {"max_num_seqs", "scheduling_policy"}
    assert found.same == ("block_size",)
    assert found.repeats == 1
    assert found.effects[0].loss > 0.1
    assert found.minimal is not None
    assert found.minimal.standing == "may go"


def test_it_is_not_measured_again(explained: Path) -> None:
    """Five runs: the winner, three knobs and the minimal form."""
    results = load_results(explained)
    assert results.attribution is not None
    storage = sqlite_url(explained)
    [name] = [n for n in optuna.get_all_study_names(storage) if n.startswith("case-explain-")]
    trials = optuna.load_study(storage=storage, study_name=name).trials
    assert len(trials) == 5
    code = CliRunner().invoke(app, ["explain", str(explained), "--trials", "5", "--json"])
    assert json.loads(code.stdout[code.stdout.index("{") :]) == results.attribution.to_json()
    again = optuna.load_study(storage=storage, study_name=name).trials
    assert len(again) == len(trials)


def test_the_table_names_what_matters_and_what_may_go(explained: Path) -> None:
    said = CliRunner().invoke(app, ["explain", str(explained), "--trials", "5"]).output
    assert "matters   quantization\n" in said
    assert "block_size" in said.partition("may go    ")[2]
    assert "each configuration measured once" in said


def test_the_run_wrote_both_forms(explained: Path) -> None:
    names = {path.name for path in (explained / "presets").glob("*.yaml")}
    assert names == {"max-throughput.yaml", "max-throughput-minimal.yaml"}


def test_the_minimal_form_has_only_what_matters(explained: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(explained), "--minimal", "--to", str(tmp_path)])
    assert done.exit_code == 0
    keys = yaml.safe_load((tmp_path / "max-throughput-minimal.yaml").read_text())
    assert keys == {"model": "org/model", "quantization": "fp8"}
    record = json.loads((tmp_path / "max-throughput-minimal.json").read_text())["provenance"]
    assert record["minimal_of"] == "max-throughput"
    assert set(record["left_out"]) == {"max_num_seqs", "scheduling_policy", "block_size"}
    assert record["caution"].startswith("scores are the full form's; runs of each")
    assert record["ratio_to_full_form"] == pytest.approx({UP.metric: 1.0}, abs=0.05)


def test_a_small_budget_looks_at_the_first_knobs_and_a_larger_one_goes_on(
    studied: Path, tmp_path: Path
) -> None:
    shutil.copytree(studied, tmp_path / "results")
    spec = load(tmp_path, "attribution.trials=2", **PLANTED)
    explain_study(spec, Surroundings(tmp_path / "results"))
    found = load_results(tmp_path / "results").attribution
    assert found is not None
    standing = {effect.changed.knob: effect.standing for effect in found.effects}
    unseen = "not measured"
    assert standing == {
        "quantization": "matters", "max_num_seqs": unseen, "scheduling_policy": unseen,
    }  # fmt: skip
    assert found.may_go == ()
    explain_study(load(tmp_path, **PLANTED), Surroundings(tmp_path / "results"))
    more = load_results(tmp_path / "results").attribution
    assert more is not None
    assert set(more.may_go) == {"max_num_seqs", "scheduling_policy"}


def test_a_knob_that_measures_otherwise_live_is_not_changed_live(
    studied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(studied, tmp_path / "results")
    found = {"max_num_seqs": 1.25}
    open_store(tmp_path / "results").study.set_user_attr(ATTRIBUTE, found)
    used: list[Again] = []

    def measured(spec: StudySpec, around: Surroundings, again: Again) -> str:
        used.append(again)
        return "done"

    monkeypatch.setattr(explain, "temperatures", lambda spec, checker: {"max_num_seqs": "hot"})
    monkeypatch.setattr(explain, "checking", lambda spec, cache: nullcontext(object()))
    monkeypatch.setattr(explain, "refusing", lambda checker, workload: lambda config: None)
    monkeypatch.setattr(explain, "defaults", lambda base, names, checker: DEFAULTS)
    monkeypatch.setattr(explain, "measure_again", measured)
    explain_study(load(tmp_path, **PLANTED), Surroundings(tmp_path / "results"))
    assert used[0].warmth == {"max_num_seqs": "warm"}


def test_one_live_engine_reaches_the_defaults_beyond_the_space(tmp_path: Path) -> None:
    spec = load(tmp_path, space="{knobs: {max-num-seqs: {int: [4, 64]}, block-size: {choice: [16]},"
                " stream-interval: {choice: [1, 2]}}}")  # fmt: skip
    hot = [Changed("max_num_seqs", 8, 256), Changed("stream_interval", 2, 1)]
    reached = reaching(spec, hot).space
    assert ends(reached["max_num_seqs"]) == [4, 64, 256]
    assert reached["stream_interval"] == spec.space["stream_interval"]


def test_a_preset_that_there_is_not_is_bad_input(explained: Path) -> None:
    done = CliRunner().invoke(app, ["explain", str(explained), "--preset", "best"])
    assert done.exit_code == 2
    assert "there is: max-throughput" in done.output


def test_without_a_front_there_is_nothing_to_explain(tmp_path: Path) -> None:
    spec = load(
        tmp_path, **{**PLANTED, "constraints": "[{metric: saturated.requests_per_s, min: 1.0e9}]"}
    )
    around = Surroundings(tmp_path / "results")
    run_study(spec, around)
    assert explain_study(spec, around) == "nothing to explain"
