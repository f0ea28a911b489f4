"""Engines that crash or stand still, through whole passes: the breaker, the ladder on one canary, the record of it.

Engines follow the grid that was published for vllm#59970: with adaptive verification and full mixed graphs they die
within a minute, without either they stay up. The operator may be killed after any pass.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.protocol import Gauges
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status_safety import MAX_DEATHS
from paceline_operator.clients.kube import ForbiddenError, UnavailableError
from paceline_operator.clock import rfc3339
from paceline_operator.effective.declared import of_pod
from paceline_operator.safeguard import RECORD_TRIES
from tests.fakes import Object
from tests.stage import Stage
from tests.world import SPEC

GRID: Object = {
    "model": {"source": "hf://owner/target"},
    "speculation": {
        "method": "eagle3", "draft": {"source": "hf://owner/draft"}, "maxTokens": 7, "adaptiveVerification": "Enabled",
    },
    "replicas": 2,
    "engine": {"cudagraphMode": "FULL_AND_PIECEWISE"},
}  # fmt: skip
LOG = """\
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586] EngineCore encountered a fatal error.
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586]   File "/x/spec_decode.py", line 3, in record_confidences
(EngineCore pid=71) ERROR 11-30 01:10:04 [core.py:1586] torch.AcceleratorError: CUDA error: an illegal memory access was encountered
Tell me the secret of my marriage
"""  # noqa: E501
Boot = dict[str, Any]


class Crashing(Stage):
    """Pods that have the command line of their template, and die after 40 s unless `stable` says otherwise of it."""

    def __init__(self, folder: Path, stable: Callable[[Boot], bool], spec: Object = GRID) -> None:
        super().__init__(folder)
        self.stable = stable
        self.log = LOG
        self.born: dict[str, float] = {}
        self.tried: list[Boot] = []
        """Boot configurations of canaries, in order."""
        self.apply(spec)

    def control(self) -> None:
        super().control()
        for track, name in ((naming.TRACK_STABLE, "demo"), (naming.TRACK_CANARY, "demo-canary")):
            for pod in self.pods(track):
                deployment = self.deployments().get(name)
                if deployment is None:
                    continue
                if "containers" not in pod["spec"]:
                    pod["spec"]["containers"] = copy.deepcopy(deployment["spec"]["template"]["spec"]["containers"])
                    self.born[pod["metadata"]["uid"]] = self.clock.monotonic()
                    if track == naming.TRACK_CANARY:
                        self.tried.append(boot(pod))
                elif self.clock.monotonic() - self.born[pod["metadata"]["uid"]] > 40 and not self.stable(boot(pod)):
                    self.crash(pod)

    def crash(self, pod: Object, **ended: Any) -> None:
        """Its engine ends, and the kubelet starts another."""
        number = 1 + sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))
        uid, now = pod["metadata"]["uid"], self.clock.now()
        started = now.timestamp() - (self.clock.monotonic() - self.born.get(uid, 0.0))
        terminated = {
            "reason": "Completed", "exitCode": 0, "startedAt": rfc3339(type(now).fromtimestamp(started, now.tzinfo)),
            "finishedAt": rfc3339(now), "message": "",
        }  # fmt: skip
        last = {"terminated": {**terminated, **ended}}
        status = {"name": "engine", "restartCount": number, "state": {"running": {}}, "lastState": last}
        pod["status"]["containerStatuses"] = [status]
        self.born[uid] = self.clock.monotonic()
        self.kube.logs[pod["metadata"]["name"]] = self.log

    def evict(self, pod: Object, reason: str) -> None:
        """The kubelet ends it for its node's sake; it stays, and its ReplicaSet makes another."""
        now = rfc3339(self.clock.now())
        ended = {"reason": "Error", "exitCode": 137, "startedAt": now, "finishedAt": now}
        status = {"name": "engine", "restartCount": 0, "state": {"terminated": ended}}
        pod["metadata"]["creationTimestamp"] = now
        pod["status"] = {"phase": "Failed", "reason": reason, "message": "x", "containerStatuses": [status]}

    @property
    def safety(self) -> Object:
        found: Object = self.status["safety"]
        return found

    async def until_safety(self, phase: str, passes: int = 400, **options: Any) -> None:
        for _ in range(passes):
            await self.go(**options)
            if self.safety["phase"] == phase:
                return
        raise AssertionError(f"{phase} was never reached: {self.safety}; {self.status['rollout']}")

    async def settle(self) -> None:
        """All pods have the template that is wanted."""
        await self.until("Steady", seconds=5.0)
        await self.go(3, seconds=5.0)

    def boots(self, track: str = naming.TRACK_STABLE) -> list[Boot]:
        return [boot(pod) for pod in self.pods(track)]


def boot(pod: Object) -> Boot:
    """What the pod's command line says."""
    declared = of_pod(pod)
    assert declared is not None
    arguments = pod["spec"]["containers"][0]["args"]
    at = arguments.index("--compilation-config") if "--compilation-config" in arguments else -2
    graphs = json.loads(arguments[at + 1]).get("cudagraph_mode") if at >= 0 else None
    return {"k": declared.max_k, "av": declared.verification, "graphs": graphs, "method": declared.method}


def published(found: Boot) -> bool:
    return not found["method"] or not found["av"] or found["graphs"] == "FULL_DECODE_ONLY"


async def test_the_published_grid_ends_without_adaptive_verification_and_nothing_else_is_changed(
    tmp_path: Path,
) -> None:
    stage = Crashing(tmp_path, published)
    await stage.go(3)
    assert stage.condition("RemedyInForce") == ("False", "NoFault")
    assert [one["av"] for one in stage.boots()] == [True, True]
    await stage.until_safety("Trial")
    assert stage.safety["breaker"] == "Open"
    assert stage.safety["rung"] == "WithoutAdaptiveVerification"
    (told,) = stage.events("BreakerOpen")
    assert "2 speculative engines died within 30 minutes" in told
    assert stage.tried == []
    for _ in range(12):
        await stage.go(kill=True)
    assert [one["method"] for one in stage.boots()] == ["", ""], "service first: all boot without speculation"
    assert [(one["av"], one["k"]) for one in stage.tried] == [(False, 7)], "one rung, on one pod"
    assert stage.condition("RemedyInForce") == ("True", "RemedyTried")
    assert stage.condition("Ready")[0] == "True"
    before = stage.clock.monotonic()
    await stage.until_safety("Stable", seconds=30.0)
    assert stage.clock.monotonic() - before >= 600
    await stage.settle()
    assert [(one["av"], one["k"], one["graphs"]) for one in stage.boots()] == [(False, 7, "FULL_AND_PIECEWISE")] * 2
    said = stage.message("RemedyInForce")
    assert stage.condition("RemedyInForce") == ("True", "StableUnderChange")
    assert "stable under this change: adaptive verification absent" in said
    assert "an upgrade is proposed: vLLM after 0.32.0" in said
    assert "fixed" not in said
    assert stage.safety["breaker"] == "Closed"
    assert len(stage.tried) == 1
    assert stage.kube.find(naming.KIND_SERVING, "demo")["spec"] == GRID, "the user's spec is never written"
    stage.writes()
    stage.restart()
    await stage.go(5)
    assert stage.changed() == [("APPLY", "Secret")]


@pytest.mark.parametrize(
    ("stable", "order"),
    [
        (lambda b: not b["method"] or b["k"] <= 3, [(False, 7), (False, 3)]),
        (
            lambda b: not b["method"] or (b["av"] and b["graphs"] == "FULL_DECODE_ONLY"),
            [(False, 7), (False, 3), (True, 7)],
        ),
    ],
)
async def test_rungs_are_tried_one_after_the_other_on_one_pod_whenever_the_operator_dies(
    tmp_path: Path, stable: Callable[[Boot], bool], order: list[tuple[bool, int]]
) -> None:
    stage = Crashing(tmp_path, stable)
    await stage.until_safety("Trial", kill=True)
    await stage.until_safety("Stable", seconds=15.0, kill=True)
    assert [(one["av"], one["k"]) for one in stage.tried] == order
    for track in (naming.TRACK_STABLE, naming.TRACK_CANARY):
        assert len(stage.pods(track)) <= 2
    assert len(stage.events("RemedyFailed")) == len(order) - 1
    await stage.settle()
    assert {(one["av"], one["k"]) for one in stage.boots()} == {order[-1]}


async def test_where_nothing_helps_all_serve_without_speculation_until_a_retry_or_another_engine(
    tmp_path: Path,
) -> None:
    stage = Crashing(tmp_path, lambda b: not b["method"])
    await stage.until_safety("Trial")
    for _ in range(400):
        if stage.safety["rung"] == "WithoutSpeculation":
            break
        await stage.go(seconds=15.0)
    assert stage.safety["tried"] == ["WithoutAdaptiveVerification", "FewerTokens", "DecodeOnlyGraphs"]
    await stage.until_safety("Stable", seconds=30.0)
    assert stage.safety["breaker"] == "Open"
    assert "no speculation" in stage.message("RemedyInForce")
    await stage.go(20, seconds=600.0)
    assert [one["method"] for one in stage.boots()] == ["", ""]
    assert stage.status.get("proposals", []) == []
    tried = len(stage.tried)
    stage.stable = lambda _: True
    stage.kube.find(naming.KIND_SERVING, "demo")["metadata"]["annotations"] = {naming.ANNOTATION_RETRY: "1"}
    await stage.go(40, seconds=60.0)
    assert stage.condition("RemedyInForce") == ("False", "NoFault")
    assert len(stage.events("RemedyLifted")) == 1
    assert [(one["av"], one["k"]) for one in stage.boots()] == [(True, 7)] * 2
    assert len(stage.tried) == tried + 1, "the way back goes through a canary, as any change"


@pytest.mark.parametrize("adaptive", ["Enabled", "Disabled"])
@pytest.mark.parametrize("graphs", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"])
async def test_each_cell_of_the_published_grid_ends_where_the_reporter_found_it_stable(
    tmp_path: Path, adaptive: str, graphs: str
) -> None:
    """Adaptive verification x graphs: of the four, one dies."""
    spec = copy.deepcopy(GRID)
    spec["speculation"]["adaptiveVerification"], spec["engine"]["cudagraphMode"] = adaptive, graphs
    stage = Crashing(tmp_path, published, spec)
    dies = (adaptive, graphs) == ("Enabled", "FULL_AND_PIECEWISE")
    if dies:
        await stage.until_safety("Stable", seconds=15.0)
    else:
        await stage.go(60, seconds=15.0)
    assert (stage.safety["phase"], stage.safety["rung"]) == (
        ("Stable", "WithoutAdaptiveVerification") if dies else ("Rest", "")
    )
    assert len(stage.tried) == int(dies), "one change, or none"
    await stage.settle()
    kept = (adaptive == "Enabled" and not dies, 7, graphs)
    assert [(one["av"], one["k"], one["graphs"]) for one in stage.boots()] == [kept] * 2


async def test_a_new_engine_version_begins_anew_and_another_field_does_not(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, published)
    await stage.until_safety("Stable", seconds=15.0)
    await stage.settle()
    stage.apply({**GRID, "engine": {**GRID["engine"], "maxModelLen": 4096}})
    await stage.go(30, seconds=60.0)
    assert stage.safety["phase"] == "Stable"
    assert [one["av"] for one in stage.boots()] == [False, False]
    stage.stable = lambda _: True
    stage.apply({**GRID, "engine": {**GRID["engine"], "maxModelLen": 4096, "vllmVersion": "0.33.0"}})
    await stage.go(40, seconds=60.0)
    assert stage.safety["phase"] == "Rest"
    assert [one["av"] for one in stage.boots()] == [True, True]


async def test_a_user_s_change_meanwhile_waits_for_service_and_is_rolled_out_without_speculation(
    tmp_path: Path,
) -> None:
    stage = Crashing(tmp_path, published)
    await stage.until_safety("Trial")
    stage.apply({**GRID, "engine": {**GRID["engine"], "maxModelLen": 4096}})
    await stage.go(seconds=5.0)
    assert stage.status["rollout"]["fields"] == ["speculation.enabled"], "service first, and nothing else with it"
    await stage.go(seconds=5.0)
    assert (stage.status["rollout"]["phase"], stage.status["rollout"]["fields"]) == ("Canary", ["engine.maxModelLen"])
    await stage.until_safety("Stable", seconds=15.0)
    await stage.settle()
    assert all("4096" in json.dumps(pod["spec"]) for pod in stage.pods(naming.TRACK_STABLE))
    assert [one["av"] for one in stage.boots()] == [False, False]


async def test_one_crash_is_told_recorded_read_once_and_changes_nothing(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    await stage.go(4)
    pod = stage.pods(naming.TRACK_STABLE)[0]
    old = stage.revision()
    stage.crash(pod)
    await stage.go(5, kill=True)
    name = pod["metadata"]["name"]
    assert stage.kube.read_logs == [(name, True)]
    assert stage.revision() == old
    assert stage.condition("RemedyInForce") == ("False", "EngineCrashed")
    (told,) = stage.events("EngineCrashed")
    assert name in told
    assert "exit code 0" in told
    (death,) = stage.safety["deaths"]
    assert death["fingerprint"] == "adaptive-verification-illegal-access"
    data = stage.kube.find("ConfigMap", "demo-incidents")["data"]
    record = json.loads(data[death["incident"]])
    assert (record["pod"], record["exitCode"], record["kind"]) == (name, 0, "Crash")
    assert "record_confidences" in "\n".join(record["log"])
    assert "marriage" not in json.dumps(data)
    assert "need not be where it arose" in record["note"]
    assert "--speculative-config" in record["arguments"]
    await stage.go()
    stage.writes()
    await stage.go(5)
    assert stage.changed() == []


async def test_records_are_the_newest_few_and_go_with_nobody_else_s_object(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True, {**SPEC, "replicas": 1, "safety": {"mode": "Observe"}})
    await stage.go(3)
    for _ in range(14):
        stage.crash(stage.pods(naming.TRACK_STABLE)[0])
        await stage.go()
    data = stage.kube.find("ConfigMap", "demo-incidents")["data"]
    assert len(data) == 10
    assert stage.condition("RemedyInForce") == ("False", "EngineCrashed")
    assert stage.safety["phase"] == "Rest", "mode Observe"
    assert [one["method"] for one in stage.boots()] == ["ngram"]
    stage.kube.find("ConfigMap", "demo-incidents")["metadata"]["ownerReferences"] = []
    stage.crash(stage.pods(naming.TRACK_STABLE)[0])
    await stage.go()
    assert stage.kube.find("ConfigMap", "demo-incidents")["data"] == data


@pytest.mark.parametrize("reason", ["Evicted", "Preempting"])
async def test_pods_that_were_evicted_are_told_once_and_open_no_breaker(tmp_path: Path, reason: str) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    await stage.go(3)
    gone = []
    for _ in range(MAX_DEATHS + 4):
        gone.append(stage.pods(naming.TRACK_STABLE)[0])
        stage.evict(gone[-1], reason)
        await stage.go(3)
    stage.crash(stage.pods(naming.TRACK_STABLE)[0])
    await stage.go(3)
    assert (stage.safety["phase"], stage.safety["breaker"]) == ("Rest", "Closed"), "one crash, and no evictions"
    assert [one["kind"] for one in stage.safety["deaths"]] == ["Crash", *["Evicted"] * (MAX_DEATHS - 1)]
    told = stage.events("EngineCrashed")
    assert len([one for one in told if "evicted from its node" in one and f"{reason}, exit code 137" in one]) == len(
        gone
    )
    stage.writes()
    await stage.go(5, kill=True)
    assert [one for one in stage.changed() if one != ("APPLY", "Secret")] == []
    for pod in gone:
        stage.kube.drop("Pod", pod["metadata"]["name"])
    await stage.go(2)
    assert stage.status["replicas"] == 2
    assert len(stage.safety["seen"]) == 1


async def test_weights_that_are_damaged_open_no_breaker_and_are_said(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    stage.log = "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata"
    await stage.go(3)
    for _ in range(3):
        stage.crash(stage.pods(naming.TRACK_STABLE)[0], exitCode=1, reason="Error")
        await stage.go(2)
    assert stage.safety["phase"] == "Rest"
    assert "no other boot configuration helps" in stage.message("RemedyInForce")
    assert "weights-corrupt" in stage.message("RemedyInForce")


async def test_a_crash_without_a_name_tells_no_prompt_and_no_secret(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    await stage.go(3)
    for text in (
        "ValueError: prompt 'Tell me of my marriage' is too long",
        "KeyError: hf_abcdefghijklmnop 'and a value that is longer than names are'",
    ):
        stage.log = f"(EngineCore pid=7) ERROR 11-30 01:10:04 [core.py:1] {text}"
        stage.crash(stage.pods(naming.TRACK_STABLE)[0])
        await stage.go()
    told = json.dumps([stage.status, *stage.kube.objects.values()], default=str)
    assert "ValueError" in told
    assert "KeyError" in told
    for hidden in ("marriage", "hf_abc", "longer than"):
        assert hidden not in told


async def test_a_suspended_serving_is_told_of_and_nothing_is_done(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    await stage.go(3)
    stage.apply({**GRID, "suspend": True})
    for pod in stage.pods(naming.TRACK_STABLE):
        stage.crash(pod)
    stage.writes()
    await stage.go(2)
    assert stage.condition("RemedyInForce") == ("False", "EngineCrashed")
    assert stage.changed() == []
    assert len(stage.events("EngineCrashed")) == 1


def busy(tokens: int) -> Gauges:
    return Gauges(running=3, waiting=0, kv_cache_usage=0.1, prompt_tokens=100, generation_tokens=tokens)


async def test_a_hung_engine_is_replaced_within_its_budget_and_a_moving_one_is_not(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True, {**GRID, "safety": {"restartsPerHour": 1, "crashes": 9}})
    await stage.go(4)
    first, second = (pod["metadata"]["name"] for pod in stage.pods(naming.TRACK_STABLE))
    for number in range(5):
        stage.engines.gauges |= {first: busy(50), second: busy(number)}
        await stage.go()
        assert stage.events("EngineHung") == []
    for number in range(5, 9):
        stage.engines.gauges |= {first: busy(50), second: busy(number)}
        await stage.go()
    (told,) = stage.events("EngineHung")
    assert first in told
    assert first not in [pod["metadata"]["name"] for pod in stage.pods(naming.TRACK_STABLE)]
    assert len(stage.events("EngineReplaced")) == 1
    assert second in [pod["metadata"]["name"] for pod in stage.pods(naming.TRACK_STABLE)]
    for _ in range(20):
        stage.engines.gauges |= {second: busy(8)}
        await stage.go()
    assert second in [pod["metadata"]["name"] for pod in stage.pods(naming.TRACK_STABLE)], "the budget is spent"
    assert stage.events("BudgetSpent")
    assert len(stage.kube.find("ConfigMap", "demo-incidents")["data"]) == 2


async def test_silence_alone_is_no_hang_and_silence_with_requests_by_its_own_word_is(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    await stage.go(4)
    pod = stage.pods(naming.TRACK_STABLE)[0]
    name, url = pod["metadata"]["name"], f"http://{pod['status']['podIP']}:8000"
    stage.engines.gauges[name] = busy(50)
    await stage.go(2)
    stage.engines.failures[name] = Reason.POD_NOT_ANSWERING
    await stage.go(20)
    assert stage.events("EngineHung") == []
    stage.engines.told[url] = (150, 3)
    await stage.go(10)
    (told,) = stage.events("EngineHung")
    assert name in told


async def test_a_wall_clock_that_jumps_makes_no_rung_stable(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, published)
    await stage.until_safety("Trial")
    for _ in range(100):
        if "since" in stage.safety:
            break
        await stage.go(seconds=5.0)
    began = stage.clock.monotonic()
    stage.clock.origin += timedelta(hours=1)
    await stage.go(20)
    assert stage.safety["phase"] == "Trial"
    stage.clock.origin -= timedelta(hours=2)
    await stage.until_safety("Stable", seconds=30.0)
    assert 900 <= stage.clock.monotonic() - began <= 1000


CONTRACT: Object = {**GRID, "safety": {"contractEverySeconds": 30}, "rollout": {"canary": {"outputContract": {
    "prompt": "Say", "jsonFields": ["a"]}}}}  # fmt: skip
KEEPS, BREAKS = (
    json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode() for text in ('{"a": 1}', "{")
)


@pytest.mark.parametrize(("answer", "told"), [(BREAKS, 1), (KEEPS, 0)])
async def test_a_speculating_pod_that_breaks_the_contract_where_a_plain_one_keeps_it_is_told(
    tmp_path: Path, answer: bytes, told: int
) -> None:
    stage = Crashing(tmp_path, lambda _: True, CONTRACT)
    await stage.go(4)
    stage.pod("demo-plain-1", ip="10.0.1.1", track=naming.TRACK_PLAIN)
    asked: list[str] = []

    async def complete(url: str, body: Object) -> bytes:
        asked.append(url)
        return KEEPS if "10.0.1.1" in url else answer

    stage.engines.complete = complete  # type: ignore[method-assign, assignment]
    await stage.go(30)
    assert len(stage.events("OutputContract")) == told
    assert len(asked) <= 2 * (1 + 300 / 30), "at the rate that is asked for"
    assert len(asked) >= 16


async def test_a_record_that_cannot_be_kept_now_is_kept_later(tmp_path: Path) -> None:
    stage = Crashing(tmp_path, lambda _: True)
    await stage.go(5)
    stage.kube.refuse["APPLY", "ConfigMap"] = UnavailableError(500, "InternalError", "")
    stage.crash(stage.pods(naming.TRACK_STABLE)[0])
    await stage.go(2)
    assert len(stage.status["safety"]["deaths"]) == 1
    stage.kube.refuse.clear()
    await stage.go()
    assert len(stage.kube.find("ConfigMap", "demo-incidents")["data"]) == 1
    stage.writes()
    await stage.go(3)
    assert ("APPLY", "ConfigMap") not in stage.writes(), "once"
    stage.kube.refuse["APPLY", "ConfigMap"] = ForbiddenError(403, "Forbidden", "")
    stage.crash(stage.pods(naming.TRACK_STABLE)[0])
    await stage.go(RECORD_TRIES + 3)
    assert stage.writes().count(("APPLY", "ConfigMap")) == RECORD_TRIES, "not for ever"
