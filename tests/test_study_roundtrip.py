"""Any study that loads has a resolved text that loads to an equal study."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.study_case import SECTIONS, write
from tuner.study import StudySpec, load_study
from tuner.study_values import reads_otherwise
from tuner.yaml_file import Place, dump, parse

#: Text that some YAML reader takes for something else, and any other.
WORDS = st.sampled_from(
    ["on", "off", "No", "true", "null", "~", "", "8k", "1e3", "0x10", "010", "1_000", ".inf",
     "12:30", "2026-11-30", "a: b", ":0", "# x", "- x", "'", '"', "{a}", "*a", "&a",
     "!x", "%", "@", "é", "\u2028", "=", "<<", " x ", "x\ny", "\t"]
)  # fmt: skip
TEXT = WORDS | st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=6)
NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=5,
)
GIVEN = VALUES.filter(lambda value: value is not None)
NAMES = st.from_regex(r"[a-z]{1,4}(_[a-z]{1,3})?", fullmatch=True)


def distinct(options: list[Any]) -> bool:
    """Whether a choice may hold these options."""
    kinds = {type(option) for option in options}
    numbers = [o for o in options if isinstance(o, int | float) and not isinstance(o, bool)]
    return not {bool, str} <= kinds and len(set(map(float, numbers))) == len(numbers)


@st.composite
def domains(draw: Callable[[Any], Any]) -> dict[str, Any]:
    kind = draw(st.sampled_from(["int", "float", "choice", "labels"]))
    if kind == "choice":
        options = st.lists(VALUES, min_size=1, max_size=4, unique_by=repr).filter(distinct)
        return {"choice": draw(options)}
    if kind == "labels":
        options = st.dictionaries(TEXT, VALUES, min_size=1, max_size=3)
        return {
            "choice": draw(
                options.filter(
                    lambda o: (
                        distinct(list(o.values()))
                        and len(set(map(repr, o.values()))) == len(o)
                        and "<<" not in o
                    )
                )
            )
        }
    numbers = st.integers(1, 9999) if kind == "int" else st.floats(0.001, 9999)
    ends = sorted([draw(numbers), draw(numbers)])
    extra = draw(st.sampled_from(["", "log", "step"]))
    if extra == "step":
        # A step that is not tiny against the range.
        step = draw(numbers)
        if (ends[1] - ends[0]) / step < 10_000:
            return {kind: ends, "step": step}
    return {kind: ends, "log": extra == "log"}


STUDIES = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
        "model": st.fixed_dictionaries({"name": st.just("org/model")}),
        "engine": st.fixed_dictionaries(
            {"kind": st.just("simulated")},
            optional={
                "args": st.dictionaries(NAMES.map("e_{}".format), GIVEN, max_size=3),
                "env": st.dictionaries(NAMES.map(str.upper), TEXT, max_size=2),
                "options": st.dictionaries(NAMES, VALUES, max_size=2),
                "cpus": st.floats(0.5, 64),
            },
        ),
        "space": st.fixed_dictionaries(
            {"knobs": st.dictionaries(NAMES.map("k_{}".format), domains(), max_size=4)},
            optional={"fixed": st.dictionaries(NAMES.map("f_{}".format), GIVEN, max_size=3)},
        ),
        "workload": st.fixed_dictionaries(
            {"synthetic": st.fixed_dictionaries({"requests": st.integers(1, 9)})},
            optional={
                "seed": st.integers(0, 99),
                "held_out": st.floats(0, 0.9),
                "slo": st.fixed_dictionaries({"ttft_ms": st.floats(1, 1e4)}),
                "measures": st.just(["paced", "saturated"]),
            },
        ),
        "budget": st.fixed_dictionaries({"minutes": st.floats(0.1, 1e4)}),
        "repeats": st.integers(1, 9),
    }
)


def loaded(text: str) -> StudySpec:
    with tempfile.TemporaryDirectory() as folder:
        return load_study(write(Path(folder), text))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(STUDIES)
def test_the_resolved_text_loads_to_an_equal_study(study: dict[str, Any]) -> None:
    # Every text in quotes: what is meant as text.
    spec = loaded(dump({**SECTIONS, **study}, quote=lambda text: True))
    text = spec.resolved()
    assert loaded(text) == spec
    assert loaded(text).resolved() == text


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXT.filter(lambda key: key != "<<"), VALUES, max_size=4))
def test_what_is_written_is_read_back(content: dict[str, Any]) -> None:
    tree = parse(dump(content, reads_otherwise), Place("x", Path()))
    assert tree.problems == []
    assert tree.value == content
