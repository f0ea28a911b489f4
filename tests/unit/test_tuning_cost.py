"""Step cost: what is measured, what is borrowed, what changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import CostCell
from paceline_operator.tuning import correct, cost
from paceline_operator.tuning.cost import Cost
from tests.unit.simulated import StepSeconds, grid

LOADS, LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), (7, 5, 3, 2, 1, 0)
DENSE = grid("h200_dense32b_eagle.csv")


def window(
    rng: np.random.Generator,
    true: StepSeconds,
    loads: tuple[int, ...],
    noise: float,
    steps: int = 16,
    ks: tuple[int, ...] = LADDER,
) -> list[CostCell]:
    cells = []
    for load in loads:
        for k in ks:
            mean = true(load, k) * math.exp(rng.normal(0, noise))
            cells.append(
                CostCell(
                    load=load,
                    context=0,
                    k_drafted=k,
                    k_verified=k,
                    probe=True,
                    steps=steps,
                    request_steps=steps * load,
                    emitted=0,
                    seconds=mean * steps,
                    seconds_squared=mean * mean * steps * 1.0004,
                    histogram={},
                )
            )
    return cells


def paced(factor: float) -> StepSeconds:
    return lambda requests, k: factor * DENSE(requests, k)


def error(found: Cost, true: StepSeconds, load: int, k: int) -> tuple[float, float]:
    """Log error of a cell, and its standard deviation as believed."""
    cell = LOADS.index(load) * len(LADDER) + LADDER.index(k)
    return float(found.mean[cell] - math.log(true(load, k))), math.sqrt(found.covariance[cell, cell])


def learnt(
    true: StepSeconds,
    loads: tuple[int, ...],
    noise: float,
    windows: int,
    seed: int = 0,
    found: Cost | None = None,
    start: float = 0.0,
) -> Cost:
    rng = np.random.default_rng(seed)
    found = found or cost.empty(LOADS, LADDER)
    for number in range(windows):
        found = correct.learn(found, {"pod": window(rng, true, loads, noise)}, 10.0, start + 10.0 * (number + 1))
    return found


def test_measured_cells_are_right_within_their_own_intervals() -> None:
    misses = []
    for seed in range(8):
        found = learnt(DENSE, (8, 32), 0.05, 12, seed)
        for load in (8, 32):
            for k in LADDER:
                off, deviation = error(found, DENSE, load, k)
                misses.append(off / deviation)
                assert deviation < 0.035
    assert np.std(misses) < 1.5, "intervals that are too narrow make a tuner sure of noise"
    assert np.std(misses) > 0.3, "intervals that are too wide make it deaf"


def test_neighbours_lend_strength_and_say_so() -> None:
    found = learnt(DENSE, (8, 32), 0.02, 10)
    for k in LADDER:
        off, deviation = error(found, DENSE, 16, k)
        assert abs(off) < 0.15
        assert abs(off) < 3 * deviation
        assert deviation > 2 * error(found, DENSE, 8, k)[1]
    assert not cost.own(found)[LOADS.index(16)].any()
    assert cost.measured(found) == (8, 32)


def test_half_the_count_does_where_another_load_is_measured() -> None:
    rng = np.random.default_rng(0)
    alone = correct.learn(cost.empty(LOADS, LADDER), {"pod": window(rng, DENSE, (8,), 0.02, steps=8)}, 10.0, 10.0)
    assert not cost.own(alone)[LOADS.index(8)].any()
    second = correct.learn(learnt(DENSE, (64,), 0.02, 2), {"pod": window(rng, DENSE, (8,), 0.02, steps=8)}, 10.0, 30.0)
    assert cost.own(second)[LOADS.index(8)].all()


def test_what_a_window_has_in_common_does_not_blur_the_comparison() -> None:
    """Every window 20 % fast or slow as a whole, on top of 1 % a cell."""
    rng = np.random.default_rng(3)
    found = cost.empty(LOADS, LADDER)
    for number in range(30):
        cells = window(rng, paced(math.exp(rng.normal(0, 0.2))), (8,), 0.01)
        found = correct.learn(found, {"pod": cells}, 10.0, 10.0 * number)
    row = LOADS.index(8) * len(LADDER)
    for column, k in enumerate(LADDER[1:], start=1):
        difference = found.mean[row] - found.mean[row + column]
        assert difference == pytest.approx(math.log(DENSE(8, 7) / DENSE(8, k)), abs=0.02)
    assert found.shared > found.noise / 2


def test_noise_is_learnt() -> None:
    for noise in (0.02, 0.2):
        found = learnt(DENSE, (8, 32), noise, 60)
        assert math.sqrt(found.noise) == pytest.approx(noise, rel=0.5)


def test_one_strange_window_is_doubted_and_the_second_believed() -> None:
    calm = learnt(DENSE, (8,), 0.02, 20)
    rng = np.random.default_rng(9)

    slow = paced(2)
    once = correct.learn(calm, {"pod": window(rng, slow, (8,), 0.02)}, 10.0, 210.0)
    assert abs(error(once, DENSE, 8, 3)[0]) < 0.25
    assert once.changed < 0
    twice = correct.learn(once, {"pod": window(rng, slow, (8,), 0.02)}, 10.0, 220.0)
    assert abs(error(twice, slow, 8, 3)[0]) < 0.05
    assert twice.changed == 220.0
    assert abs(error(twice, slow, 32, 3)[0]) < abs(error(twice, DENSE, 32, 3)[0]), "a tenant slows every load"


def test_a_machine_that_slows_down_is_not_held_against_the_k_in_force() -> None:
    """Only k=5 was measured since: what is known of the others moves with it, and is to be measured again."""
    rng = np.random.default_rng(11)
    found = learnt(DENSE, (8,), 0.02, 20)
    before = {k: error(found, DENSE, 8, k)[0] for k in LADDER}
    for number in range(3):
        found = correct.learn(found, {"pod": window(rng, paced(5), (8,), 0.02, ks=(5,))}, 10.0, 210.0 + 10 * number)
    for k in LADDER:
        assert error(found, paced(5), 8, k)[0] == pytest.approx(before[k], abs=0.1)
    row = LOADS.index(8) * len(LADDER)
    assert (found.seen[row : row + len(LADDER)] < found.changed).sum() == len(LADDER) - 1


def test_one_k_that_gets_dear_is_told_from_a_slow_machine_by_bursts() -> None:
    rng = np.random.default_rng(12)
    found = learnt(DENSE, (8,), 0.02, 20)

    def dear(requests: int, k: int) -> float:
        return DENSE(requests, k) * (4 if k == 5 else 1)

    for number in range(3):
        found = correct.learn(found, {"pod": window(rng, dear, (8,), 0.02, ks=(5,))}, 10.0, 210.0 + 10 * number)
    for number in range(3):
        found = correct.learn(found, {"pod": window(rng, dear, (8,), 0.02, steps=8)}, 10.0, 240.0 + 10 * number)
    for k in LADDER:
        assert abs(error(found, dear, 8, k)[0]) < 0.1, k


def test_a_cliff_stays_where_it_is() -> None:
    def cliff(requests: int, k: int) -> float:
        return DENSE(requests, k) * (5 if requests * (k + 1) > 256 else 1)

    found = learnt(cliff, LOADS, 0.02, 8)
    for load in LOADS:
        for k in LADDER:
            assert abs(error(found, cliff, load, k)[0]) < 0.08, (load, k)


def test_a_slow_engine_is_not_taken_for_the_cost_of_its_k() -> None:
    """Three engines, one three times slower, and that one alone measures k=7."""
    rng = np.random.default_rng(5)
    found = cost.empty(LOADS, LADDER)
    for number in range(20):
        windows = {name: window(rng, DENSE, (8,), 0.02, ks=(3, 1, 0)) for name in ("a", "b")}
        windows["slow"] = window(rng, paced(3), (8,), 0.02, ks=(7, 3))
        found = correct.learn(found, windows, 10.0, 10.0 * number)
    assert found.speeds["slow"] == pytest.approx(math.log(3), abs=0.1)
    assert abs(error(found, DENSE, 8, 3)[0]) < 0.05
    assert abs(error(found, DENSE, 8, 7)[0]) < 0.1


def test_time_widens_what_is_not_seen() -> None:
    found = learnt(DENSE, (8,), 0.02, 20)
    later = correct.learn(found, {}, 3600.0, 4000.0)
    assert error(later, DENSE, 8, 3)[1] > 1.5 * error(found, DENSE, 8, 3)[1]
    np.testing.assert_array_equal(later.mean, found.mean)


def test_the_covariance_stays_one() -> None:
    found = learnt(DENSE, LOADS, 0.2, 100)
    np.testing.assert_allclose(found.covariance, found.covariance.T)
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-9


def test_between_passes_half_of_the_covariance_is_kept_in_single_precision() -> None:
    before = cost.empty((1, 8, 64), (3, 1, 0))
    kept = cost.folded(before)
    size = before.mean.size
    assert (kept.covariance.dtype, kept.covariance.size) == (np.float32, size * (size + 1) // 2)
    assert cost.folded(kept) is kept
    after = cost.unfolded(kept).covariance
    assert (after.dtype, after.shape) == (np.float64, (size, size))
    assert np.array_equal(after, after.T)
    assert np.allclose(after, before.covariance, rtol=1e-6, atol=0.0)
    assert np.linalg.eigvalsh(after).min() > 0


@settings(deadline=None)
@given(st.data(), st.integers(1, 6))
def test_noise_is_learnt_from_the_calm_cells_of_a_window(data: st.DataObject, size: int) -> None:
    """As from the vectors and the matrix of these cells alone: scatter, and what every two of them have in common."""
    surprise = np.asarray(data.draw(st.lists(st.floats(-1, 1), min_size=size, max_size=size)))
    scatter = np.asarray(data.draw(st.lists(st.floats(0, 0.1), min_size=size, max_size=size)))
    root = np.asarray(data.draw(st.lists(st.lists(st.floats(-1, 1), min_size=size, max_size=size), min_size=size)))
    calm = np.asarray(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    between, past, count = root.T @ root, cost.empty(LOADS, LADDER), int(calm.sum())
    total, shared = past.noise, past.shared
    if count:
        excess = np.outer(surprise[calm], surprise[calm]) - between[calm][:, calm]
        total += 0.05 * (excess.trace() / count - scatter[calm].mean() - shared)
    if count > 1:
        shared += 0.05 * ((excess.sum() - excess.trace()) / (count * (count - 1)) - shared)
    total = min(max(total, correct.NOISE_BOUNDS[0]), correct.NOISE_BOUNDS[1])
    found = correct._noise(past, surprise, scatter, between, calm)
    assert found == pytest.approx((total, min(max(shared, 0.0), 0.9 * total)), rel=1e-9, abs=1e-12)
