"""The arithmetic behind the strategies against brute force."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from tests.strategies import case
from tuner import pareto
from tuner.knobs import ChoiceDomain, FloatDomain, IntDomain, Knob, SearchSpace
from tuner.records import Dominated, Measured, Measurement, TrialRecord
from tuner.strategies.candidates import Candidates, draw
from tuner.strategies.encoding import Encoder
from tuner.strategies.gaussian import GaussianProcess
from tuner.strategies.improvement import expected_improvement, free_boxes
from tuner.strategies.model import Model, Targets

RANDOM = np.random.default_rng(0)
MIXED = SearchSpace(
    (
        Knob("n", IntDomain(1, 100, log=True)),
        Knob("x", FloatDomain(0.0, 2.0)),
        Knob("size", ChoiceDomain.of([64, 16, 32])),
        Knob("kind", ChoiceDomain.of([None, True, 1, "a", {"k": 1}])),
        Knob("extra", FloatDomain(0.0, 1.0, 0.25), when={"size": (64,)}),
    )
)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_free_boxes_fill_what_the_front_leaves(m: int) -> None:
    front = RANDOM.random((8, m))
    reference = np.full(m, 1.1)
    low, high = free_boxes(front, reference)
    within = np.maximum(low, 0.0)
    free = np.prod(np.maximum(high - within, 0.0), axis=1).sum()
    assert free + pareto.hypervolume(front, reference.tolist()) == pytest.approx(1.1**m)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_expected_improvement_is_the_mean_over_samples(m: int) -> None:
    front, reference = RANDOM.random((6, m)), np.full(m, 1.0)
    mean, std = RANDOM.random((3, m)), 0.05 + 0.3 * RANDOM.random((3, m))
    exact = expected_improvement(mean, std, free_boxes(front, reference))
    before = pareto.hypervolume(front, reference.tolist())
    for row in range(3):
        samples = RANDOM.normal(mean[row], std[row], (3000, m))
        gains = [
            pareto.hypervolume(np.vstack([front, sample]), reference.tolist()) - before
            for sample in samples
        ]
        error = np.std(gains) / 3000**0.5
        assert exact[row] == pytest.approx(np.mean(gains), abs=4 * error + 1e-6)


def test_points_outside_of_the_reference_do_not_count() -> None:
    low, high = free_boxes(np.array([[2.0, 0.1]]), np.array([1.0, 1.0]))
    assert np.isinf(low).all()
    assert high.tolist() == [[1.0, 1.0]]


def test_distances_by_kind_of_knob() -> None:
    encoder = Encoder(MIXED)
    rows = encoder.rows(
        [
            {"n": 1, "x": 0.0, "size": 16, "kind": None},
            {"n": 10, "x": 1.0, "size": 32, "kind": True},
            {"n": 100, "x": 2.0, "size": 64, "kind": 1, "extra": 0.5},
        ]
    )
    gaps = encoder.gaps(rows, rows)
    assert gaps[0, 0].tolist() == pytest.approx([0, 0.25, 1])
    assert gaps[2, 0].tolist() == pytest.approx([0, 0.25, 1])
    assert gaps[3].tolist() == (1 - np.eye(3)).tolist()
    assert gaps[4].tolist() == [[0, 0, 0.75], [0, 0, 0.75], [0.75, 0.75, 0]]
    unknown = encoder.gaps(encoder.rows([{"n": 10, "size": 64, "extra": 1.0}]), rows)
    assert unknown[1, 0].tolist() == [0.25, 0, 0.25]
    assert unknown[3, 0].tolist() == pytest.approx([0.4] * 3)  # the centre of five categories


def test_the_kernel_is_positive_definite_with_missing_values() -> None:
    points = Candidates(MIXED, lambda point: True, np.random.default_rng(1)).anywhere(80, ())
    points += [{"n": 10, "x": 1.0}, {"size": 64}, {"kind": "a"}]
    encoder = Encoder(MIXED)
    rows = encoder.rows(points)
    process = GaussianProcess(len(MIXED.knobs))
    process.fit(encoder.gaps(rows, rows), RANDOM.random(len(rows)))
    assert np.isfinite(process.posterior(encoder.gaps(rows, rows)).mean).all()


def test_the_gradient_of_the_fit_is_the_slope_of_its_loss() -> None:
    rows = RANDOM.random((12, 3))
    gaps = (rows.T[:, :, None] - rows.T[:, None, :]) ** 2
    values = RANDOM.normal(size=12)
    process = GaussianProcess(3)
    theta = np.array([-0.5, 0.3, 0.1, 0.2, -2.0])
    slope = approx_fprime(theta, lambda t: process._loss(t, gaps, values)[0], 1e-6)
    assert process._loss(theta, gaps, values)[1] == pytest.approx(slope, abs=1e-3)


def test_a_fit_finds_what_matters() -> None:
    rows = np.random.default_rng(2).random((60, 4))
    gaps = (rows.T[:, :, None] - rows.T[:, None, :]) ** 2
    values = np.sin(4 * rows[:, 0]) + 0.01 * rows[:, 1]
    process = GaussianProcess(4)
    process.fit(gaps, values, steps=60)
    fresh = np.random.default_rng(3).random((40, 4))
    belief = process.posterior((fresh.T[:, :, None] - rows.T[:, None, :]) ** 2)
    assert np.abs(belief.mean - np.sin(4 * fresh[:, 0])).max() < 0.15
    assert process._theta[0] < process._theta[1:4].min()  # the length of the knob that matters


@pytest.mark.parametrize("knob", MIXED.knobs)
def test_draws_and_neighbours_stay_in_their_domain(knob: Knob) -> None:
    random = np.random.default_rng(4)
    assert all(knob.domain.contains(draw(knob.domain, random)) for _ in range(50))
    candidates = Candidates(MIXED, lambda point: True, random)
    start = {"n": 7, "x": 0.4, "size": 64, "kind": {"k": 1}, "extra": 0.25}
    for point in candidates.near([start], 60, (), MIXED.names):
        assert knob.name not in point or knob.domain.contains(point[knob.name])
        assert knob.active(point) == (knob.name in point)


def trials(n: int) -> list[TrialRecord]:
    points = Candidates(case.SPACE, lambda p: True, np.random.default_rng(5)).anywhere(n, ())
    out = []
    for number, point in enumerate(points):
        scores = case.truth({**point, "block_size": 16})
        outcome = Measured(Measurement({}))
        out.append(TrialRecord(number, case.BASE, point, outcome, scores, (-0.1,)))
    return out


def test_too_few_trials_make_no_model() -> None:
    model = Model(case.SPACE, Targets(case.OBJECTIVES, case.CONSTRAINTS))
    model.learn(trials(2))
    assert not model.ready
    assert model.novelty([trials(1)[0].point]) == pytest.approx([0.0])


def test_where_constraints_break_little_is_gained() -> None:
    told = [
        TrialRecord(r.number, r.config, r.point, r.outcome, r.scores,
                    (1.0 if r.point["max_num_seqs"] > 60 else -1.0,))
        for r in trials(60)
    ]  # fmt: skip
    point = {"max_num_seqs": 500, "max_num_batched_tokens": 512, "quantization": "fp8",
             "block_size": 16, "enforce_eager": False, "graphs": "full"}  # fmt: skip
    gains = []
    for known in (trials(60), told):
        model = Model(case.SPACE, Targets(case.OBJECTIVES, case.CONSTRAINTS))
        model.learn(known)
        gains.append(float(model.gain([point])[0]))
    assert gains[1] < 0.5 * gains[0]


def stopped(record: TrialRecord, bound: dict[str, float], violation: float = 0.0) -> TrialRecord:
    outcome = Dominated(bound, "stopped")
    return TrialRecord(record.number, record.config, record.point, outcome, None, (violation,))


def test_a_trial_that_was_stopped_teaches_its_bound() -> None:
    told = trials(40)
    points = [record.point for record in told]
    losses = pareto.oriented([record.scores or () for record in told], [True, False])
    beaten = ~pareto.non_dominated(losses)

    def gains(stop: bool) -> np.ndarray:
        model = Model(case.SPACE, Targets(case.OBJECTIVES, ()))
        metrics = [objective.metric for objective in case.OBJECTIVES]
        known = [
            stopped(r, dict(zip(metrics, r.scores or (), strict=True)))
            if stop and beaten[r.number]
            else r
            for r in told
        ]
        model.learn(known)
        return np.asarray(model.gain(points))

    # The bound of each is what it would have measured: the model believes the same of all points.
    assert gains(stop=True) == pytest.approx(gains(stop=False), rel=1e-6, abs=1e-9)


def test_a_trial_stopped_at_a_hopeless_constraint_teaches_to_stay_away() -> None:
    told = [
        stopped(r, {"paced.error_share": 0.5}, 0.49) if r.point["max_num_seqs"] > 60 else r
        for r in trials(60)
    ]
    point = {"max_num_seqs": 500, "max_num_batched_tokens": 512, "quantization": "fp8",
             "block_size": 16, "enforce_eager": False, "graphs": "full"}  # fmt: skip
    gains = []
    for known in (told, [r for r in told if r.scores]):
        model = Model(case.SPACE, Targets(case.OBJECTIVES, case.CONSTRAINTS))
        model.learn(known)
        gains.append(float(model.gain([point])[0]))
    assert gains[0] < 0.5 * gains[1]


def test_a_running_point_is_not_worth_running_again() -> None:
    model = Model(case.SPACE, Targets(case.OBJECTIVES, case.CONSTRAINTS))
    told = trials(30)
    point = {"max_num_seqs": 400, "max_num_batched_tokens": 512, "quantization": "fp8",
             "block_size": 16, "enforce_eager": False, "graphs": "full"}  # fmt: skip
    model.learn(told)
    before = float(model.gain([point])[0])
    model.learn(told, [point])
    assert float(model.gain([point])[0]) < 0.5 * before
