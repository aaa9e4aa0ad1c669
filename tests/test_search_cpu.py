"""The table of the real CPU engine that search strategies are compared on."""

import json
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from tuner.study import StudySpec, load_study

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import search_cpu  # noqa: E402  # the scripts of benchmarks import each other by name
from search import ROWS, search  # noqa: E402
from search_curves import curve  # noqa: E402


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_study(search_cpu.STUDY)


@pytest.fixture(scope="module")
def table(spec: StudySpec) -> search_cpu.Table:
    return search_cpu.Table(spec, search_cpu.ROWS)


def test_the_committed_table_has_every_point_of_the_space(
    spec: StudySpec, table: search_cpu.Table
) -> None:
    found = [table(config) for config in table.reference()]
    assert len(found) == spec.space.size_bound
    assert all(each and min(*each.scores, each.seconds) > 0 for each in found)


def test_values_are_geometric_means_and_the_noise_is_the_spread_within_points(
    spec: StudySpec, tmp_path: Path
) -> None:
    points = list(spec.space.points())[:2]
    measured = [(0, 100.0, 0.1, 30.0, 0.0), (1, 121.0, 0.1, 12.0, 0.0)]
    rows = [
        {
            "problem": None, **point, "round": at, "output_tokens_per_s": tokens,
            "latency_s": latency, "start_s": start, "change_s": change, "replay_s": 4.0,
            "other_s": 1.0,
        }
        for point in points
        for at, tokens, latency, start, change in measured
    ]  # fmt: skip
    rows.append({**rows[0], "problem": "client_late", "output_tokens_per_s": None})
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    table = search_cpu.Table(spec, tmp_path / "rows.csv")
    found = table(spec.config(points[0]))
    assert found is not None
    assert found.scores == pytest.approx((110.0, 0.1))
    assert found.seconds == 5.0
    assert table.noise == pytest.approx([math.log(1.21) / math.sqrt(2), 0.0])
    assert table(spec.config(list(spec.space.points())[2])) is None


def test_a_search_of_the_table_charges_what_was_measured(
    spec: StudySpec, table: search_cpu.Table
) -> None:
    facts = json.loads(search_cpu.ROWS.with_suffix(".json").read_text())
    case = search_cpu.case_of(spec, table, facts)
    assert 0 < case.prices.live_s < case.prices.warm_s < case.prices.cold_s
    default = table(case.configured())
    assert default is not None
    steps = list(search(ROWS["random, a restart per trial"], case, table, seed=0))
    assert steps[0].spent_s == pytest.approx(case.prices.cold_s + default.seconds)
    everything = case.volume([t.scores for t in map(table, table.reference()) if t], default.scores)
    assert 0 < curve(iter(steps), case.volume, default.scores).volume[-1] <= everything
