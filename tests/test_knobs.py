"""Domains, conditions and points of the search space; configurations and their keys."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.config import EngineConfig, canonical, nested
from tuner.knobs import ChoiceDomain, FloatDomain, IntDomain, Knob, SearchSpace
from tuner.rules import broken, names_in


def test_a_step_that_does_not_divide_the_range_ends_below_its_top() -> None:
    assert list(FloatDomain(0.80, 0.95, 0.04).values()) == [0.80, 0.84, 0.88, 0.92]
    assert IntDomain(64, 500, 64).size == 7
    assert max(IntDomain(64, 500, 64).values()) == 448


def test_floats_lose_their_binary_dust() -> None:
    assert FloatDomain(0.8, 0.95, 0.05).rounded(0.8 + 0.05) == 0.85
    assert FloatDomain(0.0, 1.0).rounded(0.1 + 0.2) == 0.1 + 0.2


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_an_int_domain_contains_exactly_its_values(low: int, span: int, step: int) -> None:
    domain = IntDomain(low, low + span, step)
    values = set(domain.values())
    assert len(values) == domain.size
    assert {v for v in range(low - 3, low + span + 4) if domain.contains(v)} == values


def test_true_is_not_one() -> None:
    assert not IntDomain(0, 5).contains(True)
    assert not FloatDomain(0, 5).contains(True)
    choice = ChoiceDomain.of([1, True, "1"])
    assert [choice.option(choice.label(v)) for v in (1, True, "1")] == [1, True, "1"]
    assert not ChoiceDomain.of([1]).contains(True)


def test_structured_choices_have_stable_labels() -> None:
    one, other = {"method": "ngram", "k": 2}, {"k": 2, "method": "ngram"}
    assert ChoiceDomain.of([one]).labels == ChoiceDomain.of([other]).labels
    named = ChoiceDomain.of({"off": None, "ngram": one})
    assert named.labels == ("off", "ngram")
    assert named.label(other) == "ngram"
    assert named.option("off") is None


SPACE = SearchSpace(
    (
        Knob("enforce_eager", ChoiceDomain.of([True, False])),
        Knob("mode", ChoiceDomain.of(["a", "b", "c"]), when={"enforce_eager": (False,)}),
        Knob("depth", IntDomain(1, 2), when={"mode": ("b", "c")}),
    ),
    fixed={"block_size": 32},
)


def test_inactive_knobs_are_absent_and_points_are_distinct() -> None:
    points = list(SPACE.points())
    assert len(points) == len({canonical(p) for p in points}) == 1 + 1 + 2 + 2
    assert {"enforce_eager": True} in points
    assert all(("depth" in p) == (p.get("mode") in ("b", "c")) for p in points)
    assert SPACE.size_bound == 12


def test_a_continuous_space_has_no_list() -> None:
    space = SearchSpace((Knob("x", FloatDomain(0, 1)),))
    assert space.size_bound is None
    with pytest.raises(ValueError, match="continuous"):
        list(space.points())


def test_rules_speak_of_dotted_and_fixed_names() -> None:
    assert names_in("compilation_config.level >= 2 and a < b") == {
        "compilation_config.level",
        "a",
        "b",
    }
    arguments = {"compilation_config.level": 1, "block_size": 32}
    assert broken(["compilation_config.level >= 2"], arguments) == ["compilation_config.level >= 2"]
    assert broken(["block_size % 16 == 0", "unset > 1"], arguments) == []


def test_a_key_says_what_vllm_is_asked_for_and_nothing_else() -> None:
    a = EngineConfig("m", {"x": 1, "y": {"b": 2, "a": 1}}, label="baseline")
    b = EngineConfig("m", {"y": {"a": 1, "b": 2}, "x": 1})
    assert a.key == b.key
    assert a.key != EngineConfig("m", {**a.args, "x": 2}).key
    assert a.key != EngineConfig("m", a.args, {"VLLM_X": "1"}).key
    assert a.cold_key({"x"}) == EngineConfig("m", {**a.args, "x": 9}).cold_key({"x"})
    assert a.cold_key({"y.a"}) == a.with_args({"y.a": 7}).cold_key({"y.a"})
    assert a.cold_key({"y.a"}) != a.with_args({"y.b": 7}).cold_key({"y.a"})


def test_dotted_arguments_nest_and_keep_their_siblings() -> None:
    config = EngineConfig("m", {"compilation_config": {"mode": 3}})
    config = config.with_args({"compilation_config.cudagraph_mode": "NONE", "max_num_seqs": 4})
    assert config.args == {
        "compilation_config": {"mode": 3, "cudagraph_mode": "NONE"},
        "max_num_seqs": 4,
    }
    assert "max_num_seqs" not in config.with_args({"max_num_seqs": None}).args
    assert nested({"a.b": 1, "a": {"c": 2}}) == {"a": {"c": 2, "b": 1}}


def test_gpus_are_the_product_of_the_parallel_sizes() -> None:
    args = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}
    assert EngineConfig("m", args).gpus == 8
    assert EngineConfig("m").gpus == 1
    config = EngineConfig("m", args)
    assert pickle.loads(pickle.dumps(config)) == config
