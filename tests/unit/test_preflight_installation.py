"""`paceline doctor`'s judgement: each thing that can be wrong is found, named and given a remedy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.preflight.installation import Check, Found, Grade, checks, worst

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CRD = {"spec": {"versions": [{"name": "v1alpha1", "schema": {"a": 1}}]}}
NAME = "speculativeservings.paceline.dev"


def deployment(ready: int = 1, version: str = "0.1.0") -> dict[str, Any]:
    labels = {"app.kubernetes.io/version": version}
    return {
        "metadata": {"name": "paceline", "labels": labels},
        "spec": {"replicas": 1},
        "status": {"readyReplicas": ready},
    }


def lease(seconds_ago: float = 1.0, holder: str = "one") -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")
    return {"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}}


def serving(observed: int = 1, **false: str) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "False", "reason": reason} for kind, reason in false.items()]
    meta = {"name": "chat", "namespace": "ai", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "status": {"observedGeneration": observed, "conditions": conditions}}


def found(**changes: Any) -> Found:
    well: dict[str, Any] = {
        "server": "1.34", "version": "0.1.0", "crds": {NAME: CRD}, "wanted_crds": {NAME: CRD},
        "kinds": frozenset({"speculativeservings"}), "deployments": [deployment()], "lease": lease(),
        "servings": [serving()], "optional": {"KEDA": False}, "rights": {"list": True},
    }  # fmt: skip
    return Found(**{**well, **changes})


def judged(**changes: Any) -> list[Check]:
    return checks(found(**changes), "paceline-system", NOW)


def test_all_is_well() -> None:
    results = judged()
    assert {check.grade for check in results} == {Grade.PASS}
    assert worst(results) is Grade.PASS
    assert any("not needed" in check.message for check in results)


@pytest.mark.parametrize(
    ("changes", "name", "grade", "said"),
    [
        ({"server": "1.27+"}, "kubernetes", Grade.FAIL, "1.27"),
        ({"kinds": frozenset()}, "crds", Grade.FAIL, "not served"),
        ({"crds": {NAME: {"spec": {"versions": []}}}}, "crds", Grade.WARN, "another version"),
        ({"deployments": []}, "operator", Grade.WARN, "no Deployment"),
        ({"deployments": [deployment(ready=0)]}, "operator", Grade.FAIL, "0 of 1"),
        ({"deployments": [deployment(version="9")]}, "operator", Grade.WARN, "version 9"),
        ({"lease": None}, "lease", Grade.FAIL, "ever held"),
        ({"lease": lease(holder="")}, "lease", Grade.FAIL, "nobody"),
        ({"lease": lease(seconds_ago=60)}, "lease", Grade.FAIL, "too long ago"),
        ({"servings": [serving(observed=0)]}, "servings", Grade.FAIL, "ai/chat"),
        ({"servings": [serving(Accepted="InvalidSpec")]}, "servings", Grade.WARN, "ai/chat (InvalidSpec)"),
        ({"servings": [serving(MetricsAvailable="NoPods")] * 9}, "servings", Grade.WARN, "and 6 more"),
        ({"rights": {"list": True, "patch": False}}, "rights", Grade.WARN, "may not patch"),
        ({"refused": ["x: forbidden"]}, "access", Grade.WARN, "forbidden"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(changes: dict[str, Any], name: str, grade: Grade, said: str) -> None:
    results = judged(**changes)
    (check,) = (check for check in results if check.grade is not Grade.PASS)
    assert (check.name, check.grade) == (name, grade)
    assert said in check.message
    assert check.remedy
    assert worst(results) is grade


def test_what_could_not_be_looked_at_is_not_known_and_is_no_failure() -> None:
    results = judged(
        kinds=None, crds={}, lease=None, lease_seen=False, deployments=None, servings=None,
        optional={"KEDA": None}, rights={"list": None}, refused=["the Lease: no (Forbidden, HTTP 403)", "x: no answer"],
    )  # fmt: skip
    assert worst(results) is Grade.WARN
    unknown = {check.name for check in results if "not known" in check.message}
    assert unknown == {"crds", "lease", "rights", "integrations"}
    remedies = [check.remedy for check in results if check.name == "access"]
    assert "administrator" in remedies[0]
    assert "reachable" in remedies[1]


def test_a_clock_that_is_a_little_off_raises_no_alarm() -> None:
    assert worst(judged(lease=lease(seconds_ago=-20))) is Grade.PASS
    assert worst(judged(lease=lease(seconds_ago=40))) is Grade.PASS


@given(st.text(max_size=8), st.one_of(st.none(), st.text(max_size=30)), st.one_of(st.none(), st.integers(1, 3600)))
def test_what_the_api_answers_never_crashes_it(server: str, renewed: str | None, seconds: int | None) -> None:
    spec = {"holderIdentity": "one", "renewTime": renewed, "leaseDurationSeconds": seconds}
    results = judged(server=server, lease={"spec": spec}, servings=[{"metadata": {"name": "a", "namespace": "b"}}])
    assert {check.name for check in results} >= {"kubernetes", "lease", "servings"}
