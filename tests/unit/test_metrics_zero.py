"""Series that have not happened yet are there, at zero."""

from __future__ import annotations

import inspect
import re

from prometheus_client import generate_latest

from paceline_operator import metrics
from paceline_operator.tuning import decide


def test_each_part_of_a_decision_that_may_fail_has_a_series_from_the_start() -> None:
    named = re.findall(r'_guarded\(\s*errors, "(\w+)"', inspect.getsource(decide))
    assert len(named) > 5
    assert sorted(metrics.PARTS) == sorted(named)
    told = generate_latest().decode()
    assert all(f'paceline_tuner_errors_total{{part="{part}"}}' in told for part in metrics.PARTS)
