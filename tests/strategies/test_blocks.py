"""Which region a reason blocks, on points whose fault is known."""

from tests.strategies import case
from tuner.config import EngineConfig
from tuner.knobs import Point, SearchSpace
from tuner.records import Dominated, Infeasible, Measured, Measurement, TrialRecord
from tuner.strategies.blocks import Blocks
from tuner.strategies.ride_along import RideAlong

CONFIG = EngineConfig("m")


def died(point: Point, reason: str = "out_of_memory", detail: str = "needs 9.1 GiB") -> TrialRecord:
    return TrialRecord(0, CONFIG, point, Infeasible(reason, detail))


def ran(point: Point) -> TrialRecord:
    return TrialRecord(0, CONFIG, point, Measured(Measurement({})), (1.0, 1.0))


def blocks(*records: TrialRecord) -> Blocks:
    found = Blocks(case.SPACE)
    found.learn(records)
    return found


FP8_64 = {"quantization": "fp8", "block_size": 64}


def test_one_failure_blocks_nothing() -> None:
    assert FP8_64 not in blocks(died(FP8_64))


def test_what_all_failures_share_is_blocked_and_what_ran_is_innocent() -> None:
    left, right = {**FP8_64, "max_num_seqs": 8}, {**FP8_64, "enforce_eager": True}
    both = blocks(died(left), died(right), ran({"quantization": None, "block_size": 64}))
    assert FP8_64 in both
    assert {"quantization": "fp8", "block_size": 16} in both  # nothing with fp8 ran yet
    known = blocks(
        died(left), died(right),
        ran({"quantization": None, "block_size": 64}), ran({"quantization": "fp8"}),
    )  # fmt: skip
    assert FP8_64 in known
    assert {"quantization": "fp8", "block_size": 16} not in known
    assert {"quantization": None, "block_size": 64} not in known


def test_while_two_values_may_be_at_fault_only_both_together_are_blocked() -> None:
    found = blocks(died(FP8_64), died({**FP8_64, "enforce_eager": True}))
    assert FP8_64 in found
    assert {"quantization": "fp8", "block_size": 16} not in found


def test_reasons_are_kept_apart_and_numbers_in_their_words_are_not() -> None:
    other = {"quantization": "fp8", "block_size": 16}
    assert FP8_64 not in blocks(died(FP8_64), died(other, "invalid_arguments"))
    assert FP8_64 in blocks(died(FP8_64), died(other, detail="needs 12 GiB"))


def test_a_failure_that_nothing_explains_blocks_nothing() -> None:
    same = {"block_size": 64}
    assert same not in blocks(died(same), died(same), ran(same))


def test_what_ran_and_was_stopped_early_is_innocent_too() -> None:
    other = {"quantization": "fp8", "block_size": 16}
    stopped = TrialRecord(0, CONFIG, other, Dominated({}))
    found = blocks(died(FP8_64), died({**FP8_64, "max_num_seqs": 8}), stopped)
    assert FP8_64 in found
    assert {"quantization": None, "block_size": 64} in found
    assert other not in found


def test_a_blocked_point_is_tried_when_nothing_else_is_left() -> None:
    plain = case.strategy("ride-along", space=SearchSpace((case.SPACE["block_size"],)))
    assert isinstance(plain, RideAlong)
    plain._records += [died({"block_size": 64})] * 2
    plain._blocks.learn(plain._records)
    sizes = [p.point["block_size"] for p, _ in case.searched(plain, 3)]
    assert sizes[-1] == 64
