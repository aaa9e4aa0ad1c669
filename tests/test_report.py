from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tuner.attribution import Attribution, Changed, Effect, Ratio
from tuner.config import EngineConfig
from tuner.objectives import Objective
from tuner.presets import DEFAULT_BASELINE, Provenance, choose
from tuner.records import (
    Cost,
    Dominated,
    Faulted,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    TrialRecord,
)
from tuner.report import markdown, verdict_note, write_report
from tuner.report_content import banners, mismatches, summary
from tuner.report_failures import failures
from tuner.report_figures import Shown, beyond, front_figure
from tuner.report_knobs import set_back, set_back_text
from tuner.report_parallel import parallel_figure
from tuner.report_table import front_rows, front_table
from tuner.report_text import (
    change,
    differences,
    half_width,
    number,
    quantity,
    seconds,
    title,
    unit,
)
from tuner.report_timeline import hypervolume_shares, placed, timeline_figure
from tuner.report_verdict import decide
from tuner.results import StudyResults

UP = Objective("saturated.output_tokens_per_s", True)
DOWN = Objective("paced.e2e.p99", False)


def trial(number: int, scores: tuple[float, ...], label: str = "", **args) -> TrialRecord:
    config = EngineConfig("m", args, label=label)
    return TrialRecord(number, config, {}, Measured(Measurement({})), scores)


BASE = trial(0, (800.0, 1.6), DEFAULT_BASELINE, block_size=32)
FRONT = [
    trial(3, (1000.0, 1.2), max_num_seqs=64, enable_prefix_caching=False, block_size=32),
    trial(5, (2000.0, 2.4), block_size=32, compilation_config={"cudagraph_mode": "PIECEWISE"}),
]


@pytest.mark.parametrize(
    ("metric", "symbol"),
    [
        ("saturated.output_tokens_per_s", "tok/s"),
        ("capacity.requests_per_s", "req/s"),
        ("paced.goodput", "req/s"),
        ("paced.ttft.p99", "ms"),
        ("paced.itl.mean", "ms"),
        ("paced.lateness.max", "ms"),
        ("paced.error_share", "%"),
        ("paced.attainment", "%"),
        ("saturated.preemptions", ""),
        ("something", ""),
    ],
)
def test_every_metric_has_its_unit(metric: str, symbol: str) -> None:
    assert unit(metric).symbol == symbol


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.5, "1.50"),
        (99.94, "99.9"),
        (812.3, "812"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_have_three_to_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_quantities_are_shown_in_the_unit_of_people() -> None:
    assert quantity(1.5324, DOWN.metric) == "1,532 ms"
    assert quantity(0.013, "paced.error_share") == "1.30 %"
    assert title(DOWN.metric) == "P99 end-to-end latency (paced)"
    assert title("paced.ttft.p50") == "Median time to first token (paced)"
    assert title("saturated.preemptions") == "Preemptions (saturated)"


def test_durations_are_short() -> None:
    assert [seconds(s) for s in (0.085, 7.21, 75, 725, 7400)] == [
        "85 ms",
        "7.2 s",
        "75 s",
        "12 min 05 s",
        "2 h 03 min",
    ]


def test_changes_say_percent_until_they_double() -> None:
    assert [change(r) for r in (1.32, 0.925, 3.1)] == ["+32 %", "-7.5 %", "3.1 x"]


def test_differences_are_flat_and_name_what_is_unset() -> None:
    ours = EngineConfig("m", {"a": {"b": 1, "c": 2}}, {"X": "1"})
    theirs = EngineConfig("m", {"a": {"b": 1}, "d": True})
    assert differences(ours, theirs) == {"$X": "1", "a.c": 2, "d": None}


def shown(front: list[TrialRecord], baselines: list[TrialRecord]) -> str:
    presets = choose(front, [UP, DOWN], Provenance("s"), BASE)
    out = io.StringIO()
    Console(file=out, width=140).print(front_table(front, [UP, DOWN], baselines, presets))
    return out.getvalue()


def test_the_table_holds_members_against_the_default() -> None:
    text = shown(FRONT, [BASE])
    lines = text.splitlines()
    rows = [i for i, line in enumerate(lines) if "tok/s" in line]
    assert [lines[i].split()[0] for i in rows] == ["0", "5", "3"]
    assert "2.5 x" in lines[rows[1] + 1]
    assert "+50 %" in lines[rows[1] + 1]
    assert "enable_prefix_caching off" in text
    assert "block_size" not in text


def test_what_all_members_set_alike_stands_once_below_the_table() -> None:
    sizes = list(range(1, 60))
    both = [
        trial(n, (1000.0 + n, 1.2 - n / 10), max_num_seqs=n, cudagraph_capture_sizes=sizes)
        for n in (3, 5)
    ]
    text = shown(both, [BASE])
    assert text.count("cudagraph_capture_sizes") == 1
    assert "The same in all but the baselines: " in text


def test_confirmed_means_stand_with_half_their_interval() -> None:
    out = io.StringIO()
    bounds = {5: {UP.metric: (1950.0, 2050.0), DOWN.metric: (2.3, 2.5)}}
    Console(file=out, width=140).print(front_table(FRONT, [UP, DOWN], [BASE], (), bounds))
    assert "± 50.0 tok/s" in out.getvalue()
    assert "± 100 ms" in out.getvalue()
    row = front_rows(FRONT, [UP, DOWN], [BASE], (), bounds)[1]
    assert (row["paced.e2e.p99.low_ms"], row["paced.e2e.p99.high_ms"]) == (2300.0, 2500.0)
    assert row["saturated.output_tokens_per_s.low"] == 1950.0


def test_the_table_says_when_there_is_no_default() -> None:
    assert "not measured" in shown(FRONT, [])
    assert "vllm serve defaults" in shown([BASE], [BASE])


def test_the_rows_share_their_columns_and_are_in_milliseconds() -> None:
    rows = front_rows(FRONT, [UP, DOWN], [BASE])
    assert [(row["trial"], row["kind"]) for row in rows] == [
        (0, "baseline"),
        (5, "member"),
        (3, "member"),
    ]
    assert len({tuple(row) for row in rows}) == 1
    assert rows[1]["paced.e2e.p99_ms"] == 2400.0
    assert rows[1]["saturated.output_tokens_per_s"] == 2000.0
    assert rows[1]["saturated.output_tokens_per_s.ratio_to_default"] == 2.5
    assert rows[1]["compilation_config.cudagraph_mode"] == "PIECEWISE"


def ended(number: int, outcome: Outcome) -> TrialRecord:
    return TrialRecord(number, EngineConfig("m"), {}, outcome, cost=Cost(start_s=20.0, gpus=1))


FAILED = [
    ended(6, Infeasible("out_of_memory", "tried <b>2 GiB</b>")),
    ended(7, Infeasible("out_of_memory", "again")),
    ended(8, Faulted("engine_died", "exit -9")),
    ended(9, Dominated({UP.metric: 1.0}, "bound")),
]


def verdict_of(front: list[TrialRecord], base: TrialRecord | None = BASE, **kwargs):
    presets = choose(front, [UP, DOWN], Provenance("s", **kwargs), base)
    records = [*front, *([base] if base else [])]
    return decide(presets, [UP, DOWN], base, records)


def test_what_is_better_in_everything_is_to_be_deployed() -> None:
    verdict = verdict_of([trial(1, (1200.0, 0.8)), trial(2, (2000.0, 3.0))])
    assert (verdict.tone, verdict.preset.trial) == ("gain", 1)
    assert verdict.headline.startswith("Deploy ")
    assert "+50 % output throughput, -50 % P99 end-to-end latency" in verdict.headline


def test_a_trade_is_called_one_and_names_who_beats_the_default_all_round() -> None:
    front = [trial(1, (2000.0, 2.4)), trial(2, (810.0, 1.5)), trial(3, (400.0, 0.2))]
    presets = [p for p in choose(front, [UP, DOWN], Provenance("s"), BASE) if p.trial != 2]
    verdict = decide(presets, [UP, DOWN], BASE, [*front, BASE])
    assert verdict.tone == "trade"
    assert "Trial 2 beats them in every objective" in verdict.lead


def test_a_gain_within_the_noise_is_no_reason_to_switch() -> None:
    assert verdict_of([trial(1, (810.0, 1.58))]).headline.startswith("Keep what you run")


def test_a_loss_within_the_noise_does_not_cost_a_large_gain_its_place() -> None:
    front = [trial(1, (806.0, 1.2)), trial(2, (790.0, 0.6)), trial(3, (600.0, 0.5))]
    verdict = verdict_of(front)
    assert (verdict.tone, verdict.preset.trial) == ("gain", 2)
    assert "-1.2 % output throughput, -62 % P99 end-to-end latency" in verdict.headline


def test_of_presets_as_good_as_each_other_the_balanced_one_is_recommended() -> None:
    front = [trial(1, (900.0, 1.0)), trial(2, (890.0, 0.7)), trial(3, (860.0, 0.67))]
    assert verdict_of(front).preset.name == "balanced"


def test_the_default_on_its_own_front_is_kept() -> None:
    assert verdict_of([BASE]).tone == "same"


def test_without_a_default_no_gain_is_claimed() -> None:
    verdict = verdict_of(FRONT, None)
    assert verdict.tone == "alone"
    assert "no gain can be stated" in verdict.lead


def test_a_default_that_misses_a_constraint_is_no_bar() -> None:
    base = TrialRecord(0, BASE.config, {}, BASE.outcome, BASE.scores, (1.0,))
    assert verdict_of([trial(1, (700.0, 1.7))], base).tone == "meets"


def test_nothing_to_deploy_says_why() -> None:
    assert "4 trials gave a measurement" in decide([], [UP, DOWN], None, FAILED).lead
    assert "every constraint" in decide([], [UP, DOWN], None, FRONT).lead
    assert "No trial has finished" in decide([], [UP, DOWN], None, []).lead


def test_how_sure_it_is_comes_from_how_it_was_measured() -> None:
    single = " ".join(verdict_of(FRONT).sure)
    assert "Not confirmed" in single
    assert "To know better: 3 configurations" in single
    sure = verdict_of([trial(1, (1200.0, 0.8))], confirmed={1: 3}).sure
    assert "measured 3 more times" in " ".join(sure)
    twice = [trial(1, (1200.0, 0.8)), trial(2, (1000.0, 0.8))]
    assert "differ by up to 20.0 %" in " ".join(verdict_of(twice).sure)
    assert "tuner run" in single


def test_failures_are_grouped_with_what_to_do() -> None:
    missed = TrialRecord(1, EngineConfig("m"), {}, Measured(Measurement({})), (1.0, 1.0), (0.5,))
    first, *rest = failures([*FAILED, missed])
    assert (first.reason, first.trials) == ("out_of_memory", (6, 7))
    assert {f.reason for f in rest} == {"engine_died", "dominated", "constraint_missed"}
    assert all(failure.advice for failure in [first, *rest])
    assert failures(FRONT) == []


def test_the_hypervolume_ends_at_the_whole_front() -> None:
    shown = Shown([*FAILED[:1], *FRONT, BASE], [*FRONT, BASE], [UP, DOWN], [])
    shares = hypervolume_shares(shown)
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert hypervolume_shares(Shown(FAILED, [], [UP, DOWN], [])) == [0.0] * 4


def test_the_front_s_picture_leaves_far_off_trials_outside() -> None:
    far = trial(9, (10.0, 90.0))
    shown = Shown([*FRONT, BASE, far], FRONT, [UP, DOWN], [])
    assert beyond(shown) == 1
    front = next(t for t in front_figure(shown)["data"] if t["name"] == "front")
    assert front["y"] == [1200.0, 2400.0]
    assert "enable_prefix_caching = off" in front["hovertext"][0]


@pytest.mark.parametrize("objectives", [[UP], [UP, DOWN], [UP, DOWN, Objective("x", True)]])
def test_one_two_and_three_objectives_have_a_picture(objectives: list[Objective]) -> None:
    records = [trial(i, (100.0 + i, 1.0 + i, 5.0)[: len(objectives)]) for i in range(3)]
    figure = front_figure(Shown(records, records[1:], objectives, []))
    json.dumps(figure, allow_nan=False)


def test_parallel_lines_need_two_knobs_that_vary() -> None:
    records = [
        TrialRecord(i, EngineConfig("m"), {"a": 2**i, "b": i % 2 == 0, "c": 1}, r.outcome, r.scores)
        for i, r in enumerate([*FRONT, BASE])
    ]
    figure = parallel_figure(Shown(records, records[:1], [UP, DOWN], []))
    assert [len(trace["y"]) for trace in figure["data"]] == [4, 4, 4]
    assert parallel_figure(Shown(FRONT, FRONT, [UP, DOWN], [])) is None


def test_what_the_engine_changed_is_named() -> None:
    facts = {"effective": {"max_num_seqs": 40, "block_size": 16, "dtype": "bfloat16"}}
    args = {"max_num_seqs": 42, "block_size": 16, "dtype": "auto"}
    outcome = Measured(Measurement({}, {}, facts))
    record = TrialRecord(3, EngineConfig("m", args), {}, outcome, (1.0, 1.0))
    assert mismatches([record]) == [("max_num_seqs", "42", "40", "3")]


def test_banners_say_what_the_numbers_are_not() -> None:
    dummy = [trial(1, (1.0, 1.0), load_format="dummy")]
    gpu = {"gpus": ["NVIDIA H200"]}
    assert "Simulated" in banners(Provenance("s", simulated=True), dummy)[0]
    assert "text is not" in banners(Provenance("s", hardware=gpu), dummy)[0]
    assert "CPU" in banners(Provenance("s", hardware={"gpus": []}), FRONT)[0]
    assert banners(Provenance("s", hardware=gpu), FRONT) == []


def test_the_summary_counts_outcomes_and_seconds() -> None:
    text = summary([*FRONT, *FAILED])
    assert text.startswith("6 trials: 2 measured, 2 infeasible, ")
    assert "4 engine starts; 80 s spent" in text


def study(records: list[TrialRecord], folder: Path) -> StudyResults:
    return StudyResults(folder, "a <study>", (UP, DOWN), (), tuple(records))


def test_the_verdict_is_there_as_a_note(tmp_path: Path) -> None:
    results = study([*FRONT, BASE], tmp_path)
    note = verdict_note(results, results.presets(results.provenance()))
    assert note.startswith("## ")
    assert "Not confirmed" in note
    assert "`vllm serve --config presets/" in note


def test_the_markdown_holds_verdict_table_settings_and_conditions(tmp_path: Path) -> None:
    results = study([*FRONT, BASE], tmp_path)
    provenance = Provenance("s", versions={"vllm": "0.32.0"})
    text = markdown(results, results.presets(provenance), provenance)
    assert text.startswith("## ")
    assert "| 5 | max-throughput" in text
    assert "`enable_prefix_caching=off`" in text
    assert "```yaml" in text
    assert "| vllm | `0.32.0` |" in text


def spent(number: int, span_s: tuple[float, float] | None, cost: Cost) -> TrialRecord:
    return replace(trial(number, (1.0, 1.0)), span_s=span_s, cost=cost)


def test_the_timeline_tells_slots_apart_by_overlap_and_cuts_pauses_out() -> None:
    cost = Cost(start_s=4.0, replay_s=6.0)
    records = [
        spent(0, (1000.0, 1010.0), cost),
        spent(1, (1001.0, 1011.0), cost),
        spent(2, (1010.0, 1020.0), cost),
        spent(3, (90000.0, 90010.0), cost),
    ]
    found = placed(records, [])
    assert [(p.record.number, p.slot, p.began_s) for p in found] == [
        (0, 0, 0.0), (1, 1, 1.0), (2, 0, 10.0), (3, 0, 20.0),
    ]  # fmt: skip
    figure = timeline_figure(found)
    replay = next(t for t in figure["data"] if t["name"] == "replay")
    assert [b * 60 for b in replay["base"]] == pytest.approx([4.0, 5.0, 14.0, 24.0])


def test_virtual_time_is_laid_out_by_what_trials_cost() -> None:
    records = [spent(n, (5.0, 5.1), Cost(replay_s=60.0)) for n in range(2)]
    repeat = replace(spent(0, (6.0, 6.1), Cost(replay_s=30.0)), point={"member": 1, "repeat": 0})
    found = placed(records, [repeat])
    assert [(p.words, p.began_s) for p in found] == [
        ("trial 0", 0.0), ("trial 1", 60.0), ("repeat of trial 1", 120.0),
    ]  # fmt: skip


def written(records: list[TrialRecord], folder: Path) -> str:
    results = study(records, folder)
    provenance = Provenance("a <study>", versions={"vllm": "0.32.0"}, command="tuner run s.yaml")
    path = folder / "report.html"
    write_report(path, results, results.presets(provenance), provenance)
    assert list(folder.iterdir()) == [path]
    return path.read_text(encoding="utf-8")


def test_the_report_is_one_file_that_asks_for_nothing_else(tmp_path: Path) -> None:
    text = written([*FRONT, BASE, *FAILED], tmp_path)
    own = text[: text.index("<script>")] + text[text.rindex("<script>") :]
    assert not re.search(r"""(src|href)=["']?http""", own)
    assert "a &lt;study&gt;" in own
    assert "tried &lt;b&gt;2 GiB" in own
    assert "<b>2 GiB" not in own
    assert "vllm serve --config presets/" in own
    assert own.count("data-figure=") == 3


@pytest.mark.parametrize("records", [[], FAILED, FRONT[:1], [BASE]])
def test_a_report_is_written_whatever_there_is(records: list[TrialRecord], tmp_path: Path) -> None:
    assert "<h1>" in written(records, tmp_path)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the page is not drawn")
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    written([*FRONT, BASE, *FAILED], tmp_path / "out")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [str(CHROMIUM), *flags, (tmp_path / "out" / "report.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("js-plotly-plot") >= 3


def test_knobs_set_back_are_rows_with_a_sentence() -> None:
    effects = (
        Effect(
            Changed("max_num_seqs", 64, 256), "matters", {UP.metric: Ratio(0.8, 0.75, 0.85)}, 0.2
        ),
        Effect(Changed("block_size", 32), "may go", {UP.metric: Ratio(1.0)}),
    )
    found = Attribution("balanced", 5, EngineConfig("m"), 2, effects)
    first, second = set_back(found, [UP, DOWN])
    assert (first.value, first.default, second.default) == ("64", "256", "unset")
    assert first.scores == (("-20 %", "-25 % to -15 %"), ("–", ""))
    text = set_back_text(found)
    assert text.startswith("The gain of balanced comes from max_num_seqs.")
    assert "block_size may go" in text
    assert set_back(None, [UP]) == []


def test_the_rounding_of_floats_is_no_spread() -> None:
    up = UP.metric
    assert half_width((3050.086996657553, 3050.08699665764), up) == "± 0 tok/s"
    assert half_width((3050.0, 3050.2), up) == "± 0.100 tok/s"
    assert half_width((0.0, 0.0), up) == "± 0 tok/s"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.99999, "1.00"), (0.0999999, "0.100"), (99.99, "100"), (-9.999, "-10.0"), (1234.5, "1,234")],
)
def test_a_number_that_rounds_up_keeps_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown
