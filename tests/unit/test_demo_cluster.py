"""Which of the dashboards' queries may be without an answer in `make demo-cluster`."""

from __future__ import annotations

import pytest

from hack.dashboards import queries
from hack.demo_cluster import ACCEPTED, NO_DRAFTER, TO_K0, UNSURE, lacking
from tests.e2e.scene import Object

ALL = list(queries())
BUCKET = {"fromRequests": 4, "k": 2, "candidates": [{"k": 2, "survivalPermille": [600, 300]}, {"k": 0}]}
KNOWN: dict[str, Object] = {
    NO_DRAFTER: {"ratioToNoDrafterPermille": 1100},
    TO_K0: {"ratioToK0Permille": 1000},
    ACCEPTED: {"loadRequests": 4, "buckets": [BUCKET]},
}


def test_what_status_does_not_know_is_not_asked_for() -> None:
    wrong, unknown = lacking(ALL, {})
    assert set(unknown) == set(UNSURE)
    assert wrong == [query for query in ALL if not any(name in query for name in UNSURE)]


@pytest.mark.parametrize("name", UNSURE)
def test_what_status_knows_is_wrong_without_an_answer(name: str) -> None:
    silent = [query for query in ALL if name in query]
    assert silent
    assert lacking(silent, {}) == ([], {name: UNSURE[name][1]})
    assert lacking(silent, KNOWN[name]) == (silent, {})


@pytest.mark.parametrize("bucket", [BUCKET | {"k": 0}, BUCKET | {"fromRequests": 2}])
def test_drafts_of_another_k_or_load_are_not_those_in_force(bucket: Object) -> None:
    silent = [query for query in ALL if ACCEPTED in query]
    assert lacking(silent, {"loadRequests": 4, "buckets": [bucket]})[0] == []
