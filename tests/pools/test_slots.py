"""Placement: what is reused, what makes way, what has no room."""

from __future__ import annotations

from tuner.config import EngineConfig
from tuner.pools.slots import Capacity, Held, Placement, Wanted, place

CONFIG = EngineConfig("m", {"a": 1, "b": 2})


def test_a_new_slot_goes_where_nothing_must_be_released() -> None:
    held = [Held(0, "n1", 2, busy=False), Held(1, "n1", 2, busy=True)]
    assert place(Capacity(), {"n1": 4, "n2": 4}, held, CONFIG, Wanted(4)) == Placement(
        2, "n2", new=True
    )


def test_an_idle_slot_of_the_same_size_is_reused() -> None:
    held = [Held(0, "n1", 2, busy=False), Held(1, "n1", 1, busy=False)]
    assert place(Capacity(), {"n1": 8}, held, CONFIG, Wanted(1)) == Placement(1, "n1", new=False)


def test_the_idle_slot_whose_engine_is_most_alike_is_reused() -> None:
    held = [
        Held(0, "n1", 1, busy=False, last=EngineConfig("m", {"a": 9, "b": 9})),
        Held(1, "n1", 1, busy=False, last=EngineConfig("m", {"a": 1, "b": 9})),
        Held(2, "n1", 1, busy=False, last=EngineConfig("m", {"a": 1, "b": 2}, {"X": "1"})),
    ]
    placement = place(Capacity(), {"n1": 8}, held, CONFIG, Wanted(1))
    assert placement == Placement(1, "n1", new=False)


def test_idle_slots_of_another_size_make_way() -> None:
    held = [Held(0, "n1", 1, busy=False), Held(1, "n1", 1, busy=False), Held(2, "n1", 1, busy=True)]
    placement = place(Capacity(), {"n1": 4}, held, CONFIG, Wanted(2))
    assert placement == Placement(3, "n1", new=True, release=(0,))


def test_busy_slots_never_make_way() -> None:
    held = [Held(0, "n1", 1, busy=True), Held(1, "n1", 1, busy=False)]
    assert place(Capacity(), {"n1": 2}, held, CONFIG, Wanted(2)) is None


def test_gpus_of_one_engine_lie_on_one_node() -> None:
    assert place(Capacity(), {"n1": 2, "n2": 2}, [], CONFIG, Wanted(4)) is None


def test_a_limit_over_all_nodes_holds() -> None:
    held = [Held(0, "n1", 1, busy=True), Held(1, "n2", 1, busy=False)]
    nodes = {"n1": 8, "n2": 8}
    assert place(Capacity(gpus=2), nodes, held, CONFIG, Wanted(2)) is None
    placement = place(Capacity(gpus=3), nodes, held, CONFIG, Wanted(2))
    assert placement is not None
    assert placement.release == (1,)


def test_the_number_of_jobs_at_one_time_is_limited() -> None:
    held = [Held(0, "n1", 1, busy=True)]
    assert place(Capacity(slots=1), {"n1": 8}, held, CONFIG, Wanted(1)) is None


def test_slots_of_a_lost_node_are_not_reused() -> None:
    held = [Held(0, "gone", 1, busy=False)]
    assert place(Capacity(), {"n1": 1}, held, CONFIG, Wanted(1)) == Placement(1, "n1", new=True)


def test_engines_on_the_cpu_count_in_engines_whatever_their_parallel_size() -> None:
    capacity = Capacity(cpus_per_engine=4)
    assert capacity.of_node({"CPU": 9.0, "GPU": 2.0}) == 2
    assert capacity.units(gpus=8) == 1


def test_the_live_engine_that_can_serve_the_job_goes_first_and_another_is_spared() -> None:
    like = Held(0, "n1", 1, busy=False, last=CONFIG, live="other")
    plain = Held(1, "n1", 1, busy=False)
    right = Held(2, "n1", 1, busy=False, live="wanted")
    nodes = {"n1": 3}
    wanted = Wanted(1, "wanted")
    assert place(Capacity(), nodes, [like, plain, right], CONFIG, wanted) == Placement(
        2, "n1", new=False
    )
    assert place(Capacity(), nodes, [like, plain], CONFIG, wanted) == Placement(1, "n1", new=False)
