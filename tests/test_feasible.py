"""Which part of a space can never start: counted by reason, narrowed, and fatal if it is all."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.study_case import load
from tuner.config import EngineConfig
from tuner.errors import StudyError
from tuner.feasible import WHOLE, hopeless, look, points, reasons, suggestions
from tuner.records import Infeasible
from tuner.study import StudySpec

SPACE = (
    "{knobs: {gpu-memory-utilization: {float: [0.1, 0.9]}, block-size: {choice: [8, 16, 32]}, "
    "max-num-seqs: {int: [4, 64]}}}"
)


def check(config: EngineConfig) -> Infeasible | None:
    share = config.args["gpu_memory_utilization"]
    if config.args["block_size"] == 8:
        return Infeasible("unsupported_by_hardware", "No common block size for 8")
    if share < 0.5:
        return Infeasible("out_of_memory", f"needs 50 GiB, {share} of 100 GiB is less")
    return None


def spec_of(folder: Path) -> StudySpec:
    return load(folder, space=SPACE)


def test_reasons_are_counted_once_whatever_their_numbers(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    looked = look(spec, points(spec, 300)[0], check)
    found = reasons(looked)
    assert [why.count for why in found] == sorted((why.count for why in found), reverse=True)
    assert sum(why.count for why in found) == sum(why is not None for _, why in looked)
    assert {why.reason: why.share for why in found} == pytest.approx(
        {"unsupported_by_hardware": 1 / 3, "out_of_memory": 1 / 3}, abs=0.1
    )


def test_dead_values_and_ends_of_ranges_are_named_and_nothing_else(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    looked = look(spec, points(spec, 300)[0], check)
    option, end = sorted(suggestions(spec, looked, whole=False))
    assert option.startswith("block_size 8: refused at every point looked at")
    assert option.endswith("unsupported_by_hardware: drop it")
    assert end.startswith("gpu_memory_utilization below 0.5")
    assert "out_of_memory): let it go from there" in end


def test_of_a_whole_space_one_dead_point_is_enough(tmp_path: Path) -> None:
    spec = load(tmp_path, space="{knobs: {block-size: {choice: [8, 16, 32]}}}")
    found, whole = points(spec, 300)
    looked = [(point, Infeasible("x", "") if point["block_size"] == 8 else None) for point in found]
    assert suggestions(spec, looked, whole=whole) == [
        "block_size 8: refused at every point looked at (1), x: drop it"
    ]
    assert suggestions(spec, looked, whole=False) == []


def test_a_small_space_is_looked_at_whole(tmp_path: Path) -> None:
    small = "{knobs: {max-num-seqs: {int: [1, 1000]}}, rules: [max_num_seqs >= 2]}"
    found, whole = points(load(tmp_path, space=small), 10)
    assert (len(found), whole) == (WHOLE - 1, True)
    assert points(spec_of(tmp_path), 10)[1] is False


def test_a_space_of_which_nothing_can_start_ends_with_the_reasons_by_share(tmp_path: Path) -> None:
    def never(config: EngineConfig) -> Infeasible:
        return check(config) or Infeasible("model_too_long", "longest request: 9000 tokens")

    with pytest.raises(StudyError) as caught:
        hopeless(spec_of(tmp_path), never)
    said = str(caught.value)
    assert "space: none of the 200 points looked at can ever start" in said
    assert "% model_too_long: longest request: 9000 tokens" in said
    assert "% unsupported_by_hardware" in said


def test_one_point_that_can_start_ends_the_search_for_hope(tmp_path: Path) -> None:
    asked: list[EngineConfig] = []

    def counting(answer: Callable[[EngineConfig], Infeasible | None]) -> None:
        def count(config: EngineConfig) -> Infeasible | None:
            asked.append(config)
            return answer(config)

        hopeless(spec_of(tmp_path), count)

    counting(lambda _: None)
    assert len(asked) == 1
    counting(check)
    assert check(asked[-1]) is None


def test_where_nothing_starts_no_range_is_blamed(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    looked = look(spec, points(spec, 20)[0], lambda _: Infeasible("unknown", ""))
    assert suggestions(spec, looked, whole=True) == []


def test_an_order_that_vllm_asks_for_becomes_a_rule(tmp_path: Path) -> None:
    space = "{knobs: {max-num-seqs: {int: [1, 3]}, max-num-batched-tokens: {int: [1, 3]}}}"
    spec = load(tmp_path, space=space)

    def ordered(config: EngineConfig) -> Infeasible | None:
        tokens, seqs = config.args["max_num_batched_tokens"], config.args["max_num_seqs"]
        said = (
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to "
            f"max_num_seqs ({seqs})."
        )
        return None if tokens >= seqs else Infeasible("invalid_arguments", said)

    found, whole = points(spec, 300)
    rule = "max_num_batched_tokens >= max_num_seqs"
    assert suggestions(spec, look(spec, found, ordered), whole=whole) == [
        f"add the rule {rule}: it spares 3 of the 9 points looked at"
    ]
    ruled = load(tmp_path, space=f"{space[:-1]}, rules: [{rule}]}}")
    assert len(points(ruled, 300)[0]) == 6


def test_a_dead_value_is_told_by_the_reason_that_it_adds(tmp_path: Path) -> None:
    space = (
        "{knobs: {block-size: {choice: [8, 16, 32]}, num-gpu-blocks-override: {choice: [1, 9]}}}"
    )
    spec = load(tmp_path, space=space)

    def mostly_blocks(config: EngineConfig) -> Infeasible | None:
        if config.args["block_size"] < 32:
            return Infeasible("unsupported_by_hardware")
        few = config.args["num_gpu_blocks_override"] == 1
        return Infeasible("out_of_memory") if few else None

    found, whole = points(spec, 300)
    said = suggestions(spec, look(spec, found, mostly_blocks), whole=whole)
    assert (
        "num_gpu_blocks_override 1: refused at every point looked at (3), out_of_memory: "
        in (said[-1])
    )
