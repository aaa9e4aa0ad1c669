"""The workloads and studies that are shipped: each can be used as it is, and says why it is so."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.engines.vllm_check import Checker
from tuner.errors import StudyError
from tuner.job import Workload
from tuner.study import StudySpec, load_study, load_workload
from tuner.study_arguments import argument_problems

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "workloads").glob("*.yaml"))
SPACES = sorted((ROOT / "search_spaces").glob("*.yaml"))
STUDIES = sorted((ROOT / "studies").glob("*.yaml"))
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


def shipped(path: Path) -> bool:
    """Whether a study's requests are here: made up, or from a trace of ours."""
    text = path.read_text()
    named = re.search(r"workload: (\S+)", text)
    return "\n  fetch: " not in ((path.parent / named.group(1)).read_text() if named else text)


def load(path: Path) -> StudySpec:
    """Load a study; what stands in for a trace that is not shipped has no effect on the rest."""
    chat = ROOT / "workloads" / "traces" / "chat.jsonl"
    return load_study(path, [] if shipped(path) else [f"workload.trace={{path: {chat}}}"])


def test_the_four_scenarios_and_the_campaigns_are_there() -> None:
    scenarios = {"high-concurrency-chat", "long-text", "quantized", "cpu-offload"}
    campaigns = {f"h200-qwen3-8b-{trace}" for trace in ("chat", "code", "prefix")}
    assert scenarios | campaigns | {"h200x2-qwen3-8b-chat"} <= {path.stem for path in STUDIES}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_is_named_after_its_file_and_says_how_to_run_it(path: Path) -> None:
    spec = load(path)
    assert spec.name == path.stem
    assert f"tuner run studies/{path.name}" in path.read_text()
    assert spec.warnings == ()
    assert len(spec.objectives) == 2


@pytest.mark.parametrize("path", list(filter(shipped, STUDIES)), ids=lambda path: path.stem)
def test_the_longest_request_fits_the_model_and_its_limit(path: Path) -> None:
    spec = load(path)
    assert spec.workload().longest_tokens <= spec.base.args["max_model_len"]


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_range_has_a_stated_reason(path: Path) -> None:
    """A comment stands right above each knob and each fixed argument."""
    lines = path.read_text().splitlines()
    named = [n for n, line in enumerate(lines) if re.match(r"  [a-z][\w.-]+:", line)]
    assert named
    for n in named:
        assert lines[n - 1].startswith("  #"), f"{path.name}: {lines[n].strip()}"


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    """The installed vLLM, asked in one process for all studies."""
    pytest.importorskip("vllm")
    with Checker() as asked:
        yield asked


@pytest.mark.vllm
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_installed_vllm_knows_every_name(path: Path, checker: Checker) -> None:
    known = checker.arguments()
    switches = {name for name, argument in known.items() if argument.kind == "bool"}
    assert argument_problems(load(path), known, switches) == []


@pytest.mark.vllm
@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_the_installed_vllm_knows_what_is_inside_nested_names(path: Path, checker: Checker) -> None:
    """``argument_problems`` looks at the head of a dotted name only."""
    names = re.findall(r"^  ([a-z][\w-]*\.[\w.-]+):", path.read_text(), re.MULTILINE)
    assert {name.replace("-", "_") for name in names} <= set(checker.arguments())
