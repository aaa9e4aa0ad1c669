"""A study spoiled in one place either still loads, or says what is wrong; it never breaks."""

import contextlib
import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.study_case import study_text, write
from tests.test_study import FULL
from tuner.errors import StudyError
from tuner.study import load_study
from tuner.study_values import reads_otherwise
from tuner.yaml_file import Place, dump, parse

STUDY: dict[str, Any] = parse(
    study_text(**{**FULL, "engine": FULL["engine"].replace("4K", "4096")}), Place("full", Path())
).value
SPOILERS: list[Any] = [
    None, True, 0, -1, 1, 2.5, 1e300, 10**25, "", "x", "on", "8k", "1e3", [], [[]], [None], [1, 2],
    ["a", "b"], {}, {"a": 1}, {"a": {"b": None}}, [{"a": 1}, {"a": 2}], "../..", "a > b",
]  # fmt: skip


def ways(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from ways(inner, (*at, key))


WAYS = list(ways(STUDY))


def told(study: Any) -> list[str]:
    """Load a study; return its problems, after checking that each one is fit to be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), dump(study, reads_otherwise))
        try:
            spec = load_study(path)
        except StudyError as error:
            for problem in error.problems:
                assert problem.file == str(path)
                assert problem.field
                assert problem.message.strip()
            return [str(problem) for problem in error.problems]
        assert load_study(write(Path(folder), spec.resolved(), "again.yaml")) == spec
        return []


def spoiled(at: tuple[Any, ...], change: str, value: Any = None) -> Any:
    study = copy.deepcopy(STUDY)
    holder = study
    for step in at[:-1]:
        holder = holder[step]
    if change == "replace":
        holder[at[-1]] = value
    elif change == "delete":
        del holder[at[-1]]
    elif change == "rename" and isinstance(holder, dict):
        holder[f"{at[-1]}x"] = holder.pop(at[-1])
    return study


def test_unspoiled_it_loads() -> None:
    assert told(STUDY) == []


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(WAYS), st.sampled_from(SPOILERS))
def test_any_value_in_any_place_is_read_or_refused(at: tuple[Any, ...], value: Any) -> None:
    told(spoiled(at, "replace", value))


@pytest.mark.parametrize("at", [at for at in WAYS if len(at) <= 2 and isinstance(at[-1], str)])
def test_a_misspelt_key_is_told_or_taken_as_a_name(at: tuple[Any, ...]) -> None:
    found = told(spoiled(at, "rename"))
    names = at[0] in ("space", "engine") and len(at) > 2
    if not names:
        assert any("unknown key" in problem or "is missing" in problem for problem in found) or (
            at[:2] in (("workload", "synthetic"), ("space", "knobs")) and found
        )


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(WAYS))
def test_any_key_may_be_deleted_without_a_crash(at: tuple[Any, ...]) -> None:
    told(spoiled(at, "delete"))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_bytes(content)
        with pytest.raises(StudyError):
            load_study(path)


@settings(max_examples=30, deadline=None)
@given(st.text("abx.[]=\"'{}:0 1-_\n", max_size=20))
def test_any_override_is_read_or_refused(override: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), study_text())
        with contextlib.suppress(StudyError):
            load_study(path, [override])
