"""What a search is said to cost after its first trial, against what it then costs."""

from pathlib import Path

import pytest

from tests.strategies import case
from tests.study_case import load
from tuner.knobs import SearchSpace
from tuner.preview import preview
from tuner.results import load_results
from tuner.runner import run_study
from tuner.strategies import Search
from tuner.strategies.expected import expected
from tuner.surroundings import Surroundings

HOT_ONLY = SearchSpace(tuple(case.SPACE[n] for n in sorted(case.HOT)), rules=case.SPACE.rules)


@pytest.mark.parametrize("space", [case.SPACE, HOT_ONLY], ids=["hot and cold", "hot only"])
@pytest.mark.parametrize("name", ["plain", "ride-along", "priced"])
def test_after_the_first_trial_within_a_quarter(name: str, space: SearchSpace) -> None:
    plain = case.strategy(name, space=space, trials=20)
    plain.enqueue(case.baseline())
    case.searched(plain, 20, start_s=50.0)
    records = plain._store.records()
    search = Search(space, case.BASE, case.HOT, trials=20)
    told = expected(search, name, 1, records[:1])
    assert told is not None
    spent = sum(record.cost.total_s for record in records)
    assert told.trials == 20
    assert told.seconds == pytest.approx(spent, rel=0.25)


def test_a_finished_search_costs_what_it_cost() -> None:
    plain = case.strategy("ride-along", trials=8)
    case.searched(plain, 8)
    records = plain._store.records()
    told = expected(Search(case.SPACE, case.BASE, case.HOT, trials=8), "ride-along", 0, records)
    assert told is not None
    assert told.starts == sum(record.cost.start_s > 0 for record in records)
    assert told.seconds == pytest.approx(sum(record.cost.total_s for record in records))


def test_nothing_is_expected_before_a_result_or_without_a_number_of_trials() -> None:
    plain = case.strategy("plain")
    case.searched(plain, 1)
    records = plain._store.records()
    assert expected(Search(case.SPACE, case.BASE, trials=5), "plain", 0, ()) is None
    assert expected(Search(case.SPACE, case.BASE), "plain", 0, records) is None


def test_check_tells_what_a_simulated_study_then_takes(tmp_path: Path) -> None:
    sections = {
        "space": "{knobs: {max-num-seqs: {int: [16, 64]}, block-size: {choice: [16, 32, 64]}}}",
        "workload": "{synthetic: {requests: 30}}",
    }
    out = tmp_path / "results"
    run_study(load(tmp_path, **sections, budget="{trials: 1}"), Surroundings(out))
    spec = load(tmp_path, **sections, budget="{trials: 14}")
    told = preview(spec, out).cost
    run_study(spec, Surroundings(out))
    spent = sum(record.cost.total_s for record in load_results(out).records)
    assert told["seconds"] == pytest.approx(spent, rel=0.25)
    assert 1 < told["starts"] <= 14
