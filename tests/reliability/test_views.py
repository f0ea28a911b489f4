"""An operator that is shown what is not so, late, or not at all, comes to the same end, and deletes nothing for it.

The two operators of a minute in which nothing changes are in tests/cluster/test_two_operators.py.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.harness.controlplane import ControlPlane
from tests.reliability.book import note_view
from tests.reliability.conftest import Samples
from tests.reliability.life import STAGES, Course
from tests.reliability.lives import AT_ONCE, misled, together
from tests.reliability.views import VIEWS

pytestmark = pytest.mark.cluster

NAMES = list(VIEWS)
GROUPS = -(-len(NAMES) // AT_ONCE)


def test_a_sample_of_views_loses_nothing(samples: Samples) -> None:
    assert [view for view in samples.views.result() if view.lost] == []


@pytest.mark.long
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_view_in_every_stage_loses_nothing(crds: ControlPlane, course: Course, group: int) -> None:
    stages = [stage.name for stage in STAGES]
    course.wait()
    shifts = range(group * AT_ONCE, min((group + 1) * AT_ONCE, len(NAMES)))
    # Each life another rotation: every view meets every stage once.
    lives = [{name: NAMES[(shift + i) % len(NAMES)] for i, name in enumerate(stages)} for shift in shifts]
    lost = []
    for view in together([partial(misled, crds, course, each) for each in lives]):
        note_view(str(view.by), VIEWS[str(view.by)][0], view.stage, stages, view.lost)
        lost += [view] if view.lost else []
    assert lost == []
