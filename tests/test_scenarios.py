"""The workload files that are shipped: each can be used as it is, and says why it is so."""

import re
from pathlib import Path

import pytest

from tuner.errors import StudyError
from tuner.job import Workload
from tuner.study import load_workload

FILES = sorted((Path(__file__).parents[1] / "workloads").glob("*.yaml"))
SYNTHETIC = [path for path in FILES if "\nsynthetic:" in path.read_text()]


def built(path: Path) -> Workload:
    try:
        return load_workload(path).build()
    except StudyError as error:
        if all("there is no such file. Get it from" in p.message for p in error.problems):
            pytest.skip("its trace is not shipped")
        raise


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_has_requests_and_an_slo(path: Path) -> None:
    workload = built(path)
    assert len(workload.trace) >= 100
    assert workload.slo.bounds["default"]
    assert 0.9 <= workload.slo.attainment < 1


def test_the_six_scenarios_are_there() -> None:
    assert {path.stem for path in SYNTHETIC} == {
        "chat-busy", "long-context", "code-completion", "rag", "agentic", "offline-batch",
    }  # fmt: skip


@pytest.mark.parametrize("path", SYNTHETIC, ids=lambda path: path.stem)
def test_a_scenario_is_short_fits_a_common_model_and_names_its_source(path: Path) -> None:
    workload = built(path)
    trace = workload.trace
    assert path.read_text().startswith("# ")
    assert trace.span_s < 600
    assert int((trace.prompt_tokens + trace.output_tokens).max()) <= 65_536
    above_slo = path.read_text().rpartition("\nslo:")[0].rpartition("\nmeasures:")[2]
    assert re.search(r"[Aa]s published (in|for)|[Oo]ur choice", above_slo)
    assert ("paced" in workload.measures) == (trace.span_s > 0)


def test_only_sessions_and_shared_documents_have_something_to_reuse() -> None:
    shared = {path.stem for path in SYNTHETIC if built(path).trace.blocks is not None}
    assert shared == {"chat-busy", "rag", "agentic"}
