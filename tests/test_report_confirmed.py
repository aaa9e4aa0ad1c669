"""What the report claims after a confirmation: gains, trades, gains that vanish, and prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.config import EngineConfig
from tuner.confirm import confirmed
from tuner.objectives import Objective
from tuner.presets import DEFAULT_BASELINE, Provenance
from tuner.records import Cost, Measured, Measurement, TrialRecord
from tuner.report import verdict_of
from tuner.report_agreement import agreement_text, agreements
from tuner.report_verdict import Verdict
from tuner.results import StudyResults

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))
Pairs = list[tuple[float, float]]
BASE: Pairs = [(100, 1.0), (104, 1.02), (98, 0.98)]
OWN = "baseline: as we run it"


def trial(number: int, scores: tuple[float, float], label: str = "", **point: int) -> TrialRecord:
    config = EngineConfig("m", {"max_num_seqs": number}, label=label)
    facts = {"trace_digest": "search"}
    measured = Measured(Measurement({}, {}, facts))
    return TrialRecord(number, config, point, measured, scores, cost=Cost(start_s=20, replay_s=10))


def results(
    search: dict[int, tuple[float, float]], again: dict[int, Pairs], digest: str = "search"
) -> StudyResults:
    """Trial 0 is vLLM's defaults, trial 1 the user's own configuration."""
    labels = {0: DEFAULT_BASELINE, 1: OWN}
    records = [trial(n, scores, labels.get(n, "")) for n, scores in search.items()]
    repeats = [
        replace(
            trial(n, pair, labels.get(n, ""), member=n, repeat=i),
            outcome=Measured(Measurement({}, {}, {"trace_digest": digest})),
        )
        for n, pairs in again.items()
        for i, pair in enumerate(pairs)
    ]
    found = confirmed(repeats, records, OBJECTIVES)
    return StudyResults(
        Path("out"), "s", OBJECTIVES, (), tuple(records),
        confirmed=tuple(found), repeats=tuple(repeats),
    )  # fmt: skip


def verdict(*args: object, **kwargs: str) -> Verdict:
    found = results(*args, **kwargs)  # type: ignore[arg-type]
    return verdict_of(found, found.presets(Provenance("s", confirmed={3: 3, 4: 3})))


GAIN: Pairs = [(150, 0.8), (157, 0.82), (146, 0.79)]


def test_a_gain_that_is_shown_is_deployed_with_its_interval() -> None:
    found = verdict({0: (100, 1.0), 3: (150, 0.8)}, {0: BASE, 3: GAIN})
    assert found.tone == "gain"
    assert (
        found.headline == "Deploy balanced: +50 % output throughput, -20 % P99 end-to-end latency"
    )
    assert found.launch == "vllm serve --config presets/balanced.yaml"
    [row] = found.against
    assert (row.baseline, row.repeats) == ("vLLM's defaults", 3)
    assert [cell.verdict for cell in row.cells] == ["better", "better"]
    low, high = row.cells[0].interval.split(" to ")
    assert float(low.strip("+ %")) < 50 < float(high.strip("+ %"))


def test_the_user_s_own_configuration_is_held_against_too() -> None:
    own: Pairs = [(140, 0.9), (145, 0.92), (137, 0.89)]
    search = {0: (100, 1.0), 1: (140, 0.9), 3: (150, 0.8)}
    found = verdict(search, {0: BASE, 1: own, 3: GAIN})
    assert [row.baseline for row in found.against] == ["vLLM's defaults", "“as we run it”"]


def test_a_gain_that_vanishes_is_said_plainly_and_nothing_is_deployed() -> None:
    noise: Pairs = [(104, 0.9), (97, 1.1), (103, 0.99)]
    found = verdict({0: (100, 1.0), 3: (130, 0.7)}, {0: BASE, 3: noise})
    assert found.tone == "small"
    assert found.headline == "Keep vLLM's defaults: no gain is shown"
    assert "A gain that vanished: the search's single measurement gave +30 %" in found.lead
    assert found.launch == ""


def test_a_gain_that_only_lacks_repeats_has_not_vanished() -> None:
    wide: Pairs = [(160, 1.0), (104, 1.02), (165, 0.98)]
    found = verdict({0: (100, 1.0), 3: (140, 1.0)}, {0: BASE, 3: wide})
    assert "A gain that is not proven: the search's single measurement gave +40 %" in found.lead


def test_repeats_that_agree_in_nothing_leave_anything_open() -> None:
    wild: Pairs = [(900, 0.1), (20, 9.0)]
    found = verdict({0: (100, 1.0), 3: (140, 1.0)}, {0: BASE, 3: wild})
    assert {cell.interval for cell in found.against[0].cells} == {
        "anything: the repeats lie too far apart"
    }


def test_better_here_and_worse_there_is_a_trade() -> None:
    trade: Pairs = [(150, 1.5), (156, 1.53), (147, 1.47)]
    found = verdict({0: (100, 1.0), 3: (150, 1.5)}, {0: BASE, 3: trade})
    assert found.tone == "trade"
    assert "+50 % output throughput" in found.headline


def test_what_is_not_shown_has_a_price_in_repeats_minutes_and_a_command() -> None:
    mixed: Pairs = [(150, 0.9), (156, 1.1), (147, 1.0)]
    found = verdict({0: (100, 1.0), 3: (150, 0.8)}, {0: BASE, 3: mixed})
    assert found.headline.endswith("no difference shown in P99 end-to-end latency")
    [price] = [line for line in found.sure if line.startswith("To know better")]
    repeats = int(price.split("about ")[1].split(" repeats")[0])
    assert repeats > 3
    # Two configurations, 30 s a repeat, in whole minutes.
    assert f"about {repeats - 3} min more for all 2 confirmed configurations" in price
    assert "a difference of 5 % in P99 end-to-end latency" in price
    assert f"`tuner run out/study.yaml --out out --set confirm.repeats={repeats}`" in price


def test_repeats_that_would_have_shown_a_difference_are_enough() -> None:
    close: Pairs = [(150, 1.001), (156, 1.019), (147, 0.981)]
    found = verdict({0: (100, 1.0), 3: (150, 0.8)}, {0: BASE, 3: close})
    assert any(line.startswith("Enough repeats: a difference of 5 %") for line in found.sure)


def test_where_all_is_shown_the_price_is_of_narrower_intervals() -> None:
    found = verdict({0: (100, 1.0), 3: (150, 0.8)}, {0: BASE, 3: GAIN})
    assert any("half as wide take 12 repeats instead of 3" in line for line in found.sure)


@pytest.mark.parametrize(("digest", "said"), [("held-out", True), ("search", False)])
def test_a_held_out_part_of_the_trace_is_named(digest: str, said: bool) -> None:
    found = verdict({0: (100, 1.0), 3: (150, 0.8)}, {0: BASE, 3: GAIN}, digest=digest)
    assert any("never saw" in line for line in found.sure) is said


def test_the_best_shown_gain_is_recommended_among_presets() -> None:
    more: Pairs = [(170, 0.9), (176, 0.92), (167, 0.89)]
    search = {0: (100, 1.0), 3: (150, 0.8), 4: (170, 0.9)}
    found = verdict(search, {0: BASE, 3: GAIN, 4: more})
    assert found.preset is not None
    # Larger gains by their logarithms: 1.71 and 0.90 against 1.50 and 0.80.
    assert found.preset.trial == 4
    assert found.tone == "gain"


def test_a_search_that_was_too_good_is_named() -> None:
    found = results({0: (100, 1.0), 3: (200, 0.8)}, {0: BASE, 3: GAIN})
    rows = agreements(found.confirmed, found.records, OBJECTIVES, [])
    assert [row.scores[0].far for row in rows] == [False, True]
    assert "trial 3 in output throughput (-24 %)" in agreement_text(rows, OBJECTIVES)
    assert "No score" in agreement_text(rows[:1], OBJECTIVES)
