"""The observed guard on the time to first token: bounded, slow to let go, slower each time it let go too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from paceline_operator.api.conditions import Reason
from paceline_operator.tuning import guard
from paceline_operator.tuning.guard import Ttft
from paceline_operator.tuning.model import Step
from tests.unit.simulated import Loop, grid, workload

LADDER = (5, 3, 2, 1, 0)


def follow(seconds: Sequence[float | None], past: Ttft | None = None, start: float = 0.0, load: int = 64) -> Ttft:
    """The guard after windows with these percentiles and a limit of 1 s."""
    past = past or Ttft()
    for number, value in enumerate(seconds):
        past = guard.advance(past, value, 1.0, load, start + 10.0 * number)
    return past


def test_one_window_above_the_limit_is_none() -> None:
    assert follow([2.0]).lowered == 0
    assert follow([2.0, 0.5, 2.0]).lowered == 0
    assert follow([2.0, 2.0]).lowered == 1


def test_unknown_changes_nothing() -> None:
    assert follow([2.0, None, 2.0]).lowered == 1
    assert follow([None] * 5) == Ttft()


def test_no_more_than_two_steps_then_it_is_stuck() -> None:
    found = follow([2.0] * 30)
    assert found.lowered == 2
    assert found.stuck_since is not None


def test_it_comes_back_a_step_at_a_time_after_it_was_clear() -> None:
    lowered = follow([2.0] * 4)
    assert lowered.lowered == 2
    assert follow([0.5] * 30, lowered, 100.0).lowered == 2
    assert follow([0.5] * 32, lowered, 100.0).lowered == 1
    assert follow([0.95] * 60, lowered, 100.0).lowered == 2, "just below the limit is not clear"
    assert follow([0.5] * 70, lowered, 100.0).lowered == 0


def test_what_came_back_too_early_waits_longer_the_next_time() -> None:
    back = follow([0.5] * 40, follow([2.0] * 2), 100.0)
    assert back.lowered == 0
    again = follow([2.0] * 2, back, 510.0)
    assert again.lowered == 1
    assert again.wait == 2 * guard.CLEAR_SECONDS


def test_the_table_is_lowered_from_the_load_on() -> None:
    table = (5, 5, 5, 3, 3, 1, 0)
    assert guard.applied(table, LADDER, Ttft()) == table
    assert guard.applied(table, LADDER, Ttft(lowered=1, from_load=3)) == (5, 5, 5, 2, 2, 0, 0)
    assert guard.applied(table, LADDER, Ttft(lowered=2, from_load=1)) == (2, 2, 2, 1, 1, 0, 0)


def run(loop: Loop, seconds: float, passes: int) -> Step:
    engine = loop.engines["pod-0"]
    for _ in range(passes):
        loop.now += loop.interval
        step = loop.take([replace(engine.answer(loop.interval), ttft_p95_seconds=seconds)])
    return step


def test_the_tuner_lowers_says_so_proposes_and_recovers() -> None:
    loop = Loop.of(grid("h200_dense32b_eagle.csv"), workload("gsm8k"), noise=0.02)
    loop.settings = replace(loop.settings, ttft_limit_seconds=1.0)
    loop.run(20, 32)
    before = loop.steps[-1].table
    step = run(loop, 3.0, 2)
    assert step.k == 2 < before[32] == 3
    assert step.table[31] == before[31], "smaller loads keep theirs"
    assert loop.decisions[-1].reason is Reason.TTFT_LIMIT
    assert "3.00 s (p95), the limit 1.00 s" in loop.decisions[-1].message
    step = run(loop, 3.0, 30)
    assert step.k == 1
    assert step.restarts.ttft_lowered == 2
    step = run(loop, 0.2, 75)
    assert step.table[32] == 3
    assert step.restarts.ttft_lowered is None
    assert loop.decisions[-1].reason is Reason.TTFT_LIMIT
    assert "clear of its limit" in loop.decisions[-1].message


def test_without_a_limit_nothing_is_guarded() -> None:
    loop = Loop.of(grid("h200_dense32b_eagle.csv"), workload("gsm8k"), noise=0.02)
    loop.run(20, 32)
    before = loop.steps[-1].table
    assert run(loop, 100.0, 20).table == before


windows = st.lists(
    st.tuples(st.none() | st.floats(0, 100), st.none() | st.sampled_from([1, 8, 64]), st.floats(-100, 1000)),
    max_size=60,
)


@bounded(deadline=None)
@given(windows, st.lists(st.sampled_from(LADDER), min_size=2, max_size=80))
def test_whatever_is_observed_it_stays_bounded(
    passes: list[tuple[float | None, int | None, float]], table: list[int]
) -> None:
    found, now = Ttft(), 0.0
    for seconds, load, later in passes:
        now += later
        before, found = found, guard.advance(found, seconds, 1.0, load, now)
        assert 0 <= found.lowered <= guard.MOST_LOWERED
        assert abs(found.lowered - before.lowered) <= 1
        assert found.wait <= guard.LONGEST_CLEAR_SECONDS
    dense = tuple(table)
    lowered = guard.applied(dense, LADDER, found)
    assert len(lowered) == len(dense)
    assert all(a <= b for a, b in zip(lowered[1:], dense[1:], strict=True))
