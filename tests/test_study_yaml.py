"""What a YAML file may hold, and how its faults are told."""

from pathlib import Path

import pytest

from tests.study_case import load, problems, problems_of, study_text, write
from tuner.study import load_study

HERE = "case.yaml"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "case.yaml: is empty: it needs a mapping (key: value).", id="empty"),
        pytest.param(
            "# a\n", "case.yaml: is empty: it needs a mapping (key: value).", id="comment"
        ),
        pytest.param(
            "- 1\n",
            "case.yaml: needs a mapping (key: value) at the top level, found a list.",
            id="list at the top",
        ),
        pytest.param(
            "hello\n",
            "case.yaml: needs a mapping (key: value) at the top level, found the value 'hello'.",
            id="scalar at the top",
        ),
        pytest.param(
            "name: x\nbudget:\n\ttrials: 3\n",
            "case.yaml: line 3: a tab: YAML indents and separates with spaces.",
            id="tab",
        ),
        pytest.param(
            "name: x\n---\nname: y\n",
            "case.yaml: line 2: a second document ('---'): one file holds one.",
            id="two documents",
        ),
        pytest.param(
            "name: a: b\n",
            "case.yaml: line 1: a ':' inside a value: quote it, or begin a new line.",
            id="colon inside",
        ),
        pytest.param(
            "name: x\nmodel: @org\n",
            "case.yaml: line 2: is not valid YAML: "
            "found character '@' that cannot start any token: quote the value.",
            id="reserved character",
        ),
        pytest.param(
            "name: x\nrules: [a, b\n",
            "case.yaml: line 2: a bracket or quote that opens here never ends.",
            id="open bracket",
        ),
        pytest.param(
            "name: x\nmodel: 'org\nbudget:\n",
            "case.yaml: line 2: a bracket or quote that opens here never ends.",
            id="open quote",
        ),
        pytest.param(
            "name: x\nmodel\nbudget: {}\n",
            "case.yaml: line 2: a key without ':' after it.",
            id="key without colon",
        ),
        pytest.param(
            "name: x\nmodel: *nope\n",
            "case.yaml: line 2: is not valid YAML: found undefined alias 'nope'.",
            id="unknown alias",
        ),
        pytest.param(
            "name: x\nmodel: a\x07b\n",
            "case.yaml: line 2: a character that YAML does not allow: "
            "unacceptable character #x0007: special characters are not allowed.",
            id="control character",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, text: str, problem: str
) -> None:
    assert problems_of(write(tmp_path, text)) == [problem]


def test_every_doubled_key_is_told_with_both_lines(tmp_path: Path) -> None:
    text = study_text() + "budget: {trials: 4}\nname: a\nname: b\n"
    assert problems_of(write(tmp_path, text)) == [
        "case.yaml: budget (line 5): the key appears again in line 6.",
        "case.yaml: name (line 7): the key appears again in line 8.",
    ]


def test_a_missing_file_suggests_the_nearest_one(tmp_path: Path) -> None:
    write(tmp_path, study_text(), "quickstart.yaml")
    assert problems_of(tmp_path / "quickstrat.yaml") == [
        "quickstrat.yaml: there is no such file. Did you mean quickstart.yaml?"
    ]


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path / "no" / "x.yaml")
    assert problem.endswith(f"there is no such file. There is no directory {tmp_path}/no either.")


def test_a_directory_is_no_study(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path)
    assert problem.endswith("is a directory: name the YAML file in it.")


def test_text_in_another_encoding_is_told(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_bytes("name: Zürich\n".encode("latin-1"))
    assert problems_of(path) == ["case.yaml: is not UTF-8 text (byte 7): save it as UTF-8."]


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + study_text().encode())
    assert load_study(path).name == "case"


def test_windows_line_ends_keep_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_bytes(study_text(budget="{trials: 0}").replace("\n", "\r\n").encode())
    assert problems_of(path) == [
        "case.yaml: budget.trials (line 5): needs a number of at least 1, found 0."
    ]


def test_anchors_and_merges_are_understood(tmp_path: Path) -> None:
    space = """
  knobs:
    max-num-seqs: &range {int: [4, 64], log: true}
    max-num-active-seqs: {<<: *range, int: [2, 32]}
"""
    knobs = load(tmp_path, space=space).space
    assert (knobs["max_num_active_seqs"].domain.low, knobs["max_num_seqs"].domain.low) == (2, 4)
    assert knobs["max_num_active_seqs"].domain.log


def test_an_alias_to_itself_is_refused(tmp_path: Path) -> None:
    assert "case.yaml: engine.args.x[0] (line 2): contains itself through an alias." in problems(
        tmp_path, engine="{kind: simulated, args: {x: &x [*x]}}"
    )


def test_an_explosion_of_aliases_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 7)]
    assert any("too many aliases" in p for p in problems_of(write(tmp_path, "".join(lines))))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (".inf", ".inf is not a finite number."),
        (".nan", ".nan is not a finite number."),
        ("2026-11-30", "2026-11-30 reads as a date: quote it."),
        ("9" * 5000, "a number of 5000 digits."),
        ("010", "010 begins with 0: some readers take it as octal."),
        ("!!python/name:os.system x", "the tag tag:yaml.org,2002:python/name:os.system"
         " is not understood: leave it out."),
    ],
)  # fmt: skip
def test_values_that_mean_something_else_are_refused(
    tmp_path: Path, value: str, message: str
) -> None:
    found = problems(tmp_path, engine=f"{{kind: simulated, args: {{x: {value}}}}}")
    assert f"case.yaml: engine.args.x (line 2): {message}" in found


def test_keys_are_text(tmp_path: Path) -> None:
    assert problems(tmp_path, engine="{kind: simulated, env: {1: a}}") == [
        "case.yaml: engine.env.1 (line 2): a key must be text: quote it."
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1e-3", 0.001), ("12e03", 12000.0), ("1_000", 1000), ("8k", 8000), ("8K", 8192),
        ("4Ki", 4096), ("1m", 1_000_000), ("1M", 2**20), ("2G", 2**31), ("25.6k", 25600),
        ("0x10", 16), ("true", True), ("'8k'", "8k"), ("'off'", "off"), ("auto", "auto"),
        ("[1k, 1_0, '1k']", [1000, 10, "1k"]), ("{a: {b: 2k}}", {"a": {"b": 2000}}),
        ("1.2.3", "1.2.3"), ("fp8", "fp8"), ("e5", "e5"),
    ],
)  # fmt: skip
def test_engine_arguments_read_as_vllm_reads_them(
    tmp_path: Path, written: str, read: object
) -> None:
    spec = load(tmp_path, engine=f"{{kind: simulated, args: {{x: {written}}}}}")
    assert spec.base.args["x"] == read
    assert type(spec.base.args["x"]) is type(read)


@pytest.mark.parametrize("word", ["on", "off", "yes", "No", "OFF"])
def test_an_unquoted_switch_is_refused_with_both_ways_out(tmp_path: Path, word: str) -> None:
    truth = "true" if word.lower() in ("on", "yes") else "false"
    assert problems(tmp_path, engine=f"{{kind: simulated, args: {{kv-cache-dtype: {word}}}}}") == [
        f"case.yaml: engine.args.kv-cache-dtype (line 2): {word} without quotes is text to some "
        f"YAML readers and a boolean to others: write {truth} for a boolean argument, '{word}' "
        "(in quotes) for text."
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("soon", 'needs a whole number, found the text "soon".'),
        ("'soon'", 'needs a whole number, found the text "soon".'),
        ("2.5", "needs a whole number, found 2.5."),
        ("true", "needs a whole number, found true."),
        ("[3]", "needs a whole number, found a list."),
        ("{n: 3}", "needs a whole number, found a mapping."),
        ("2.5K", "2.5K: decimals go with powers of 1000; write 2.5k."),
        ("3ki", "3ki: the suffix ki is not known; K or Ki is 1024, k is 1000."),
        ("1.0005k", "1.0005k is not a whole number."),
        ("-3", "needs a number of at least 1, found -3."),
        ("'1e999999'", 'needs a whole number of a sane size, found "1e999999".'),
        ("'nan'", 'needs a whole number of a sane size, found "nan".'),
    ],
)
def test_what_is_no_whole_number_is_told_by_value_and_line(
    tmp_path: Path, written: str, message: str
) -> None:
    assert problems(tmp_path, budget=f"{{trials: {written}}}") == [
        f"case.yaml: budget.trials (line 5): {message}"
    ]


@pytest.mark.parametrize("written", ["12", "'12'", "1.2e1", "'1.2e1'", "12.0", "0.012k", "1_2"])
def test_numbers_may_be_written_in_any_common_form(tmp_path: Path, written: str) -> None:
    assert load(tmp_path, budget=f"{{trials: {written}}}").budget.trials == 12
