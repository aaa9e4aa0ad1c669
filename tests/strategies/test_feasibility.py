"""A space of which over a quarter dies at the launch, for reasons that only the launch tells."""

import numpy as np
import pytest

from tests.strategies import case
from tuner.knobs import ChoiceDomain, Knob, Point, SearchSpace
from tuner.records import Cost, Infeasible, TrialRecord
from tuner.strategies.candidates import draw

TRIALS = 40
SPACE = SearchSpace(
    (
        *(knob for knob in case.SPACE.knobs if knob.name != "block_size"),
        Knob("gpu_memory_utilization", ChoiceDomain.of([0.82, 0.86, 0.90, 0.94, 0.98])),
        Knob("kv_cache_dtype", ChoiceDomain.of(["auto", "fp8"])),
        Knob("block_size", ChoiceDomain.of([16, 32, 64, 128])),
    ),
    rules=case.SPACE.rules,
)


def refused(point: Point) -> Infeasible | None:
    if point.get("gpu_memory_utilization", 0.9) > 0.96:
        detail = "Free memory on device cuda:0 is less than desired GPU memory utilization (0.98)"
        return Infeasible("out_of_memory", detail)
    if point.get("block_size") == 128 and point.get("kv_cache_dtype") == "fp8":
        return Infeasible("unsupported_by_hardware", "Reason: ['block_size not supported']")
    return None


def failed(name: str, seed: int) -> list[bool]:
    """Search on one slot; return which trials died at the launch."""
    plain = case.strategy(name, space=SPACE, seed=seed, trials=TRIALS)
    plain.enqueue(case.baseline())
    live: list[str] = []
    out = []
    for _ in range(TRIALS):
        proposal = plain.ask(live)
        assert proposal is not None
        why = refused(proposal.point)
        told = case.record(proposal, live)
        if why is not None:
            parts = proposal.number, proposal.config, proposal.point
            told = TrialRecord(*parts, why, cost=Cost(start_s=30.0))
        plain.tell(told)
        live = [] if why else [proposal.config.cold_key(case.HOT)]
        out.append(why is not None)
    return out


def test_more_than_a_quarter_of_the_space_dies() -> None:
    random = np.random.default_rng(0)
    points = [{k.name: draw(k.domain, random) for k in SPACE.knobs} for _ in range(4000)]
    assert np.mean([refused(point) is not None for point in points]) > 0.25


@pytest.mark.parametrize("name", ["priced", "ride-along"])
def test_failed_starts_are_learned_from(name: str) -> None:
    second = [failed(name, seed)[TRIALS // 2 :] for seed in range(3)]
    assert np.mean(second) < 0.10
