"""Cost: what a price makes of a throughput, and when there is none."""

from pathlib import Path

import pytest

from tests.study_case import load, problems
from tuner.config import EngineConfig
from tuner.metrics import COST, COUNTERS, NAMES
from tuner.price import THROUGHPUT, priced
from tuner.records import Faulted, Infeasible, Measured, Measurement
from tuner.report_text import quantity, title
from tuner.results import load_results
from tuner.runner import run_study
from tuner.study import load_study
from tuner.study_sections import Price
from tuner.surroundings import Surroundings

PRICE = Price(3.6, "EUR")


def measured(**values: float) -> Measured:
    return Measured(Measurement({THROUGHPUT: 2000.0} | values, facts={"version": "1"}))


def test_a_million_tokens_cost_what_the_gpus_cost_meanwhile() -> None:
    # Two GPUs at 3.6 an hour are 0.002 a second; a million tokens take 500 s.
    found = priced(measured(), 2, PRICE)
    assert isinstance(found, Measured)
    assert found.measurement.values[COST] == pytest.approx(1.0)
    assert found.measurement.facts == {"version": "1", "currency": "EUR"}


@pytest.mark.parametrize(
    "outcome",
    [
        Infeasible("out_of_memory"),
        Faulted("worker_lost"),
        Measured(Measurement({"paced.e2e.p99": 1.0})),
        Measured(Measurement({THROUGHPUT: 0.0})),
    ],
)
def test_without_a_throughput_there_is_no_cost(outcome: Measured | Infeasible | Faulted) -> None:
    assert priced(outcome, 1, PRICE) is outcome


def test_without_a_price_nothing_changes() -> None:
    outcome = measured()
    assert priced(outcome, 1, None) is outcome


def test_a_study_with_a_price_can_optimize_the_cost(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        price="{gpu_hour: 3.6, currency: EUR}",
        objectives=f"[{{metric: {COST}, direction: minimize}}]",
        space="{knobs: {max-num-seqs: {choice: [2, 16]}}}",
        budget="{trials: 2}",
    )
    assert spec.price == PRICE
    run_study(spec, Surroundings(tmp_path / "out"))
    records = load_results(tmp_path / "out").records
    for record in records:
        assert isinstance(record.outcome, Measured)
        throughput = record.outcome.measurement.values[THROUGHPUT]
        assert record.scores == (pytest.approx(3.6 / 3600 / throughput * 1e6),)
    assert load_study(tmp_path / "out" / "study.yaml") == spec


def test_the_cost_without_a_price_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    found = problems(tmp_path, objectives=f"[{{metric: {COST}, direction: minimize}}]")
    assert len(found) == 1
    assert f"{COST} needs the study's price" in found[0]
    found = problems(tmp_path, price="{gpu_hour: 0, currency: 7}")
    assert len(found) == 2
    assert any("price.gpu_hour" in problem for problem in found)


def test_another_price_makes_another_study(tmp_path: Path) -> None:
    cheap, dear = (load(tmp_path, price=f"{{gpu_hour: {n}}}").definition() for n in (1, 2))
    assert cheap != dear
    assert "price per GPU hour" not in load(tmp_path).definition()


def test_what_gpus_do_can_be_an_objective_or_a_constraint() -> None:
    names = {"gpu_memory_max_bytes", "gpu_utilization_share", "energy_j", "tokens_per_joule"}
    assert names <= set(COUNTERS)
    assert {f"paced.{name}" for name in names} <= set(NAMES)
    assert f"paced.{COST.partition('.')[2]}" not in NAMES


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("saturated.gpu_memory_max_bytes", 2.0**33, "8.00 GiB"),
        ("paced.gpu_utilization_share", 0.5, "50.0 %"),
        ("saturated.energy_j", 1234.0, "1,234 J"),
        (COST, 0.123, "0.123"),
    ],
)
def test_units_of_people(metric: str, value: float, shown: str) -> None:
    assert quantity(value, metric) == shown
    assert title(metric)[0].isupper()


def test_a_slot_with_gpus_is_watched_and_one_without_is_not() -> None:
    from tuner.engines.metered import MeteredLauncher
    from tuner.pools.spec import HostSpec

    options = {"command": ["vllm"]}
    assert isinstance(HostSpec("server", options, on_gpus=True).make_launcher(), MeteredLauncher)
    assert not isinstance(HostSpec("server", options).make_launcher(), MeteredLauncher)
    assert EngineConfig("m", {"tensor_parallel_size": 4}).gpus == 4
