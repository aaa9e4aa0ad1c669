"""Knobs, fixed arguments, conditions and rules: what is read, and what is refused and how."""

from pathlib import Path

import pytest

from tests.study_case import load, problems, write
from tuner.knobs import ChoiceDomain, FloatDomain, IntDomain, Knob
from tuner.study import StudySpec


def knobs(text: str, rest: str = "") -> str:
    """Return a space section with these knobs, one a line; the first is in line 5."""
    lines = "".join(f"    {line}\n" for line in text.strip().splitlines())
    return f"\n  knobs:\n{lines}{rest}"


def only(spec: StudySpec) -> Knob:
    (knob,) = spec.space.knobs
    return knob


@pytest.mark.parametrize(
    ("written", "domain"),
    [
        ("{int: [4, 64]}", IntDomain(4, 64)),
        ("{int: [4, 64], log: true}", IntDomain(4, 64, log=True)),
        ("{int: [1k, 8k], step: 1k}", IntDomain(1000, 8000, 1000)),
        ("{int: ['4', 6.4e1]}", IntDomain(4, 64)),
        ("{float: [1e-3, 1]}", FloatDomain(0.001, 1.0)),
        ("{float: [0.80, 0.95], step: 0.05}", FloatDomain(0.8, 0.95, 0.05)),
        ("{choice: [1, 2]}", ChoiceDomain((1, 2), (1, 2))),
        ("{choice: [1e3, 12e03]}", ChoiceDomain((1000.0, 12000.0), (1000.0, 12000.0))),
        ("{choice: [null, fp8]}", ChoiceDomain((None, "fp8"), (None, "fp8"))),
        ("{choice: [auto, 'off']}", ChoiceDomain(("auto", "off"), ("auto", "off"))),
        ("{choice: [{a: 1}, {a: 2}]}", ChoiceDomain(({"a": 1}, {"a": 2}), ('{"a":1}', '{"a":2}'))),
        ("{choice: {x: {a: 1}, y: null}}", ChoiceDomain(({"a": 1}, None), ("x", "y"))),
    ],
)
def test_domains(tmp_path: Path, written: str, domain: object) -> None:
    assert only(load(tmp_path, space=knobs(f"x: {written}"))).domain == domain


@pytest.mark.parametrize(
    ("written", "field", "message"),
    [
        ("{int: [64, 4]}", ".int", "low 64 is above high 4: swap them."),
        ("{int: [4]}", ".int", "needs [low, high], found a list."),
        ("{int: 4..64}", ".int", 'needs [low, high], found "4..64".'),
        ("{int: [4, many]}", ".int[1]", 'needs a whole number, found the text "many".'),
        ("{int: [0.5, 4]}", ".int[0]", "needs a whole number, found 0.5."),
        ("{int: [null, 4]}", ".int[0]", "needs a whole number, found nothing (null)."),
        ("{int: [1, 1e300]}", ".int[1]",
         "needs a whole number up to 9007199254740992, found 1e+300."),
        ("{int: [1, 8], step: 0}", ".step", "needs a step above 0, found 0."),
        ("{int: [1, 8], log: yes}", ".log",
         'needs true or false, found the text "yes": write true.'),
        ("{int: [0, 8], log: true}", ".int", "log needs a low above 0, found 0."),
        (
            "{int: [1, 8], log: true, step: 2}",
            ".step",
            "log and step exclude each other: leave one out, or list a choice.",
        ),
        ("{float: [0, 1], step: 1e-9}", ".step",
         "1e-09 makes more than a million values: take a larger step."),
        ("{choice: []}", ".choice", "is empty: a choice needs at least one option."),
        ("{choice: [a, b, a]}", ".choice[2]", '"a" is given twice.'),
        ("{choice: [1, 1.0]}", ".choice[1]", "1.0 is given twice."),
        ("{choice: [auto, false]}", ".choice",
         "mixes text with true/false: quote what is text, as in 'off'."),
        ("{choice: [auto, off]}", ".choice[1]",
         "off without quotes is text to some YAML readers and a boolean to others: "
         "write false for a boolean argument, 'off' (in quotes) for text."),
        ("{choice: fp8}", ".choice", 'needs a list of options, found "fp8".'),
        ("{choice: [1, 2], log: true}", ".log", "means nothing for a choice: leave it out."),
        ("{int: [1, 2], choice: [1]}", "",
         "needs exactly one of int, float, choice; found int and choice."),
        ("{}", "", "needs exactly one of int, float, choice; found none."),
        ("{ints: [1, 2]}", ".ints",
         "unknown key. Did you mean int? Known: int, float, choice, log, step, when."),
        ("[1, 2]", "",
         "needs {int: [low, high]}, {float: [low, high]} or {choice: [...]}, found a list."),
        ("32", "", "has one value only, 32: put it under 'fixed:'."),
        ("", "",
         "has no domain: write {int: [low, high]}, {float: [low, high]} or {choice: [...]}."),
    ],
)  # fmt: skip
def test_a_faulty_domain_is_told_by_key_line_and_value(
    tmp_path: Path, written: str, field: str, message: str
) -> None:
    found = problems(tmp_path, space=knobs(f"block-size: {written}"))
    assert f"case.yaml: space.knobs.block-size{field} (line 5): {message}" in found


def test_every_faulty_knob_is_told_at_once(tmp_path: Path) -> None:
    text = "a: {int: [2, 1]}\nb: {choice: []}\nc: {float: [x, 1]}"
    assert len(problems(tmp_path, space=knobs(text))) == 3


def test_names_have_underscores_and_may_be_dotted(tmp_path: Path) -> None:
    text = "max-num_seqs: {int: [1, 2]}\ncompilation-config.cudagraph-mode: {choice: [A, B]}"
    assert load(tmp_path, space=knobs(text)).space.names == (
        "max_num_seqs",
        "compilation_config.cudagraph_mode",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "a-b: {int: [1, 2]}\na_b: {int: [1, 3]}",
            "space.knobs.a_b (line 6): a_b is given twice: dashes and underscores are the same.",
        ),
        (
            "--max-num-seqs: {int: [1, 2]}",
            'space.knobs.--max-num-seqs (line 5): "--max-num-seqs" cannot be an argument\'s name. '
            "Write max-num-seqs.",
        ),
        (
            "max num: {int: [1, 2]}",
            'space.knobs.max num (line 5): "max num" cannot be an argument\'s name.',
        ),
    ],
)
def test_faulty_names(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, space=knobs(text)) == [f"case.yaml: {problem}"]


@pytest.mark.parametrize(
    ("engine", "rest", "where"),
    [
        ("{kind: simulated}", "  fixed: {block-size: 32}", "fixed"),
        ("{kind: simulated, args: {block_size: 32}}", "", "engine.args"),
    ],
)
def test_an_argument_both_fixed_and_varied_is_refused(
    tmp_path: Path, engine: str, rest: str, where: str
) -> None:
    space = knobs("block-size: {choice: [16, 32]}", rest)
    assert problems(tmp_path, engine=engine, space=space) == [
        "case.yaml: space.knobs.block-size (line 5): "
        f"is varied here and fixed in {where}: keep one of them."
    ]


def test_a_nested_argument_both_fixed_and_varied_is_refused(tmp_path: Path) -> None:
    space = knobs(
        "compilation-config.mode: {choice: [2, 3]}", "  fixed: {compilation_config: {mode: 3}}"
    )
    assert problems(tmp_path, space=space) == [
        "case.yaml: space.knobs.compilation-config.mode (line 5): "
        "is varied here and fixed in fixed: keep one of them."
    ]


def test_a_knob_inside_another_knob_is_refused(tmp_path: Path) -> None:
    text = "cc: {choice: [{mode: 1}, {mode: 2}]}\ncc.mode: {choice: [1, 2]}"
    assert problems(tmp_path, space=knobs(text)) == [
        "case.yaml: space.knobs.cc.mode (line 6): "
        "lies inside the knob cc: put it into each of that knob's options."
    ]


def test_fixed_against_engine_args_is_refused_and_repeated_is_not(tmp_path: Path) -> None:
    engine = "{kind: simulated, args: {block-size: 32}}"
    space = knobs("x: {int: [1, 2]}", "  fixed: {block-size: 16}")
    assert problems(tmp_path, engine=engine, space=space) == [
        "case.yaml: space.fixed.block-size (line 6): 16 contradicts engine.args, which has 32."
    ]
    load(tmp_path, engine=engine, space=space.replace("16", "32"))


def test_a_null_is_no_fixed_value(tmp_path: Path) -> None:
    assert problems(tmp_path, space=knobs("x: {int: [1, 2]}", "  fixed: {block-size: }")) == [
        "case.yaml: space.fixed.block-size (line 6): "
        "has no value: leave the key out to have the engine's default."
    ]


@pytest.mark.parametrize(
    ("written", "warning", "last"),
    [
        (
            "{float: [0.80, 0.95], step: 0.04}",
            "step 0.04 does not divide 0.8..0.95: tried are 0.8, 0.84, 0.88, 0.92; 0.95 never is.",
            0.92,
        ),
        (
            "{int: [64, 500], step: 64}",
            "step 64 does not divide 64..500: tried are 64, 128, 192, 256, 320, 384, 448; "
            "500 never is.",
            448,
        ),
        (
            "{int: [1, 100], step: 2}",
            "step 2 does not divide 1..100: tried are 1, 3, 5, ..., 97, 99; 100 never is.",
            99,
        ),
    ],
)
def test_a_step_that_does_not_divide_the_range_shows_the_grid(
    tmp_path: Path, written: str, warning: str, last: float
) -> None:
    spec = load(tmp_path, space=knobs(f"x: {written}"))
    assert spec.warnings == (f"{tmp_path}/case.yaml: space.knobs.x (line 5): {warning}",)
    domain = only(spec).domain
    assert isinstance(domain, IntDomain | FloatDomain)
    assert domain.high == last


def test_a_step_that_divides_in_decimals_does_not_warn(tmp_path: Path) -> None:
    # 0.3 / 0.1 is 2.9999999999999996 in binary.
    assert load(tmp_path, space=knobs("x: {float: [0, 0.3], step: 0.1}")).warnings == ()


def test_the_end_of_a_grid_survives_rounding(tmp_path: Path) -> None:
    text = "x: {float: [2718.6007041922226, 9802.228766932647], step: 1.1}"
    first = only(load(tmp_path, space=knobs(text))).domain
    assert isinstance(first, FloatDomain)
    again = only(
        load(tmp_path, space=knobs(f"x: {{float: [{first.low}, {first.high}], step: 1.1}}"))
    )
    assert again.domain == first
    assert list(first.values())[-1] == pytest.approx(9801.5007041922226)


def test_a_knob_with_one_value_is_held_fixed(tmp_path: Path) -> None:
    text = "x: {choice: [7]}\ny: {int: [3, 3]}\nz: {choice: [null]}\nw: {int: [1, 2]}"
    spec = load(tmp_path, space=knobs(text), budget="{trials: 2}")
    assert spec.space.names == ("w",)
    assert dict(spec.space.fixed) == {"x": 7, "y": 3}
    assert spec.warnings[0].endswith("x (line 5): has one value only, 7: it is held fixed.")
    assert len(spec.warnings) == 3


def test_a_space_smaller_than_the_budget_warns(tmp_path: Path) -> None:
    spec = load(tmp_path, space=knobs("x: {choice: [1, 2]}"), budget="{trials: 16}")
    (warning,) = spec.warnings
    assert warning.endswith(
        "budget.trials (line 8): 16 trials, but the space has 2 points at most."
    )


CHAIN = """
c: {int: [1, 2], when: {b: [1, 2]}}
b: {choice: [1, 2, 3], when: {a: true}}
a: {choice: [true, false]}
d: {int: [1, 2]}
"""


def test_knobs_come_after_those_that_they_depend_on(tmp_path: Path) -> None:
    space = load(tmp_path, space=knobs(CHAIN)).space
    assert space.names == ("a", "b", "c", "d")
    assert space["c"].when == {"b": (1, 2)}
    assert space.normalised({"a": False, "b": 1, "c": 1, "d": 2}) == {"a": False, "d": 2}


def test_conditions_in_a_circle_are_refused_by_name(tmp_path: Path) -> None:
    text = "a: {int: [1, 2], when: {b: 1}}\nb: {int: [1, 2], when: {a: 1}}"
    (problem,) = problems(tmp_path, space=knobs(text))
    assert "the conditions go in a circle: " in problem
    assert "a needs b needs a" in problem or "b needs a needs b" in problem


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("{enforce-egaer: false}", "enforce_egaer is neither a knob nor fixed. "
         "Did you mean enforce_eager?"),
        ("{x: 1}", "a knob cannot depend on itself."),
        ("{enforce-eager: 3}", "enforce_eager never takes the value 3."),
        ("{enforce-eager: 'false'}", 'enforce_eager never takes the value "false".'),
    ],
)  # fmt: skip
def test_faulty_conditions(tmp_path: Path, when: str, message: str) -> None:
    text = f"enforce-eager: {{choice: [true, false]}}\nx: {{int: [1, 2], when: {when}}}"
    assert problems(tmp_path, space=knobs(text)) == [
        f"case.yaml: space.knobs.x.when (line 6): {message}"
    ]


def test_a_condition_without_values_is_refused(tmp_path: Path) -> None:
    text = "a: {choice: [1, 2]}\nx: {int: [1, 2], when: {a: []}}"
    assert problems(tmp_path, space=knobs(text)) == [
        "case.yaml: space.knobs.x.when.a (line 6): needs at least one value."
    ]


def test_a_condition_names_a_structured_option_by_its_label(tmp_path: Path) -> None:
    text = "s: {choice: {none: null, ngram: {method: ngram}}}\nk: {int: [1, 4], when: {s: ngram}}"
    assert load(tmp_path, space=knobs(text)).space["k"].when == {"s": ({"method": "ngram"},)}


@pytest.mark.parametrize("place", ["space", "engine"])
def test_a_condition_on_a_fixed_argument_is_settled_at_once(tmp_path: Path, place: str) -> None:
    text = "x: {int: [1, 2], when: {eager: false}}\ny: {int: [1, 2], when: {eager: true}}"
    inside = place == "space"
    spec = load(
        tmp_path,
        space=knobs(text, "  fixed: {eager: false}" if inside else ""),
        engine="{kind: simulated}" if inside else "{kind: simulated, args: {eager: false}}",
        budget="{trials: 2}",
    )
    assert only(spec) == Knob("x", IntDomain(1, 2))
    (warning,) = spec.warnings
    assert warning.endswith("is never active: its 'when' contradicts a fixed argument.")


def test_rules_take_dashes_and_see_every_fixed_argument(tmp_path: Path) -> None:
    rules = "  rules: [max-num-batched-tokens >= max-num-seqs, seqs.inner < max_model_len]"
    spec = load(
        tmp_path,
        engine="{kind: simulated, args: {max-model-len: 2048}}",
        space=knobs(
            "max-num-seqs: {int: [1, 2]}\nmax-num-batched-tokens: {int: [1, 2]}",
            "  fixed: {seqs: {inner: 3}}\n" + rules,
        ),
    )
    assert spec.space.rules == (
        "max_num_batched_tokens >= max_num_seqs",
        "seqs.inner < max_model_len",
    )
    assert spec.space.fixed["max_model_len"] == 2048


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("max_num_seq > 3", "max_num_seq is neither a knob nor fixed. Did you mean max_num_seqs?"),
        ("max_num_seqs >", "is no comparison: invalid syntax."),
        ("max_num_seqs", "compares nothing: write, for example, a >= b."),
        ("3 > 2", "names no argument."),
        ("max_num_seqs > 'x'", "cannot be evaluated: "),
        ("open('f') == max_num_seqs", "open is neither a knob nor fixed."),
        ("max_num_seqs.__class__ == 3", "max_num_seqs.__class__ is neither a knob nor fixed."),
        ("size > 20", "speaks of fixed arguments only, and does not hold."),
    ],
)
def test_faulty_rules(tmp_path: Path, rule: str, message: str) -> None:
    space = knobs("max-num-seqs: {int: [1, 2]}", f'  fixed: {{size: 10}}\n  rules: ["{rule}"]')
    (problem,) = problems(tmp_path, space=space)
    assert problem.startswith("case.yaml: space.rules[0] (line 7): ")
    assert message in problem


def test_a_rule_that_is_no_text_is_refused(tmp_path: Path) -> None:
    space = knobs("x: {int: [1, 2]}", "  rules: [{a: b}]")
    assert problems(tmp_path, space=space) == [
        "case.yaml: space.rules[0] (line 6): needs a comparison of arguments, found a mapping."
    ]


def test_rules_that_no_point_meets_are_refused(tmp_path: Path) -> None:
    space = knobs("x: {int: [1, 4]}", "  rules: [x > 2, x < 2]")
    assert problems(tmp_path, space=space) == [
        "case.yaml: space.rules (line 6): no point of the space meets all of them."
    ]


def test_an_unknown_key_beside_the_knobs_is_refused(tmp_path: Path) -> None:
    space = knobs("x: {int: [1, 4]}", "  rule: [x > 2]\n  max-num-seqs: {int: [1, 2]}")
    assert sorted(problems(tmp_path, space=space)) == [
        "case.yaml: space.max-num-seqs (line 7): unknown key. Knobs go under 'knobs:'.",
        "case.yaml: space.rule (line 6): unknown key. Did you mean rules?",
    ]


A = "knobs: {a: {int: [1, 2]}}\nfixed: {f: 1}\nrules: [a >= f]\n"


def test_several_spaces_are_joined(tmp_path: Path) -> None:
    write(tmp_path, A, "a.yaml")
    spec = load(tmp_path, space="[a.yaml, {knobs: {b: {int: [1, 2]}}, rules: [a >= b]}]")
    assert spec.space.names == ("a", "b")
    assert spec.space.rules == ("a >= f", "a >= b")


def test_spaces_that_contradict_each_other_name_both_files(tmp_path: Path) -> None:
    write(tmp_path, A, "a.yaml")
    write(tmp_path, "\n" + A.replace("[1, 2]", "[1, 3]").replace("f: 1", "f: 2"), "b.yaml")
    assert problems(tmp_path, space="[a.yaml, b.yaml]") == [
        "b.yaml: knobs.a (line 2): is given differently in a.yaml line 1: keep one of them.",
        "b.yaml: fixed.f (line 3): is given differently in a.yaml line 2: keep one of them.",
    ]


def test_faults_of_a_joined_space_are_told_in_its_own_file(tmp_path: Path) -> None:
    write(tmp_path, A, "a.yaml")
    write(tmp_path, "knobs:\n  b: {int: [2, 1]}\nrules: [a > 1, zz > 1]\n", "sub/b.yaml")
    assert problems(tmp_path, space="[a.yaml, sub/b.yaml, 7]") == [
        "case.yaml: space[2] (line 3): needs a file or a mapping, found 7.",
        "sub/b.yaml: knobs.b.int (line 2): low 2 is above high 1: swap them.",
        'sub/b.yaml: rules[1] (line 3): "zz > 1": zz is neither a knob nor fixed.',
    ]


def test_a_space_without_knobs_is_allowed(tmp_path: Path) -> None:
    assert load(tmp_path, space="{fixed: {x: 1}}", budget="{minutes: 1}").space.knobs == ()
