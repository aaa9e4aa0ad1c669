"""Workload files: what is read, what is refused, and what comes out of the trace."""

import json
import os
from pathlib import Path
from typing import ClassVar

import pytest

from tests.study_case import load, problems, write
from tuner.errors import StudyError
from tuner.events import Notice
from tuner.job import Slo
from tuner.preview import preview
from tuner.runner import run_study
from tuner.study import load_study, load_workload
from tuner.study_workload import workload_warnings
from tuner.surroundings import Surroundings

ROWS = [
    {"t_us": 100_000 * i, "in_tok": 16 + i, "out_tok": 4, "session": i // 2} for i in range(100)
]


def trace(folder: Path, rows: list[dict[str, int]] = ROWS) -> Path:
    return write(folder, "".join(json.dumps(row) + "\n" for row in rows), "traces/t.jsonl")


def test_a_workload_file_has_its_own_directory_and_name(tmp_path: Path) -> None:
    trace(tmp_path / "workloads")
    write(tmp_path, "trace: {path: traces/t.jsonl}\n", "workloads/chat.yaml")
    workload = load(tmp_path, workload="workloads/chat.yaml").workload()
    assert workload.name == "chat"
    assert workload.trace.name == "chat"
    assert len(workload.trace) == 100
    assert (workload.measures, workload.sessions) == (("saturated", "paced"), "partly-open")


def test_the_trace_is_cut_transformed_and_split_in_this_order(tmp_path: Path) -> None:
    trace(tmp_path)
    text = """
  trace: {path: traces/t.jsonl, format: own}
  window: {start_s: 2, duration_s: 4, lead_in_s: 1}
  transforms: [{rate_scale: 2}]
  held_out: 0.5
"""
    spec = load(tmp_path, workload=text)
    tuned, held_out = spec.workload(), spec.held_out()
    assert held_out is not None
    assert [step["op"] for step in tuned.trace.provenance.transforms] == [
        "window", "rate_scale", "hold_out",
    ]  # fmt: skip
    assert tuned.lead_in_s == 0.5
    assert len(tuned.trace) + len(held_out.trace) >= 50
    assert tuned.digest != held_out.digest


def test_nothing_is_held_out_unless_asked(tmp_path: Path) -> None:
    assert load(tmp_path).held_out() is None


def test_bounds_in_milliseconds_become_seconds_per_class(tmp_path: Path) -> None:
    text = "{synthetic: {requests: 9}, slo: {ttft_ms: 500, classes: {batch: {e2e_ms: 3e4}}}}"
    assert load(tmp_path, workload=text).workload().slo == Slo(
        {"default": {"ttft": 0.5}, "batch": {"e2e": 30.0}}, 0.99
    )


def test_bounds_on_percentiles_become_seconds_and_are_kept_in_the_resolved_file(
    tmp_path: Path,
) -> None:
    text = (
        "{synthetic: {requests: 9}, measures: [capacity], "
        "slo: {p99: {itl_ms: 25, ttft_ms: 500}, p50: {e2e_ms: 2000}}}"
    )
    goals = "[{metric: capacity.requests_per_s, direction: maximize}]"
    spec = load(tmp_path, workload=text, objectives=goals)
    expected = Slo(percentiles={"p50": {"e2e": 2.0}, "p99": {"ttft": 0.5, "itl": 0.025}})
    assert spec.workload().slo == expected
    (tmp_path / "resolved.yaml").write_text(spec.resolved())
    again = load_study(tmp_path / "resolved.yaml")
    assert again.workload().slo == expected
    assert again.workload().digest == spec.workload().digest


def test_a_bound_on_a_percentile_makes_another_workload(tmp_path: Path) -> None:
    def digest(slo: str) -> str:
        text = f"{{synthetic: {{requests: 20}}, slo: {slo}}}"
        return load(tmp_path, workload=text).workload().digest

    slos = [
        "{}",
        "{itl_ms: 25}",
        "{p99: {itl_ms: 25}}",
        "{p99: {itl_ms: 26}}",
        "{p90: {itl_ms: 25}}",
    ]
    assert len({digest(slo) for slo in slos}) == len(slos)


def test_equal_workloads_have_equal_digests_and_others_do_not(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return load(tmp_path, workload=text).workload().digest

    first = digest("{synthetic: {requests: 20}}")
    assert digest("{name: other, synthetic: {requests: 20}}") == first
    assert digest("{synthetic: {requests: 20}, seed: 1}") != first
    assert digest("{synthetic: {requests: 20, seed: 1}}") != first


def test_a_changed_trace_file_is_read_again(tmp_path: Path) -> None:
    path = trace(tmp_path)
    spec = load(tmp_path, workload="{trace: {path: traces/t.jsonl}}")
    before = spec.workload().digest
    trace(tmp_path, ROWS[:50])
    os.utime(path, ns=(1, 1))
    assert spec.workload().digest != before


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("{}", "workload", "needs exactly one of trace, synthetic; found neither."),
        (
            "{synthetic: {}, trace: {path: case.yaml}}",
            "workload",
            "needs exactly one of trace, synthetic; found both.",
        ),
        ("{synthetic: {request: 3}}", "workload.synthetic.request", "did you mean requests"),
        (
            "{synthetic: {}, transforms: [{rate_scal: 2}]}",
            "workload.transforms[0].rate_scal",
            "no such transform; did you mean rate_scale?",
        ),
        ("{synthetic: {}, transforms: [{head: 0}]}", "workload.transforms[0].head", "at least 1"),
        (
            "{synthetic: {}, transforms: [{head: 5, thin: 0.5}]}",
            "workload.transforms[0]",
            "expected one step",
        ),
        ("{synthetic: {}, measures: []}", "workload.measures", "needs at least one measure"),
        (
            "{synthetic: {}, measures: [paced, paced]}",
            "workload.measures",
            "needs at least one measure, each named once.",
        ),
        (
            "{synthetic: {}, measures: [capacity], slo: {attainment: 0.9}}",
            "workload.measures",
            "capacity asks how much load an slo bears: set slo (ttft_ms, p99.itl_ms, ...).",
        ),
        (
            "{synthetic: {}, measures: [packed]}",
            "workload.measures[0]",
            'needs one of saturated, paced, capacity; found "packed". Did you mean paced?',
        ),
        ("{synthetic: {}, window: {start_s: 1}}", "workload.window.duration_s", "is missing."),
        (
            "{synthetic: {}, held_out: 95}",
            "workload.held_out",
            "needs a number of at most 0.9, found 95.",
        ),
        ("{synthetic: {}, warmup: 3}", "workload.warmup", "needs a mapping (key: value), found 3."),
        (
            "{synthetic: {}, slo: {ttft: 3}}",
            "workload.slo.ttft",
            "unknown key. Did you mean ttft_ms? Known: ttft_ms, tpot_ms, itl_ms, e2e_ms, "
            "attainment, classes, p50, p90, p99.",
        ),
        (
            "{synthetic: {}, slo: {p99: {itl: 25}}}",
            "workload.slo.p99.itl",
            "unknown key. Did you mean itl_ms? Known: ttft_ms, tpot_ms, itl_ms, e2e_ms.",
        ),
        (
            "{synthetic: {}, slo: {p95: {itl_ms: 25}}}",
            "workload.slo.p95",
            "unknown key. Did you mean p99? Known: ",
        ),
        (
            "{synthetic: {}, slo: {p99: {itl_ms: -1}}}",
            "workload.slo.p99.itl_ms",
            "needs a number above 0, found -1.",
        ),
        (
            "{synthetic: {}, slo: {p99: 25}}",
            "workload.slo.p99",
            "needs a mapping (key: value), found 25.",
        ),
        (
            "{synthetic: {}, slo: {p99: {}}}",
            "workload.slo.p99",
            "bounds nothing: needs ttft_ms, tpot_ms, itl_ms or e2e_ms.",
        ),
        (
            "{synthetic: {}, slo: {classes: {chat: {itl: 3}}}}",
            "workload.slo.classes.chat.itl",
            "unknown key. Did you mean itl_ms? Known: ttft_ms, tpot_ms, itl_ms, e2e_ms.",
        ),
        (
            "{synthetic: {}, sessions: closed}",
            "workload.sessions",
            "needs one of partly-open, open",
        ),
    ],
)
def test_faults(tmp_path: Path, text: str, field: str, message: str) -> None:
    (problem,) = problems(tmp_path, workload=text)
    assert problem.startswith(f"case.yaml: {field} (line 4): ")
    assert message in problem


def test_a_missing_trace_says_where_to_get_it(tmp_path: Path) -> None:
    text = "{trace: {path: t.csv, fetch: 'https://example.org/t.csv'}}"
    (problem,) = problems(tmp_path, workload=text)
    assert problem.startswith("case.yaml: workload.trace.path (line 4): ")
    assert problem.endswith("t.csv: there is no such file. Get it from https://example.org/t.csv")


def session(folder: Path, name: str, turns: int, think_s: float = 1) -> Path:
    """Write a session of a format that comes as folders; its requests take 9 s, every 10 s."""
    requests = [
        {"t": 10 * n, "type": "n", "in": 64 * (n + 1), "out": 5, "hash_ids": list(range(n + 1)),
         "api_time": 9, "think_time": think_s} for n in range(turns)
    ]  # fmt: skip
    told = {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}
    return write(folder, json.dumps(told), f"traces/sessions/{name}.json")


@pytest.mark.parametrize("format", ["", ", format: weka"])
def test_a_folder_of_sessions_is_a_trace(tmp_path: Path, format: str) -> None:
    session(tmp_path, "a", 3)
    session(tmp_path, "b", 2)
    spec = load(tmp_path, workload=f"{{trace: {{path: traces/sessions{format}}}}}")
    assert len(spec.workload().trace) == 5
    os.utime(session(tmp_path, "b", 4), ns=(2**62, 2**62))
    assert len(spec.workload().trace) == 7


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("{path: .}", "is a directory without any .json file."),
        ("{path: ., format: azure}", "is a directory, but format azure is read from one file."),
    ],
)
def test_another_directory_is_no_trace(tmp_path: Path, trace: str, message: str) -> None:
    (problem,) = problems(tmp_path, workload=f"{{trace: {trace}}}")
    assert problem.endswith(message)


def test_a_folder_of_something_else_is_told_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, '{"t_us": 0, "in_tok": 5, "out_tok": 2}', "traces/some/a.json")
    spec = load(tmp_path, workload="{trace: {path: traces/some}}")
    with pytest.raises(StudyError, match="is a directory, but format own is read from one file"):
        spec.workload()


@pytest.mark.parametrize(
    ("think_s", "shares"), [(1, "0% at 1x, 100% at 2x, 100% at 4x"), (-1, "how many is unknown")]
)
def test_an_open_replay_of_sessions_warns_how_much_is_sent_too_early(
    tmp_path: Path, think_s: int, shares: str
) -> None:
    session(tmp_path, "a", 5, think_s)
    text = "{{trace: {{path: traces/sessions}}, sessions: {}}}"
    spec = load(tmp_path, workload=text.format("open"))
    (warning,) = preview(spec, tmp_path).to_json(spec)["warnings"]
    assert "sessions: open sends turns at their recorded times" in warning
    assert f": {shares}. sessions: partly-open waits." in warning
    assert workload_warnings(load(tmp_path, workload=text.format("partly-open")).workload()) == []


def test_an_open_replay_of_requests_that_wait_for_nobody_warns_of_nothing(tmp_path: Path) -> None:
    spec = load(tmp_path, workload="{synthetic: {requests: 9}, sessions: open}")
    assert workload_warnings(spec.workload()) == []


def test_a_run_says_the_warnings_of_its_workload(tmp_path: Path) -> None:
    class Told:
        messages: ClassVar[list[str]] = []

        def on_event(self, event: object) -> None:
            self.messages += [event.message] if isinstance(event, Notice) else []

    text = "{synthetic: {requests: 3, rate_per_s: 50, chat: {turns_mean: 3}}, sessions: open}"
    spec = load(tmp_path, workload=text, budget="{trials: 1}")
    run_study(spec, Surroundings(tmp_path / "results", (Told(),)))
    assert any("sessions: open sends turns" in message for message in Told.messages)


def test_a_missing_workload_file_is_the_only_problem_told_of_it(tmp_path: Path) -> None:
    write(tmp_path, "{}", "chat.yaml")
    (problem,) = problems(tmp_path, workload="chta.yaml")
    assert problem == (
        "case.yaml: workload (line 4): chta.yaml: there is no such file. Did you mean chat.yaml?"
    )


def test_faults_inside_the_trace_name_its_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"t_us": 0, "in_tok": 5, "out_tok": 2}\n{"t_us": \n', "t.jsonl")
    spec = load(tmp_path, workload="{trace: {path: t.jsonl}}")
    with pytest.raises(StudyError) as caught:
        spec.workload()
    assert f"{path}: line 2" in str(caught.value)


def test_a_step_that_leaves_nothing_is_told_in_the_workload_file(tmp_path: Path) -> None:
    trace(tmp_path)
    text = "trace: {path: traces/t.jsonl}\nwindow: {start_s: 500, duration_s: 5}\n"
    write(tmp_path, text, "w.yaml")
    with pytest.raises(StudyError) as caught:
        load(tmp_path, workload="w.yaml").workload()
    (problem,) = caught.value.problems
    assert (problem.file, problem.message) == (f"{tmp_path}/w.yaml", "leaves no request")


def test_a_workload_can_be_loaded_by_itself(tmp_path: Path) -> None:
    path = write(tmp_path, "synthetic: {requests: 7}\n", "mine.yaml")
    spec = load_workload(path, ["warmup.requests=3"])
    assert (spec.name, spec.section.warmup.requests) == ("mine", 3)
    assert len(spec.build().trace) == 7
    with pytest.raises(StudyError) as caught:
        load_workload(path, ["warmup.request=3"])
    assert str(caught.value) == (
        "--set: warmup.request: unknown key. Did you mean requests? Known: requests."
    )
