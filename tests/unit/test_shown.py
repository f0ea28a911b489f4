"""Servings as rows: what is unknown is a dash, what is known is in the units of the head."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import naming, shown
from paceline_operator.api.status import ServingStatus
from paceline_operator.cli.change import pinned, unpinned
from paceline_operator.local.mistake import UserError
from paceline_operator.verdicts import status_of

ROW = {
    "k": 3, "goodputMilliTokensPerSecond": 1_234_500, "lowMilliTokensPerSecond": 1_200_000,
    "highMilliTokensPerSecond": 1_300_000, "stepMicroseconds": 12_340, "acceptanceLengthMilli": 2_710, "steps": 99,
}  # fmt: skip
STATUS = {
    "k": "3", "tier": "Live", "loadRequests": 16, "ratioToK0Permille": 1580, "replicas": 2, "readyReplicas": 1,
    "policyGeneration": 7, "acknowledgedPods": 2,
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "ReplicasReady", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Tuned", "status": "False", "reason": "Observing", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ],
    "buckets": [
        {"fromRequests": 1, "k": 5, "observed": False},
        {"fromRequests": 16, "k": 3, "recommendedK": 1, "observed": True, "candidates": [ROW]},
    ],
    "decisions": [
        {"at": "2026-01-01T00:00:00Z", "reason": "Load", "message": "why", "requests": 16, "fromK": 5, "toK": 3,
         "generation": 7},
    ],
}  # fmt: skip


def raw(status: Any = STATUS, **tuning: Any) -> dict[str, Any]:
    spec = {"replicas": 2, "model": {"source": "hf://a/b"}, "speculation": {"method": "ngram", "maxTokens": 5}}
    return {"metadata": {"namespace": "ai", "name": "chat"}, "spec": {**spec, "tuning": tuning}, "status": status}


def test_a_serving_is_a_row() -> None:
    row = dict(zip(shown.WIDE, shown.overview(raw(), wide=True), strict=True))
    assert (row["NAME"], row["READY"], row["K"], row["TIER"], row["LOAD"]) == ("chat", "True", "3", "Live", "16")
    assert (row["RATIO TO K=0"], row["TUNED"], row["REPLICAS"]) == ("1.58", "False: Observing", "1/2")
    assert (row["METHOD"], row["GENERATION"], row["ACKNOWLEDGED"], row["EFFECTIVE"]) == ("ngram", "7", "2/2", "-")


def test_top_shows_the_numbers_of_the_k_in_force_at_the_present_load() -> None:
    row = dict(zip(shown.LIVE, shown.live(raw()), strict=True))
    assert (row["TOK/S"], row["ACCEPTED"], row["STEP MS"], row["PODS"]) == ("1234", "2.71", "12.34", "1/2")
    idle = {**STATUS, "loadRequests": None}
    row = dict(zip(shown.LIVE, shown.live(raw(idle)), strict=True))
    assert (row["TOK/S"], row["ACCEPTED"], row["LOAD"]) == ("-", "-", "-")


def test_tables_and_decisions_have_a_row_each() -> None:
    status = status_of(raw(), ServingStatus)
    first, second = shown.table(status)
    assert first == ["1", "5", "-", "not yet", "-", "-", "-", "-", "-"]
    assert second == ["16", "3", "1", "yes", "1234.5", "1200.0 to 1300.0", "2.71", "12.34", "99"]
    assert shown.decisions(status) == [["2026-01-01T00:00:00Z", "Load", "16", "5 to 3", "7", "why"]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)


@given(st.dictionaries(st.sampled_from(sorted(STATUS)), JSON, max_size=4).map(lambda wrong: {**STATUS, **wrong}))
def test_any_status_is_shown(status: Any) -> None:
    for head, row in ((shown.WIDE, shown.overview(raw(status), wide=True)), (shown.LIVE, shown.live(raw(status)))):
        assert len(head) == len(row)
        assert all(isinstance(cell, str) for cell in row)


def test_pin_keeps_the_mode_to_return_to() -> None:
    patch = pinned(raw(mode="Observe"), 2)
    assert patch["spec"]["tuning"] == {"mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]}
    again = raw(**patch["spec"]["tuning"])
    again["metadata"]["annotations"] = patch["metadata"]["annotations"]
    assert pinned(again, 0)["metadata"]["annotations"] == {naming.ANNOTATION_UNPINNED_MODE: "Observe"}
    mode, back = unpinned(again)
    assert mode == "Observe"
    assert back["spec"]["tuning"] == {"mode": "Observe", "table": None}
    assert back["metadata"]["annotations"] == {naming.ANNOTATION_UNPINNED_MODE: None}


def test_pin_refuses_what_it_would_lose_or_cannot_be() -> None:
    with pytest.raises(UserError, match="maxTokens 5"):
        pinned(raw(), 6)
    with pytest.raises(UserError, match="Manual"):
        pinned(raw(mode="Manual"), 2)
    with pytest.raises(UserError, match="not pinned"):
        unpinned(raw())
