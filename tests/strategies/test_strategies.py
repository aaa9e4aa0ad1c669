"""What holds for every strategy, and what each of them adds."""

import pytest

from tests.strategies import case
from tuner.config import canonical
from tuner.knobs import ChoiceDomain, Knob, SearchSpace
from tuner.records import Cost, Faulted, TrialRecord
from tuner.rules import broken
from tuner.strategies import Search
from tuner.strategies.plain import KnownGood, Plain
from tuner.strategies.priced import Priced
from tuner.strategies.ride_along import RIDES, RideAlong
from tuner.strategies.staged import stages
from tuner.strategies.table import DEFAULT, STRATEGIES

RIDERS = ["ride-along", "priced", "staged"]


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in STRATEGIES


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_point_twice_rules_kept_inactive_knobs_absent(name: str) -> None:
    plain = case.strategy(name)
    plain.enqueue(case.baseline())
    proposals = [proposal for proposal, _ in case.searched(plain, 30)]
    assert proposals[0].config.args == {"max_model_len": 512}
    points = [canonical(proposal.point) for proposal in proposals]
    assert len(set(points)) == len(points) == 30
    for proposal in proposals:
        assert not broken(case.SPACE.rules, case.SPACE.arguments(proposal.point))
        if proposal.point.get("enforce_eager"):
            assert "graphs" not in proposal.point


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_small_space_ends(name: str) -> None:
    space = SearchSpace(
        (
            Knob("max_num_seqs", ChoiceDomain.of([8, 16, 32])),
            Knob("quantization", ChoiceDomain.of([None, "fp8"])),
        )
    )
    plain = case.strategy(name, space=space)
    assert len(case.searched(plain, 10)) == 6
    assert plain.ask() is None


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_asked_at_once_differs(name: str) -> None:
    plain = case.strategy(name)
    case.searched(plain, 8)
    asked = [plain.ask() for _ in range(5)]
    assert len({canonical(p.point) for p in asked if p}) == 5


@pytest.mark.parametrize("name", RIDERS)
def test_what_runs_counts_as_if_it_gave_what_is_expected(name: str) -> None:
    # Two slots on one key must not look at the same corner of it.
    plain = case.strategy(name)
    first, _ = case.searched(plain, 12)[-1]
    live = [first.config.cold_key(case.HOT)]
    left, right = plain.ask(live), plain.ask(live)
    assert left is not None
    assert right is not None
    assert left.point != right.point


@pytest.mark.parametrize("name", STRATEGIES)
def test_weather_is_tried_again(name: str) -> None:
    plain = case.strategy(name)
    case.searched(plain, 5)
    first = plain.ask()
    assert first is not None
    broken_run = Faulted("worker_lost")
    plain.tell(TrialRecord(first.number, first.config, first.point, broken_run, cost=Cost(3.0)))
    again = plain.ask()
    assert again is not None
    assert (again.point, again.config) == (first.point, first.config)


@pytest.mark.parametrize("name", RIDERS)
def test_a_resumed_study_knows_its_prices_and_points(name: str) -> None:
    store = case.in_memory()
    done = {canonical(p.point) for p, _ in case.searched(case.strategy(name, store), 10)}
    again = case.strategy(name, store)
    assert again.prices.replay_s == pytest.approx(25.0)  # type: ignore[attr-defined]
    more = {canonical(p.point) for p, _ in case.searched(again, 10)}
    assert len(done | more) == 20


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_study_of_hot_knobs_never_restarts(name: str) -> None:
    space = SearchSpace(tuple(case.SPACE[n] for n in sorted(case.HOT)), rules=case.SPACE.rules)
    plain = case.strategy(name, space=space)
    plain.enqueue(case.baseline())
    assert [was_live for _, was_live in case.searched(plain, 15)] == [False] + [True] * 14


def test_ride_along_is_faithful_for_a_few_variants_then_moves_on() -> None:
    live = [was_live for _, was_live in case.searched(case.strategy("ride-along"), 24)]
    longest = max(len(run) for run in "".join("x" if x else " " for x in live).split())
    assert longest <= 2 * RIDES + 1  # the sampler may propose the live key anew
    assert sum(live) >= len(live) // 2


def test_the_sampler_does_not_see_what_rode_along() -> None:
    plain = case.strategy("ride-along")
    case.searched(plain, 12)
    assert isinstance(plain, RideAlong)
    seen = plain._view(plain._study).get_trials()
    whole = plain._study.get_trials()
    assert 0 < len(seen) < len(whole) == 12
    assert all("rides" not in trial.user_attrs for trial in seen)


def test_variants_of_a_known_good_configuration_keep_its_engine() -> None:
    plain = case.strategy("ride-along")
    plain.enqueue(KnownGood("baseline: x", {"attention_backend": "X"}, case.DEFAULT))
    (first, _), (second, was_live) = case.searched(plain, 2)
    assert was_live
    assert second.config.args["attention_backend"] == "X"
    assert set(second.config.args) - set(first.config.args) == case.HOT
    assert "quantization" not in second.config.args
    assert "graphs" not in second.point  # nobody knows what the baseline has there
    assert second.config.label == ""


@pytest.mark.parametrize("name", ["ride-along", "priced"])
def test_nothing_rides_without_a_live_engine(name: str) -> None:
    plain = case.strategy(name)
    for _ in range(6):
        proposal = plain.ask()
        assert proposal is not None
        assert "rides" not in plain._study.trials[proposal.number].user_attrs
        plain.tell(case.record(proposal))


def test_priced_moves_less_the_dearer_a_start_is() -> None:
    def starts(start_s: float) -> int:
        return sum(not live for _, live in case.searched(case.strategy("priced"), 30, start_s))

    assert starts(900.0) < starts(1.0)


def test_priced_rides_where_there_are_few_keys() -> None:
    """Two cold keys: after both the model chooses, and most trials change a live engine."""
    names = (*sorted(case.HOT), "quantization")
    space = SearchSpace(tuple(case.SPACE[n] for n in names), rules=case.SPACE.rules)
    live = [was_live for _, was_live in case.searched(case.strategy("priced", space=space), 24)]
    assert sum(live) >= 16


def test_priced_chooses_itself_where_rules_leave_few_keys() -> None:
    names = (*sorted(case.HOT), "quantization", "block_size")
    rules = ("max_num_batched_tokens >= max_num_seqs", "block_size <= 16")
    space = SearchSpace(tuple(case.SPACE[n] for n in names), rules=rules)
    plain = case.strategy("priced", space=space, trials=60)
    case.searched(plain, 12)
    assert plain._choose(()) is not None  # six keys there seem to be, and there are two


def test_one_failure_does_not_close_off_a_value() -> None:
    plain = case.strategy("priced")
    plain.enqueue(KnownGood("broken", {}, {"quantization": "fp8", "block_size": 64}))
    (first, _), *rest = case.searched(plain, 25)
    assert case.truth(dict(first.point)) is None
    assert sum(p.point.get("quantization") == "fp8" for p, _ in rest) >= 8


def test_priced_finds_the_front_in_few_starts() -> None:
    plain = case.strategy("priced")
    plain.enqueue(case.baseline())
    found = [p.point for p, _ in case.searched(plain, 40)]
    best = [p for p in found if p.get("quantization") == "fp8" and p.get("graphs") == "full"]
    assert len(best) >= 8
    speeds = [scores[0] for p in best if (scores := case.truth(dict(p)))]
    assert max(speeds) > 100 * 1.4 * 1.2 * 256**0.3


def test_gpus_are_part_of_the_price() -> None:
    space = SearchSpace((Knob("tensor_parallel_size", ChoiceDomain.of([1, 2, 4])),))
    plain = case.strategy("priced", space=space)
    assert isinstance(plain, Priced)
    one, four = (plain._offer({"tensor_parallel_size": n}, ()).price_s for n in (1, 4))
    assert four == pytest.approx(4 * one)


def test_staged_changes_one_stage_at_a_time_from_the_best_so_far() -> None:
    plain = case.strategy("staged", trials=30)
    plain.enqueue(KnownGood("baseline: x", case.DEFAULT, {**case.DEFAULT, "block_size": 16}))
    proposals = [p for p, _ in case.searched(plain, 30)]
    parts = [stage.knobs for stage in stages(Search(case.SPACE, case.BASE, trials=30))]
    assert [set(p) for p in parts] == [
        {"max_num_seqs", "max_num_batched_tokens"},
        {"block_size"},
        {"quantization", "enforce_eager", "graphs"},
    ]
    early = [p.point for p in proposals[:11]]
    assert {p["block_size"] for p in early} == {16}
    assert len({canonical(p) for p in early}) == 11
    assert {p.point["block_size"] for p in proposals} > {16}
    assert any(p.point.get("quantization") == "fp8" for p in proposals)


def test_an_empty_stage_gives_its_share_to_the_others() -> None:
    space = SearchSpace((Knob("max_num_seqs", ChoiceDomain.of([8, 16])),))
    (only,) = stages(Search(space, case.BASE, trials=20))
    assert only.ends == pytest.approx(20)


def test_plain_is_what_the_table_calls_plain() -> None:
    assert type(case.strategy("plain")) is Plain
