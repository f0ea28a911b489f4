"""A move is confirmed by a second window, and blamed on what made it."""

from __future__ import annotations

import math

import numpy as np

from paceline_operator.api.conditions import Reason
from paceline_operator.tuning import moves
from paceline_operator.tuning.decide import settings_of
from paceline_operator.tuning.goodput import Scores
from paceline_operator.tuning.moves import Decided
from tests.unit.simulated import Loop, grid, spec, workload

LADDER = (5, 3, 2, 1, 0)
SETTINGS = settings_of(spec())
GOOD_LENGTHS, POOR_LENGTHS = (3.2, 2.8, 2.4, 1.8, 1.0), (1.3, 1.28, 1.25, 1.2, 1.0)
STEPS = (30.0, 26.0, 24.0, 22.0, 20.0)
SLOW_STEPS = (90.0, 70.0, 50.0, 26.0, 20.0)


def scores(
    lengths: tuple[float, ...] = GOOD_LENGTHS, milliseconds: tuple[float, ...] = STEPS, error: float = 0.01
) -> Scores:
    log_length, log_step = np.log(lengths), np.log(milliseconds) - math.log(1000)
    return Scores(
        load=16,
        ladder=LADDER,
        requests=16.0,
        log_length=log_length,
        log_step=log_step,
        log_goodput=math.log(16) + log_length - log_step,
        length_covariance=np.zeros((5, 5)),
        step_covariance=np.eye(5) * error**2,
        covariance=np.eye(5) * error**2,
        steps=np.full(5, 100.0),
        known=np.ones(5, dtype=bool),
        outdated=np.zeros(5, dtype=bool),
        faster=np.zeros(5, dtype=bool),
        told=np.ones(5, dtype=bool),
    )


def settled(k: int, windows: int = 20) -> Decided:
    first = moves.first(scores(), k, 0.0)
    return Decided(first.k, first.log_length, first.log_step, 0.0, windows=windows)


def advance(
    past: Decided, found: Scores, now: float = 10.0, changed: bool = False, before: bool = False
) -> tuple[Decided, moves.Move | None]:
    return moves.advance(past, found, SETTINGS, before, now, changed)


def test_one_window_moves_nothing_and_a_second_does() -> None:
    once, move = advance(settled(5), scores(POOR_LENGTHS))
    assert move is None
    assert once.k == 5
    assert once.pending == (1, 1)
    twice, move = advance(once, scores(POOR_LENGTHS), 20.0)
    assert move is not None
    assert (move.from_k, move.to_k, twice.k, twice.pending) == (5, 1, 1, (-1, 0))


def test_windows_that_disagree_start_anew() -> None:
    once, _ = advance(settled(5), scores(POOR_LENGTHS))
    calm, _ = advance(once, scores())
    assert calm.pending == (-1, 0)
    other, _ = advance(once, scores(milliseconds=(60.0, 26.0, 24.0, 22.0, 20.0)))
    assert other.pending == (3, 1)


def test_acceptance_is_to_blame() -> None:
    once, _ = advance(settled(5), scores(POOR_LENGTHS))
    _, move = advance(once, scores(POOR_LENGTHS))
    assert move is not None
    assert move.reason is Reason.ACCEPTANCE
    assert "acceptance length of k 5 was 3.20, is 1.30" in move.message


def test_cost_is_to_blame() -> None:
    once, _ = advance(settled(5), scores(milliseconds=SLOW_STEPS))
    _, move = advance(once, scores(milliseconds=SLOW_STEPS))
    assert move is not None
    assert (move.reason, move.to_k) == (Reason.COST, 1)
    assert "a step of k 5 took 30.0 ms, takes 90.0 ms" in move.message


def test_a_fresh_load_corrects_the_boot_table_at_once_where_it_is_wrong_by_far() -> None:
    """It took several windows to observe it."""
    _, move = advance(settled(5, windows=0), scores(POOR_LENGTHS))
    assert move is not None
    assert move.reason is Reason.LOAD
    assert "by far" in move.message
    assert "the k before was a guess" in move.message


def test_a_fresh_load_corrects_it_in_two_windows_where_it_is_a_little_wrong() -> None:
    slightly = scores(milliseconds=(31.0, 26.0, 24.0, 22.0, 20.0))
    fresh, move = advance(settled(5, windows=0), slightly)
    assert move is None
    _, move = advance(fresh, slightly)
    assert move is not None
    assert move.reason is Reason.LOAD
    assert "two windows in a row" in move.message


def test_a_load_that_leaned_that_way_from_the_first_corrects_it_too() -> None:
    """Nothing changed since it was observed: it took long to be sure."""
    leaning = moves.first(scores(POOR_LENGTHS, error=0.2), 5, 0.0)
    for window in range(20):
        leaning, move = advance(leaning, scores(POOR_LENGTHS, error=0.2), 10.0 * window)
        assert move is None
    unsure, _ = advance(leaning, scores(POOR_LENGTHS), 210.0)
    assert advance(unsure, scores(POOR_LENGTHS), 220.0)[1].reason is Reason.LOAD  # type: ignore[union-attr]
    assert advance(unsure, scores(POOR_LENGTHS), 220.0, before=True)[1].reason is not Reason.LOAD  # type: ignore[union-attr]


def test_unless_traffic_changed_meanwhile() -> None:
    fresh, _ = advance(settled(5, windows=0), scores(POOR_LENGTHS), changed=True)
    _, move = advance(fresh, scores(POOR_LENGTHS))
    assert move is not None
    assert move.reason is Reason.ACCEPTANCE


def test_the_message_has_goodputs_gain_and_band() -> None:
    once, _ = advance(settled(5), scores(POOR_LENGTHS))
    _, move = advance(once, scores(POOR_LENGTHS))
    assert move is not None
    assert move.message.startswith(
        "k 5 → 1 at 16 requests: 873 ± 17 tok/s against 693 ± 14 (+26%, tie band 2.9%), two windows"
    )


def test_each_change_makes_the_next_one_harder_for_a_while() -> None:
    once, _ = advance(settled(5), scores(POOR_LENGTHS))
    moved, _ = advance(once, scores(POOR_LENGTHS), 20.0)
    assert moved.restless == 1.0
    slightly = scores((1.34, 1.28, 1.25, 1.0, 1.0), (24.0, 25.0, 24.5, 18.5, 18.5))
    assert advance(moved, slightly, 30.0)[0].pending == (-1, 0), "3.3 %, the band is 3.6 %"
    assert advance(moved, slightly, 20.0 + 4 * 3600.0)[0].pending == (5, 1), "forgotten after hours"


def test_a_load_is_told_when_two_passes_agree() -> None:
    loop = Loop.of(grid("h200_dense32b_eagle.csv"), workload("gsm8k"), noise=0.02)
    loop.run(10, 128)
    loop.run(10, 8)
    told = len(loop.decisions)
    loop.run(1, 128)
    assert len(loop.decisions) == told
    loop.run(1, 8)
    loop.run(1, 128)
    assert len(loop.decisions) == told, "back and forth is no change of load"
    loop.run(1, 128)
    assert len(loop.decisions) == told + 1
    assert loop.decisions[-1].message.startswith("k 5 → 1 as load went from 8 requests to 128 requests: ")
