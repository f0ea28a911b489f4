"""Step times without stalls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import HISTOGRAM_BASE, LAUNCHED, CostCell, Verification
from paceline_operator.tuning.timing import robust_mean, timings


def cell(
    times: list[float],
    k: int = 1,
    verified: int | None = None,
    load: int = 4,
    context: int = 0,
    mode: Verification = Verification.ALL,
) -> CostCell:
    histogram: dict[int, int] = {}
    for time in times:
        position = math.floor(math.log(max(time * 1e6, 1.0)) / math.log(HISTOGRAM_BASE))
        histogram[position] = histogram.get(position, 0) + 1
    return CostCell(
        load=load,
        context=context,
        k_drafted=k,
        k_verified=k if verified is None else verified,
        probe=False,
        verification=mode,
        steps=len(times),
        request_steps=load * len(times),
        emitted=0,
        seconds=sum(times),
        seconds_squared=sum(time * time for time in times),
        histogram=histogram,
    )


def test_a_stall_is_left_out() -> None:
    kept = robust_mean(cell([0.02] * 99 + [3.3]))
    assert kept is not None
    mean, _, steps = kept
    assert steps == 99
    assert mean == pytest.approx(0.02, rel=0.03)


def test_one_stall_in_a_single_burst_is_left_out_too() -> None:
    kept = robust_mean(cell([0.01] * 7 + [1.0]))
    assert kept is not None
    assert kept[0] == pytest.approx(0.01, rel=0.05)


def test_slow_steps_that_are_no_exception_count() -> None:
    times = [0.02] * 80 + [0.2] * 20
    kept = robust_mean(cell(times))
    assert kept is not None
    assert kept[0] == pytest.approx(sum(times) / 100)


def test_steps_that_fire_and_steps_that_do_not_are_one_cost() -> None:
    """ngram verifies nothing where it found no match: the cost of k is the mean over both."""
    found = timings([cell([0.03] * 60, k=3, verified=0), cell([0.05] * 40, k=3, verified=3)], (4,), (3, 0))
    assert math.exp(found[0].log_mean) == pytest.approx(0.038)
    assert found[0].steps == 100


def test_bursts_add_up_contexts_do_not_and_foreign_cells_are_left_out() -> None:
    window = [
        cell([0.03] * 8, k=3),
        cell([0.03] * 8, k=3),
        cell([0.04] * 8, k=3, context=8192),
        cell([0.09] * 8, k=3, mode=Verification.ADAPTIVE),
        cell([0.02] * 8, k=0, mode=Verification.ADAPTIVE),
        cell([0.09] * 8, k=2),
        cell([0.09] * 8, k=0, verified=3),
        cell([0.09] * 8, load=8),
    ]
    found = timings(window, (4,), (3, 0))
    assert set(found) == {0, 1, 2}
    assert found[0].steps == 16
    assert found[0].request_steps == 64
    assert math.exp(found[1].log_mean) == pytest.approx(0.02), "at k=0 nothing is verified in any mode"
    assert math.exp(found[2].log_mean) == pytest.approx(0.04), "the longer context"


def mixed(times: list[float], prompt: int, tokens: int) -> CostCell:
    return cell(times).model_copy(update={"prompt": prompt, "prompt_tokens": tokens * len(times)})


def test_steps_with_few_prompts_and_with_many_are_told_apart() -> None:
    window = [cell([0.02] * 8), mixed([0.03] * 8, 256, 512), mixed([0.05] * 8, 1024, 1536)]
    found = timings(window, (4,), (1,))
    assert [(round(math.exp(one.log_mean), 4), one.steps, one.mixed) for one in found.values()] == [
        (0.02, 8, 0.0),
        (0.03, 8, 1.0),
        (0.05, 8, 1.0),
    ]


def test_where_a_step_may_have_waited_for_the_launch_of_the_next_all_are_told_together() -> None:
    window = [cell([0.02] * 8), mixed([0.03] * 8, LAUNCHED, 0), mixed([0.02] * 16, 256, 511)]
    found = timings(window, (4,), (1,))
    together, only = found.values()
    assert math.exp(together.log_mean) == pytest.approx((0.02 * 24 + 0.03 * 8) / 32)
    assert (together.steps, together.mixed, together.rough) == (32, 0.75, False)
    assert together.prompt_tokens == pytest.approx(16 * 511 / 32)
    spread = np.std([0.02] * 24 + [0.03] * 8) / (0.02 * 0.75 + 0.03 * 0.25)
    assert together.variance == pytest.approx(spread**2 / 32, rel=0.01), "what they differ by is scatter"
    assert math.exp(only.log_mean) == pytest.approx((0.03 * 8 + 0.02 * 16) / 24)
    assert (only.steps, only.request_steps, only.mixed, only.rough) == (0, 0.0, 1.0, True), "counted once"


times = st.lists(st.floats(1e-5, 10.0), min_size=1, max_size=60)


@settings(deadline=None)
@given(times)
def test_the_robust_mean_lies_within_the_times(samples: list[float]) -> None:
    kept = robust_mean(cell(samples))
    assert kept is not None
    mean, variance, steps = kept
    assert min(samples) * 0.94 <= mean <= max(samples) * 1.06
    assert 0 < variance <= 1
    assert len(samples) - max(1, 0.05 * len(samples)) <= steps <= len(samples)


def test_the_variance_is_that_of_the_steps() -> None:
    rng = np.random.default_rng(1)
    kept = robust_mean(cell(list(0.02 * np.exp(rng.normal(0, 0.1, 4000)))))
    assert kept is not None
    assert math.sqrt(kept[1]) == pytest.approx(0.1, rel=0.1)


def test_a_cell_without_time_says_nothing() -> None:
    empty = cell([0.02]).model_copy(update={"seconds": 0.0})
    assert robust_mean(empty) is None
    assert robust_mean(cell([0.02]).model_copy(update={"steps": 0})) is None
    assert robust_mean(cell([0.02]).model_copy(update={"seconds": 1e-258})) is None
