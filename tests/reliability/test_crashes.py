"""An operator that is killed at any of its writes is followed by one that ends where it would have ended.

A life is killed once in each of its stages; what each stage came to is compared with an undisturbed life before the
next begins. So every crash point is met alone, from a state that equals the undisturbed one.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.harness.controlplane import ControlPlane
from tests.reliability.book import note_crash, note_life
from tests.reliability.conftest import Samples
from tests.reliability.killer import AFTER, BEFORE
from tests.reliability.life import STAGES, Course
from tests.reliability.lives import AT_ONCE, killed, together

pytestmark = pytest.mark.cluster

GROUPS = -(-24 // AT_ONCE)
"""Of AT_ONCE lives: enough for the stage with the most writes."""


def test_a_life_begins_with_few_writes(samples: Samples, course: Course) -> None:
    """Other lives have begun beside it, and go on beside other tests."""
    create, *_ = STAGES
    writes = course.wait(create)
    assert create.writes <= len(writes) <= 2 * create.writes, writes


def test_a_sample_of_crashes_loses_nothing(samples: Samples) -> None:
    crashes = samples.crashes.result()
    assert [crash for crash in crashes if crash.lost] == []
    assert len([crash for crash in crashes if crash.at]) > len(STAGES) / 2, "it was killed"


@pytest.mark.long
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("side", [BEFORE, AFTER])
def test_a_crash_at_any_write_loses_nothing(crds: ControlPlane, course: Course, side: str, group: int) -> None:
    course.wait()
    note_life({name: list(map(str, calls)) for name, calls in course.calls.items()})
    most = max(map(len, course.calls.values()))
    assert most <= GROUPS * AT_ONCE, "or some are not met"
    numbers = [number for number in range(1 + group * AT_ONCE, 1 + (group + 1) * AT_ONCE) if number <= most]
    lives = [{name: (n, side) for name, calls in course.calls.items() if n <= len(calls)} for n in numbers]
    lost = []
    for crash in together([partial(killed, crds, course, points) for points in lives]):
        if isinstance(crash.by, tuple):
            note_crash(crash.stage, crash.by, str(crash.at or ""), crash.lost)
        lost += [crash] if crash.lost else []
    assert lost == []
