"""k at rest while pods come and go by scaling, and not for longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.scaling.motion import Motion, seen

PAUSE = 20.0


def looks(*sights: tuple[int, int], every: float = 5.0) -> list[bool]:
    """Whether k rests, look by look at (replicas, ready)."""
    motion, rests = Motion(), []
    for index, (replicas, ready) in enumerate(sights):
        motion = seen(motion, replicas, ready, 100 + every * index, PAUSE)
        rests.append(100 + every * index < motion.until)
    return rests


def test_each_step_of_a_scaling_pauses_and_loading_does_not() -> None:
    up = looks((1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (2, 1), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2))
    assert up == [False, *4 * [True], False, *4 * [True], False]
    assert looks((2, 2), (1, 2), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)) == [False, *5 * [True], False]


def test_a_pod_that_is_lost_or_restarts_is_no_scaling() -> None:
    assert not any(looks((2, 2), (2, 1), (2, 2), (2, 0), (2, 2)))


def test_the_first_pods_of_a_serving_are_tuned_at_once() -> None:
    assert not any(looks((1, 0), (1, 1), (1, 1)))
    assert not any(looks((1, 0), (3, 0), (3, 3)))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_it_ends_where_nothing_moves(sights: list[tuple[int, int]]) -> None:
    assert not looks(*sights, *5 * [sights[-1]])[-1]
