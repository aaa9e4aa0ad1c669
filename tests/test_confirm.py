"""Confirmation: who is measured again, in which order, and what the repeats may claim."""

from collections import Counter
from pathlib import Path

import pytest

from tuner.cli_run import verdicts
from tuner.config import EngineConfig
from tuner.confirm import confirmed, finalists
from tuner.objectives import Objective
from tuner.records import Cost, Faulted, Measured, Measurement, TrialRecord
from tuner.results import StudyResults
from tuner.store import Store, sqlite_url
from tuner.strategies.repeats import Repeats

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))
BASE = EngineConfig("m", label="baseline: vllm serve defaults")


def record(number: int, speed: float, late: float, label: str = "", **point: int) -> TrialRecord:
    measured = Measured(Measurement({OBJECTIVES[0].metric: speed, OBJECTIVES[1].metric: late}))
    config = EngineConfig("m", {"max_num_seqs": number}, label=label)
    return TrialRecord(number, config, point, measured, (speed, late), (), Cost(start_s=1))


def store(folder: Path) -> Store:
    return Store.open(sqlite_url(folder), "s-confirm", OBJECTIVES, (), {})


def test_a_long_front_keeps_its_ends_and_every_baseline() -> None:
    front = [record(n, 100 - n, 10 - n) for n in range(9)]
    baseline = record(50, 1, 1, "baseline: vllm serve defaults")
    assert [n for n, _ in finalists(front, [baseline], 3)] == [50, 0, 4, 8]
    assert [n for n, _ in finalists(front[:2], [], 5)] == [0, 1]
    assert finalists(front, [baseline], 0) == []
    assert [n for n, _ in finalists([], [baseline], 3)] == [50]


def test_rounds_turn_their_order_and_resume_where_they_stopped(tmp_path: Path) -> None:
    members = [(7, EngineConfig("a")), (9, EngineConfig("b"))]
    first = Repeats(store(tmp_path), members, 2)
    order = []
    for _ in range(2):
        asked = first.ask()
        assert asked is not None
        order.append(asked.point["member"])
        first.tell(record(asked.number, 1.0, 1.0, **asked.point))
    interrupted = first.ask()
    assert interrupted is not None
    kept = store(tmp_path)
    kept.reap()
    again = Repeats(kept, members, 2)
    while (asked := again.ask()) is not None:
        order.append(asked.point["member"])
        again.tell(record(asked.number, 1.0, 1.0, **asked.point))
    assert order == [7, 9, 9, 7]


def test_a_repeat_that_broke_is_tried_once_more(tmp_path: Path) -> None:
    repeats = Repeats(store(tmp_path), [(7, EngineConfig("a"))], 1)
    numbers = []
    while (asked := repeats.ask()) is not None:
        numbers.append(asked.number)
        lost = Faulted("worker_lost")
        repeats.tell(TrialRecord(asked.number, asked.config, asked.point, lost))
    assert len(numbers) == 2


def repeated(member: int, scores: list[tuple[float, float]], label: str = "") -> list[TrialRecord]:
    return [
        TrialRecord(
            i, EngineConfig("m", {"max_num_seqs": member}, label=label),
            {"member": member, "repeat": i}, Measured(Measurement({})), pair,
        )
        for i, pair in enumerate(scores)
    ]  # fmt: skip


def test_a_real_gain_is_better_and_noise_is_not_shown() -> None:
    base = repeated(0, [(100, 1.0), (104, 1.02), (98, 0.98)], "baseline: vllm serve defaults")
    gain = repeated(3, [(150, 1.01), (156, 1.0), (147, 1.0)])
    noise = repeated(4, [(105, 0.9), (97, 1.1), (101, 1.0)])
    found = {c.trial: c for c in confirmed([*base, *gain, *noise], [], OBJECTIVES)}
    verdicts = {(c.metric.split(".")[0], c.verdict) for c in found[3].comparisons}
    assert verdicts == {("saturated", "better"), ("paced", "not shown")}
    assert {c.verdict for c in found[4].comparisons} == {"not shown"}
    ratio = found[3].comparisons[0].ratio
    assert ratio is not None
    assert ratio.low < 1.5 < ratio.high
    assert found[3].front_probability > found[0].front_probability
    assert found[0].comparisons == ()


def test_one_repeat_confirms_nothing() -> None:
    assert confirmed(repeated(3, [(150, 1.0)]), [], OBJECTIVES) == []


def test_until_the_defaults_are_repeated_too_nothing_is_confirmed() -> None:
    member = repeated(3, [(120.0, 0.9), (118.0, 0.9)])
    default = repeated(0, [(100.0, 1.0), (101.0, 1.0)], "baseline: vllm serve defaults")
    assert confirmed([*member, default[0]], [], OBJECTIVES) == []
    assert {one.trial for one in confirmed([*member, *default], [], OBJECTIVES)} == {0, 3}
    assert [one.trial for one in confirmed(member, [], OBJECTIVES)] == [3]


def test_the_search_is_held_against_its_confirmation() -> None:
    found = confirmed(repeated(3, [(90, 2.0), (110, 2.0)]), [record(3, 200, 1.0)], OBJECTIVES)
    assert found[0].ratio_to_search == pytest.approx((0.5, 2.0))
    assert Counter(c.trial for c in found) == {3: 1}


def test_the_command_line_says_ratio_interval_and_verdict() -> None:
    base = repeated(0, [(100, 1.0), (104, 1.02), (98, 0.98)], "baseline: vllm serve defaults")
    gain = repeated(3, [(150, 1.01), (156, 1.0), (147, 1.0)])
    found = tuple(confirmed([*base, *gain], [], OBJECTIVES))
    results = StudyResults(Path(), "s", OBJECTIVES, (), (), confirmed=found)
    first, second = verdicts(results)
    assert "trial 3 against baseline: vllm serve defaults: saturated.output_tokens_per_s" in first
    assert first.endswith("over 3 repeats: better")
    assert second.endswith("over 3 repeats: not shown")
