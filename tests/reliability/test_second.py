"""An operator whose API server is behind another over the same etcd comes to the same end, and deletes nothing."""

from __future__ import annotations

from functools import partial

import pytest

from tests.harness.controlplane import ControlPlane
from tests.reliability.book import note_view
from tests.reliability.life import STAGES, Course
from tests.reliability.lives import misled, together
from tests.reliability.second import BEHIND, Second

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_an_api_server_that_is_behind_loses_nothing(crds: ControlPlane, course: Course) -> None:
    stages = [stage.name for stage in STAGES]
    course.wait()
    called = [f"second-{number}" for number in range(3)]
    seconds = [Second(crds, name) for name in called]
    lost = []
    try:
        names = list(BEHIND)
        assert len(names) == len(seconds), "each view meets each stage"
        lives = [
            partial(
                misled,
                crds,
                course,
                {stage: names[(shift + i) % len(names)] for i, stage in enumerate(stages)},
                second.views,
                second.calm,
            )
            for shift, second in enumerate(seconds)
        ]
        for view in together(lives):
            note_view(str(view.by), BEHIND[str(view.by)], view.stage, stages, view.lost)
            lost += [view] if view.lost else []
    finally:
        for second in seconds:
            second.close()
    assert lost == []
    written = [len((crds.folder / f"audit-{name}.log").read_text().splitlines()) for name in called]
    assert min(written) > len(STAGES), f"the operators wrote by way of them: {written}"
