"""A rollout through whole passes: two Deployments, their revisions, a canary that is judged by what engines say.

A controller of the test makes pods of Deployments, one step a pass. The operator may be killed after any pass.
"""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.kube import UnavailableError
from paceline_operator.resources import pod as template
from paceline_operator.rollout.contract import ASKED
from paceline_operator.rollout.proposal import Proposal
from tests.fakes import Object
from tests.stage import Stage
from tests.world import SPEC

OBSERVE: Object = {"rollout": {"canary": {"observeSeconds": 10, "deadlineSeconds": 600}}}
BEFORE = {**SPEC, **OBSERVE, "replicas": 2}
AFTER = {**BEFORE, "engine": {"maxModelLen": 4096}}
FIELD = "engine.maxModelLen"


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    """Two pods serve."""
    found = Stage(tmp_path)
    found.apply(BEFORE)
    await found.go(5)
    assert len(found.pods(naming.TRACK_STABLE)) == 2
    assert found.status["rollout"]["phase"] == "Steady"
    found.writes()
    return found


async def test_at_rest_nothing_is_written(stage: Stage) -> None:
    await stage.go(3)
    assert stage.changed() == []
    stage.restart()
    await stage.go(3)
    assert stage.changed() == [("APPLY", "Secret")]


async def test_a_good_canary_is_promoted_and_every_object_is_written_once(stage: Stage) -> None:
    old = stage.revision()
    stage.apply(AFTER)
    await stage.go()
    assert stage.writes() == [
        ("STATUS", naming.KIND_SERVING),
        ("APPLY", "ControllerRevision"),
        ("APPLY", "Deployment"),
        ("STATUS", naming.KIND_SERVING),
    ], "what is begun is remembered first"
    assert (stage.revision(), stage.revision("demo-canary") != old) == (old, True)
    assert stage.condition("Progressing") == ("True", "CanaryStarted")
    assert FIELD in stage.message("Progressing")
    await stage.until("Promoting")
    assert stage.condition("Tuned")[1] == "Frozen"
    await stage.until("Steady")
    assert (stage.revision() != old, list(stage.deployments())) == (True, ["demo"])
    assert stage.status["rollout"]["fields"] == [FIELD]
    await stage.go(2)
    assert stage.condition("Progressing") == ("False", "Settled")
    assert stage.condition("RolledBack") == ("False", "Settled")
    assert [len(stage.events(reason)) for reason in ("CanaryStarted", "CanaryPromoted")] == [1, 1]
    stage.writes()
    await stage.go(3)
    assert stage.changed() == []


async def test_a_step_is_told_and_remembered_before_it_is_taken(stage: Stage) -> None:
    stage.kube.refuse["STATUS", naming.KIND_SERVING] = UnavailableError(500, "InternalError", "")
    stage.apply(AFTER)
    with pytest.raises(UnavailableError):
        await stage.go()
    assert list(stage.deployments()) == ["demo"], "not taken where it cannot be remembered"
    stage.kube.refuse.clear()
    stage.kube.refuse["APPLY", "Deployment"] = UnavailableError(500, "InternalError", "")
    with pytest.raises(UnavailableError):
        await stage.go()
    assert stage.status["rollout"]["phase"] == "Canary"
    assert len(stage.events("CanaryStarted")) == 1
    stage.kube.refuse.clear()
    stage.restart()
    await stage.until("Steady")
    assert stage.status["rollout"]["fields"] == [FIELD]


async def test_somebody_else_s_object_in_the_canary_s_place_blocks_the_rollout_and_nothing_else(stage: Stage) -> None:
    old = stage.revision()
    metadata = {"name": "demo-canary", "namespace": "team", "annotations": {naming.ANNOTATION_REVISION: "theirs"}}
    stage.kube.put({"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 0}})
    stage.apply(AFTER)
    await stage.go(3)
    assert stage.condition("RolloutBlocked") == ("True", "ChildConflict")
    assert "Deployment demo-canary exists and belongs to nobody" in stage.message("RolloutBlocked")
    assert (stage.condition("Accepted")[0], stage.condition("Ready")[0]) == ("True", "True")
    assert stage.condition("Tuned")[1] != "NotAccepted"
    assert stage.condition("MetricsAvailable")[0] == "True"
    assert stage.revision() == old
    assert [write for write in stage.writes() if write == ("APPLY", "Deployment")] == []
    stage.kube.drop("Deployment", "demo-canary")
    await stage.until("Steady")
    assert stage.revision() != old
    assert stage.condition("RolloutBlocked") == ("False", "Settled")


async def test_a_bad_canary_is_taken_back_and_not_tried_again_until_a_retry(stage: Stage) -> None:
    old, stage.bad = stage.revision(), True
    before = stage.kube.find("Deployment", "demo")["spec"]["template"]
    stage.apply(AFTER)
    await stage.until("RolledBack")
    await stage.go(4)
    assert (stage.revision(), list(stage.deployments())) == (old, ["demo"])
    assert stage.kube.find("Deployment", "demo")["spec"]["template"] == before
    assert stage.condition("RolledBack") == ("True", "GoodputLost")
    assert FIELD in stage.message("RolledBack")
    assert len(stage.events("GoodputLost")) == 1
    stage.writes()
    await stage.go(5)
    stage.restart()
    await stage.go(5)
    assert stage.changed() == [("APPLY", "Secret")], "it stays as it is"
    stage.bad = False
    stage.kube.find(naming.KIND_SERVING, "demo")["metadata"]["annotations"] = {naming.ANNOTATION_RETRY: "1"}
    await stage.until("Promoting")
    await stage.until("Steady")
    assert stage.condition("RolledBack") == ("False", "Settled")


CONTRACT: Object = {
    "canary": {**OBSERVE["rollout"]["canary"], "outputContract": {"prompt": "Say", "jsonFields": ["a"]}}
}
KEEPS, BREAKS = (
    json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode() for text in ('{"a": 1}', "")
)


@pytest.mark.parametrize(("canary", "ends"), [(KEEPS, "Promoting"), (BREAKS, "RolledBack")])
async def test_a_canary_is_asked_for_what_its_answers_must_be(stage: Stage, canary: bytes, ends: str) -> None:
    stage.pod("demo-plain-1", ip="10.0.1.1", track=naming.TRACK_PLAIN)
    asked = []

    async def complete(url: str, body: Object) -> bytes:
        asked.append(url)
        mine = [pod["status"]["podIP"] for pod in stage.pods(naming.TRACK_CANARY)]
        return canary if any(f"//{ip}:" in url for ip in mine) else KEEPS

    stage.engines.complete = complete  # type: ignore[method-assign, assignment]
    stage.apply({**AFTER, "rollout": CONTRACT})
    await stage.until(ends)
    assert len(asked) == 2 * ASKED
    assert not [url for url in asked if "10.0.1.1" in url], "pods without a drafter are not compared"
    if ends == "RolledBack":
        assert stage.condition("RolledBack") == ("True", "OutputContract")


async def test_a_spec_that_goes_back_is_at_rest_at_once(stage: Stage) -> None:
    stage.bad = True
    stage.apply(AFTER)
    await stage.until("RolledBack")
    stage.apply(BEFORE)
    await stage.go(2)
    assert stage.status["rollout"]["phase"] == "Steady"
    assert stage.condition("RolledBack") == ("False", "Settled")


async def test_without_room_the_canary_takes_the_place_of_a_pod_and_one_always_serves(stage: Stage) -> None:
    stage.room = 2
    stage.apply(AFTER)
    for _ in range(40):
        await stage.go()
        assert len([*stage.pods("stable"), *stage.pods("canary")]) <= 3
        running = [p for p in (*stage.pods("stable"), *stage.pods("canary")) if p["status"]["phase"] == "Running"]
        assert running
        if stage.status["rollout"]["phase"] == "Steady":
            break
    assert stage.status["rollout"]["phase"] == "Steady"
    assert len(stage.events("CanaryPromoted")) == 1
    await stage.go(3)
    assert len(stage.pods("stable")) == 2


async def test_the_only_pod_without_room_for_another_is_replaced_and_the_downtime_is_said(tmp_path: Path) -> None:
    stage = Stage(tmp_path, room=1)
    stage.apply({**BEFORE, "replicas": 1})
    await stage.go(4)
    stage.apply({**AFTER, "replicas": 1})
    await stage.until("Rolling")
    assert "nothing is served until" in stage.message("Progressing")
    await stage.until("Steady")
    assert list(stage.deployments()) == ["demo"]


async def test_a_live_field_restarts_nothing(stage: Stage) -> None:
    old = stage.revision()
    for change in (
        {"tuning": {"intervalSeconds": 5}},
        {"slo": {"tpotMilliseconds": 9}},
        {"tuning": {"ladder": [3, 0]}},
    ):
        stage.apply({**BEFORE, **change})
        await stage.go(2)
        assert stage.revision() == old
        assert stage.status["rollout"]["phase"] == "Steady"
    assert ("APPLY", "Deployment") not in stage.writes()


async def test_an_operator_that_renders_otherwise_restarts_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = template.build

    def other(*arguments: Any, **options: Any) -> Object:
        rendered: Object = build(*arguments, **options)
        rendered["spec"]["priorityClassName"] = "of-another-version"
        return rendered

    monkeypatch.setattr(template, "build", other)
    stage.restart()
    await stage.go(3)
    assert stage.changed() == [("APPLY", "Secret")]
    stage.apply(AFTER)
    await stage.until("Promoting")
    await stage.until("Steady")
    rendered = stage.kube.find("Deployment", "demo")["spec"]["template"]
    assert rendered["spec"]["priorityClassName"] == "of-another-version", "taken up with the user's own change"


APPLY: Object = {**BEFORE, "rollout": {**OBSERVE["rollout"], "proposals": "Apply", "restartsPerDay": 2}}
SHORTER = Proposal({FIELD: 4096}, Reason.NO_DRAFTER, 0.2, 60.0, 1e6, "20 % more")


async def _proposed(stage: Stage) -> None:
    """It was found in the pass before."""
    stage.serving._memory.proposals = (SHORTER,)
    await stage.go()


async def test_an_accepted_proposal_is_rolled_out_over_a_spec_that_is_not_written(stage: Stage) -> None:
    old = stage.revision()
    stage.apply(APPLY)
    await stage.go(2)
    await _proposed(stage)
    assert stage.status["rollout"]["phase"] == "Canary"
    stage.restart()
    await stage.until("Promoting")
    await stage.until("Steady")
    stage.restart()
    await stage.go(3)
    assert stage.revision() != old
    assert "4096" in str(stage.kube.find("Deployment", "demo")["spec"]["template"])
    assert stage.kube.find(naming.KIND_SERVING, "demo")["spec"] == APPLY
    (applied,) = stage.status["rollout"]["applied"]
    assert [(change["path"], change["value"], change["was"]) for change in applied["changes"]] == [
        (FIELD, "4096", "null")
    ]
    assert len(stage.status["rollout"]["restarts"]) == 1
    stage.apply({**APPLY, "engine": {"maxModelLen": 8192}})
    await stage.go(2)
    assert stage.status["rollout"]["applied"] == [], "the user's word holds"


async def test_a_proposal_that_was_bad_is_taken_back_said_and_not_tried_again(stage: Stage) -> None:
    old, stage.bad = stage.revision(), True
    stage.apply(APPLY)
    await stage.go(2)
    await _proposed(stage)
    for _ in range(20):
        await _proposed(stage)
    assert (stage.revision(), list(stage.deployments())) == (old, ["demo"])
    assert stage.condition("RolledBack") == ("True", "GoodputLost")
    assert FIELD in stage.message("RolledBack")
    assert (stage.status["rollout"]["phase"], stage.status["rollout"]["applied"]) == ("Steady", [])
    assert len(stage.status["rollout"]["restarts"]) == 1
    assert stage.condition("Progressing") == ("False", "Settled")


async def test_a_proposal_waits_where_no_restart_is_left(stage: Stage) -> None:
    stage.apply({**APPLY, "rollout": {**APPLY["rollout"], "restartsPerDay": 0}})
    await stage.go(2)
    await _proposed(stage)
    assert stage.condition("RolloutBlocked") == ("True", "BudgetSpent")
    assert list(stage.deployments()) == ["demo"]


async def test_revisions_are_pruned_but_for_a_few(stage: Stage) -> None:
    for length in range(4096, 4096 + 8):
        stage.apply({**BEFORE, "engine": {"maxModelLen": length}, "rollout": {"canary": {"mode": "Disabled"}}})
        await stage.go(6)
    kept = [name for (kind, _, name) in stage.kube.objects if kind == "ControllerRevision"]
    assert len(kept) == 4
    assert stage.revision() in kept


async def _rolled(stage: Stage, engine: Object) -> None:
    stage.apply({**BEFORE, "engine": engine, "rollout": {"canary": {"mode": "Disabled"}}})
    await stage.go(6)
    stage.apply({**BEFORE, "engine": engine})
    await stage.go(2)
    stage.writes()


async def test_a_change_that_renders_the_same_pods_replaces_none(stage: Stage) -> None:
    # Preflight is told which version is meant: with it the pods are others.
    await _rolled(stage, {"preflight": "Disabled"})
    before = stage.revision()
    stage.apply({**BEFORE, "engine": {"preflight": "Disabled", "vllmVersion": "0.32.0"}})
    await stage.go()
    assert stage.changed() == []
    assert (list(stage.deployments()), stage.revision()) == (["demo"], before)


async def test_a_revision_that_somebody_deleted_comes_back(stage: Stage) -> None:
    stage.kube.drop("ControllerRevision", stage.revision())
    await stage.go()
    assert stage.writes() == [("APPLY", "ControllerRevision")]


@pytest.mark.parametrize(
    ("phase", "lost"),
    [
        ("RolledBack", "revision"),
        ("Canary", "revision"),
        ("Canary", "annotation"),
        ("Canary", "both annotations"),
        ("RolledBack", "garbage"),
    ],
)
async def test_pods_keep_what_they_run_whatever_is_lost_of_where_it_came_from(
    stage: Stage, phase: str, lost: str
) -> None:
    old, stage.bad = stage.revision(), True
    before = copy.deepcopy(stage.kube.find("Deployment", "demo")["spec"]["template"])
    stage.apply(AFTER)
    await stage.until(phase)
    if phase == "RolledBack":
        await stage.go(3)
    annotations = stage.kube.find("Deployment", "demo")["metadata"]["annotations"]
    if lost == "revision":
        stage.kube.drop("ControllerRevision", old)
    elif lost == "garbage":
        annotations[naming.ANNOTATION_REVISION] = "?"
    else:
        for name in list(annotations) if lost == "both annotations" else [naming.ANNOTATION_REVISION]:
            del annotations[name]
    await stage.serving.run(full=True)
    assert stage.kube.find("Deployment", "demo")["spec"]["template"] == before
    await stage.until("RolledBack")
    await stage.go(3)
    assert (stage.revision(), list(stage.deployments())) == (old, ["demo"])
    assert stage.kube.find("Deployment", "demo")["spec"]["template"] == before
    assert stage.condition("RolledBack") == ("True", "GoodputLost")
    assert FIELD in stage.message("RolledBack")
    stage.writes()
    await stage.go(3)
    assert stage.changed() == []
    stage.apply(BEFORE)
    await stage.go(3)
    assert (stage.revision(), stage.status["rollout"]["phase"]) == (old, "Steady")
    assert stage.kube.find("Deployment", "demo")["spec"]["template"] == before


async def test_a_deadline_is_not_over_at_the_first_look_of_a_process(stage: Stage) -> None:
    stage.apply(AFTER)
    await stage.until("Canary")
    await stage.go(3, seconds=0.0)
    for pod in stage.pods(naming.TRACK_CANARY):
        pod["status"]["conditions"][0]["lastTransitionTime"] = "2001-01-01T00:00:00Z"
    stage.restart()
    await stage.go(3, seconds=4.0)
    assert stage.status["rollout"]["phase"] == "Canary"


@pytest.mark.parametrize("garbage", [{"ladder": 5}, {"tuning": "x"}, {"engine": "x"}, {"model": 1}, {"ladder": ["x"]}])
async def test_a_stored_spec_that_is_none_replaces_no_pod_and_ends_no_pass(stage: Stage, garbage: Object) -> None:
    old = stage.revision()
    data = stage.kube.find("ControllerRevision", old)["data"]
    data["spec"] = {**data["spec"], **garbage}
    stage.restart()
    await stage.go(2)
    assert stage.revision() == old


REFUSED = {**AFTER, "engine": {"extraArgs": ["first"]}}


async def test_a_bad_canary_is_taken_back_while_the_spec_is_not_accepted(stage: Stage) -> None:
    old, stage.bad = stage.revision(), True
    stage.apply(AFTER)
    await stage.until("Canary")
    stage.apply(REFUSED)
    for number in range(40):
        await stage.go(kill=number in (2, 15))
        if "demo-canary" not in stage.deployments():
            break
    assert (list(stage.deployments()), stage.revision()) == (["demo"], old)
    assert stage.condition("RolledBack")[0] == "True"
    assert stage.condition("Accepted") == ("False", "InvalidSpec")
    assert len(stage.events(stage.condition("RolledBack")[1])) == 1
    await stage.go()
    stage.writes()
    await stage.go(3)
    assert stage.changed() == []
    stage.apply(AFTER)
    await stage.go(3)
    assert stage.condition("RolledBack")[0] == "True", "the same again is not tried again"
    assert list(stage.deployments()) == ["demo"]


async def test_a_good_canary_is_not_promoted_while_the_spec_is_not_accepted(stage: Stage) -> None:
    old = stage.revision()
    stage.apply(AFTER)
    await stage.until("Canary")
    stage.apply(REFUSED)
    await stage.go(100)
    assert stage.condition("Progressing") == ("True", "CanaryUnjudged")
    assert "not accepted (InvalidSpec)" in stage.message("Progressing")
    assert (sorted(stage.deployments()), stage.revision()) == (["demo", "demo-canary"], old)
    stage.apply(AFTER)
    await stage.go(100)
    assert stage.revision() != old


@pytest.mark.parametrize("rollout", [{"canary": {"observeSeconds": "x"}}, 7, {}])
async def test_what_is_wrong_elsewhere_in_the_spec_does_not_keep_a_crashed_canary(stage: Stage, rollout: Any) -> None:
    stage.apply(AFTER)
    await stage.until("Canary")
    await stage.go(2)
    (pod,) = stage.pods("canary")
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}}
    pod["status"]["containerStatuses"] = [{"name": "engine", "restartCount": 1, "state": {}, "lastState": ended}]
    stage.apply({**REFUSED, "rollout": rollout})
    await stage.go(4)
    assert list(stage.deployments()) == ["demo"]
    assert stage.condition("RolledBack") == ("True", "CrashLoop")


async def test_a_canary_that_nobody_judges_is_said(stage: Stage) -> None:
    stage.bad = True
    stage.apply(AFTER)
    await stage.until("Canary")
    await stage.go(2)
    stage.apply({**AFTER, "suspend": True})
    await stage.go(2)
    assert stage.condition("Progressing") == ("True", "CanaryUnjudged")
    assert "spec.suspend" in stage.message("Progressing")
    assert stage.condition("SpeculationEffective") == ("Unknown", "Suspended")
    stage.writes()
    await stage.go(2)
    assert stage.changed() == []
    stage.apply(AFTER)
    await stage.go()
    assert stage.status["rollout"]["phase"] == "Canary"
    for kind in ("SpeculationEffective", "MetricsAvailable"):
        assert stage.condition(kind) == ("Unknown", "Holding"), "it is looked after again"
    await stage.until("RolledBack")


async def test_a_profile_that_is_not_there_is_told_also_while_a_canary_is_judged(stage: Stage) -> None:
    stage.apply({**AFTER, "tuning": {**AFTER.get("tuning", {}), "profileRef": {"name": "old"}}})
    await stage.until("Canary")
    assert stage.condition("ProfileApplied") == ("False", "ProfileNotFound")
    stage.apply(AFTER)
    await stage.go()
    assert stage.status["rollout"]["phase"] == "Canary"
    assert "ProfileApplied" not in [one["type"] for one in stage.status["conditions"]]


async def test_scaled_to_zero_while_a_canary_is_judged_no_pod_is_left(stage: Stage) -> None:
    old = stage.revision()
    stage.apply(AFTER)
    await stage.until("Canary")
    stage.apply({**AFTER, "replicas": 0})
    await stage.go(6)
    assert (list(stage.deployments()), stage.pods("stable"), stage.pods("canary")) == (["demo"], [], [])
    assert (stage.revision() != old, stage.status["rollout"]["phase"]) == (True, "Steady")


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kills=st.sets(st.integers(0, 30)),
    lost=st.sets(st.integers(0, 30), max_size=6),
    bad=st.booleans(),
    room=st.sampled_from([2, 9]),
)
def test_wherever_the_operator_is_killed_the_rollout_ends_as_it_should(
    tmp_path_factory: pytest.TempPathFactory, kills: set[int], lost: set[int], bad: bool, room: int
) -> None:
    """`kills`: passes after which the process ends; `lost`: those whose status could not be written besides."""

    async def course() -> None:
        stage = Stage(tmp_path_factory.mktemp("stage"))
        stage.apply(BEFORE)
        await stage.go(5)
        old, stage.bad, stage.room = stage.revision(), bad, room
        stage.apply(AFTER)
        for number in range(60):
            if number in lost:
                stage.kube.refuse[("STATUS", naming.KIND_SERVING)] = UnavailableError(503, "Down", "etcd")
                stage.apply(AFTER)  # another generation: there is something to write
                with pytest.raises(UnavailableError):
                    await stage.go()
                stage.kube.refuse.clear()
                stage.restart()
            else:
                await stage.go(kill=number in kills)
            assert len(stage.pods("stable")) + len(stage.pods("canary")) >= 1
            if number > 30 and stage.status["rollout"]["phase"] in ("Steady", "RolledBack"):
                break
        await stage.go(4)
        assert list(stage.deployments()) == ["demo"]
        assert (stage.revision() == old) is bad
        assert len(stage.pods("stable")) == 2
        assert stage.condition("RolledBack") == (("True", "GoodputLost") if bad else ("False", "Settled"))

    asyncio.run(course())
