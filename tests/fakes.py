"""In-memory stand-ins for what a pass talks to: as much of the API server and of engines as the pass can tell apart.

Only for logic around them. What an API server really does is tested against a real one (tests/cluster).
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping
from typing import Any

from paceline_engine.protocol import (
    Capabilities,
    CostCell,
    Feature,
    Gauges,
    Identity,
    Policy,
    PolicyAck,
    Samples,
    State,
    VerificationFeature,
)
from paceline_engine.pull.report import Report
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.answers import EngineFailure
from paceline_operator.clients.kube import ConflictError, InvalidError, KubeError, NotFoundError
from paceline_operator.firsttokens import Histogram
from paceline_operator.kinds import OPTIONAL
from paceline_operator.rollout.page import Page
from paceline_operator.tuning.model import Engine

Object = dict[str, Any]
_KEYS = ("uid", "mountPath", "name", "containerPort", "port")


class FakeKube:
    """paceline_operator.clients.kube.Kube on a dict. `writes` are (verb, kind, name); `refuse` makes calls fail."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.reads = 0
        self.listed: list[str] = []
        """Kinds."""
        self.refuse: dict[tuple[str, str], KubeError] = {}
        self.logs: dict[str, str] = {}
        """Of a pod's engine that ended."""
        self.read_logs: list[tuple[str, bool]] = []
        """(pod, of the container before)"""
        self.served: set[str] = set()
        """Optional kinds that the cluster has."""
        self._sent: dict[tuple[str, str, str], Object] = {}
        self._count = itertools.count(1)

    def put(self, body: Object) -> Object:
        """Somebody else writes an object as it is; uid and generation are made up where they are absent."""
        body = copy.deepcopy(body)
        meta = body["metadata"]
        meta.setdefault("uid", f"uid-{next(self._count)}")
        meta.setdefault("generation", 1)
        meta["resourceVersion"] = str(next(self._count))
        self.objects[(body["kind"], meta["namespace"], meta["name"])] = body
        return body

    def find(self, kind: str, name: str) -> Object:
        """The one object of this kind and name, for a test to read or to edit in place."""
        return next(body for (k, _, n), body in self.objects.items() if (k, n) == (kind, name))

    def drop(self, kind: str, name: str) -> None:
        """Somebody else deletes it."""
        self.objects = {key: body for key, body in self.objects.items() if (key[0], key[2]) != (kind, name)}

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self._answer("GET", kind)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str], fields: str = "") -> list[Object]:
        self._answer("LIST", kind)
        self.listed.append(kind)
        found = [body for (k, ns, _), body in self.objects.items() if (k, ns) == (kind, namespace)]
        wanted = dict(part.split("=", 1) for part in fields.split(",") if part)
        if uid := wanted.get("involvedObject.uid"):
            found = [body for body in found if body["involvedObject"]["uid"] == uid]
        return [copy.deepcopy(b) for b in found if labels.items() <= b["metadata"].get("labels", {}).items()]

    async def serves(self, kind: str) -> bool:
        return kind in self.served

    async def apply(self, body: Object, subresource: str = "") -> Object:
        kind, meta = body["kind"], body["metadata"]
        self._write("APPLY" if not subresource else subresource.upper(), kind, meta["name"])
        key = (kind, meta["namespace"], meta["name"])
        there = self.objects.get(key)
        if subresource:
            if there is None:
                raise NotFoundError(404, "NotFound", f"{kind} {meta['name']}")
            if meta.get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
                raise ConflictError(409, "Conflict", "the UID is another")
            there["status"] = copy.deepcopy(body["status"])
            return copy.deepcopy(there)
        if there and there.get("immutable") and there.get("stringData") != body.get("stringData"):
            raise InvalidError(422, "Invalid", "field is immutable when `immutable` is set")
        before = copy.deepcopy(there)
        merged = there if there is not None else self.put({"kind": kind, "metadata": dict(meta)})
        if key in self._sent:
            _drop(merged, _paths(self._sent[key]) - _paths(body))
        _merge(merged, body)
        merged["metadata"]["managedFields"] = [
            {"manager": naming.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of(body, root=True)}
        ]
        self._sent[key] = copy.deepcopy(body)
        if before is not None and merged.get("spec") != before.get("spec"):
            merged["metadata"]["generation"] += 1
        if before is not None and merged != before:
            merged["metadata"]["resourceVersion"] = str(next(self._count))
        self.objects[key] = merged
        return copy.deepcopy(merged)

    async def create(self, body: Object) -> Object:
        self._write("CREATE", body["kind"], body["metadata"]["name"])
        return self.put(body)

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, **_: int) -> str:
        self.read_logs.append((pod, previous))
        return self.logs.get(pod, "")

    async def scale(self, body: Object, replicas: int) -> None:
        meta = body["metadata"]
        self._write("SCALE", body["kind"], meta["name"])
        if (
            self.objects[(body["kind"], meta["namespace"], meta["name"])]["metadata"]["resourceVersion"]
            != (meta["resourceVersion"])
        ):
            raise ConflictError(409, "Conflict", "the object has been modified")
        self.scaled(meta["name"], replicas, naming.FIELD_MANAGER)

    def scaled(self, name: str, replicas: int, manager: str, *, subresource: str = "scale", at: str = "") -> None:
        """Somebody writes replicas of a serving: another generation, and a field manager of its own."""
        there = self.find(naming.KIND_SERVING, name)
        there["spec"]["replicas"] = replicas
        meta = there["metadata"]
        meta["generation"] += 1
        meta["resourceVersion"] = str(next(self._count))
        entry = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        if subresource:
            entry["subresource"] = subresource
        if at:
            entry["time"] = at
        meta["managedFields"] = [entry]

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None) -> bool:
        self._write("DELETE", kind, name)
        there = self.objects.get((kind, namespace, name))
        if there is None or (uid is not None and there["metadata"]["uid"] != uid):
            return False
        del self.objects[(kind, namespace, name)]
        return True

    def _answer(self, verb: str, kind: str) -> None:
        self.reads += verb in ("GET", "LIST")
        if kind in OPTIONAL and kind not in self.served:
            raise NotFoundError(404, "NotFound", "the server could not find the requested resource")
        if error := self.refuse.get((verb, kind)):
            raise error

    def _write(self, verb: str, kind: str, name: str) -> None:
        self.writes.append((verb, kind, name))
        self._answer(verb, kind)


class FakeEngines:
    """paceline_operator.clients.engine.EngineClient: engines by pod name, at rest, that take what is pushed."""

    def __init__(self) -> None:
        self.failures: dict[str, Reason] = {}
        self.policies: dict[str, Policy] = {}
        self.pushed: list[tuple[str, int]] = []
        self.asked: list[tuple[str, str, str | None]] = []
        """(pod, token, cursor)"""
        self.refuse_pushes = False
        self.max_num_seqs = 256
        self.read_metrics: list[str] = []
        self.pages: dict[str, Page] = {}
        """By serving URL."""
        self.completions: dict[str, bytes] = {}
        """By serving URL."""
        self.told: dict[str, tuple[int, int]] = {}
        """Serving URL -> tokens and running requests by its /metrics."""
        self.gauges: dict[str, Gauges] = {}
        """Pod -> its load and tokens; at rest without."""
        self.cells: dict[str, tuple[CostCell, ...]] = {}
        """Pod -> what it did since it was asked last."""
        self.boots: dict[str, str] = {}
        """Boot id of pods that restarted."""
        self.without_drafter: set[str] = set()
        self.identity = Identity()
        self.pulls: dict[str, Report] = {}
        """Control URL -> what a puller says there."""
        self._pods: dict[str, str] = {}

    async def pull_report(self, control_url: str, token: str) -> Report | None:
        return self.pulls.get(control_url)

    async def observe_engine(
        self, name: str, control_url: str, serving_url: str, token: str, cursor: str | None
    ) -> Engine:
        self.asked.append((name, token, cursor))
        self._pods[control_url] = name
        if failure := self.failures.get(name):
            return Engine(name=name, failure=failure, failure_message=f"{name} fails")
        return Engine(
            name=name,
            state=self._state(name),
            samples=_since(cursor, self.boots.get(name, "boot"), self.cells.get(name, ()), self.gauges.get(name, REST)),
        )

    def restart_engine(self, name: str) -> None:
        """Another process: nothing was pushed to it."""
        self.boots[name] = f"{self.boots.get(name, 'boot')}-again"
        self.policies.pop(name, None)

    async def tokens(self, serving_url: str) -> tuple[int, int] | None:
        return self.told.get(serving_url)

    async def first_token_times(self, serving_url: str) -> Histogram | None:
        self.read_metrics.append(serving_url)
        return None

    async def requests_page(self, serving_url: str) -> Page | None:
        return self.pages.get(serving_url)

    async def complete(self, serving_url: str, body: Mapping[str, object]) -> bytes | None:
        return self.completions.get(serving_url)

    async def push(self, control_url: str, token: str, policy: Policy) -> PolicyAck | EngineFailure:
        name = self._pods[control_url]
        self.pushed.append((name, policy.generation))
        if self.refuse_pushes:
            return EngineFailure(Reason.NOT_ACKNOWLEDGED, "no")
        self.policies[name] = policy
        return PolicyAck(generation=policy.generation, applied=False)

    def _state(self, name: str) -> State:
        policy = self.policies.get(name)
        most = 0 if name in self.without_drafter else 5
        boot = (most,) * (self.max_num_seqs + 1)
        live = Feature(supported=True)
        return State(
            plugin_version="0.1.0",
            engine_version="0.32.0",
            boot_id=self.boots.get(name, "boot"),
            uptime_seconds=100.0,
            capabilities=Capabilities(
                live_k=live,
                adaptive_verification=VerificationFeature(supported=False, reason="ngram"),
                max_k=most,
                ladder=(5, 3, 2, 1, 0) if most else (0,),
                max_num_seqs=self.max_num_seqs,
                method="ngram",
                runner="V1",
                identity=self.identity,
            ),
            generation=policy.generation if policy else 0,
            table=policy.table if policy else boot,
            probe=policy.probe if policy else None,
            k_in_force=None,
            steps_by_k={},
            probe_steps_by_k={},
            policy_errors=0,
        )


REST = Gauges(running=0, waiting=0, kv_cache_usage=0.0, prompt_tokens=0, generation_tokens=0)


def _since(cursor: str | None, boot: str, cells: tuple[CostCell, ...] = (), gauges: Gauges = REST) -> Samples:
    return Samples(
        boot_id=boot,
        cursor="next",
        reset=cursor is None,
        lost_windows=0,
        from_seconds=0.0,
        to_seconds=100.0,
        cells=cells,
        acceptance=(),
        excluded_steps={},
        steps_by_k={},
        probe_steps_by_k={},
        gauges=gauges,
    )


def fields_of(body: Any, root: bool = False) -> Object:
    """FieldsV1 of an applied body, in the server's notation."""
    if isinstance(body, list):
        key = next((k for k in _KEYS if all(isinstance(i, dict) and k in i for i in body)), None) if body else None
        if key is None:
            return {}
        return {f"k:{json.dumps({key: item[key]})}": {".": {}, **fields_of(item)} for item in body}
    if not isinstance(body, dict):
        return {}
    hidden = {"apiVersion", "kind"} if root else set()
    fields = {f"f:{name}": fields_of(value) for name, value in body.items() if name not in hidden}
    if root:
        fields["f:metadata"] = {k: v for k, v in fields["f:metadata"].items() if k not in ("f:name", "f:namespace")}
    return fields


def _paths(body: Any, path: tuple[Any, ...] = ()) -> set[tuple[Any, ...]]:
    if isinstance(body, dict) and body:
        return {p for name, value in body.items() for p in _paths(value, (*path, name))} | ({path} if path else set())
    return {path}


def _drop(body: Object, paths: set[tuple[Any, ...]]) -> None:
    for path in sorted(paths, key=len, reverse=True):
        at: Any = body
        for name in path[:-1]:
            at = at.get(name) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at.pop(path[-1], None)


def _merge(body: Object, over: Object) -> None:
    for name, value in over.items():
        there = body.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value)
        elif isinstance(value, list) and isinstance(there, list) and value and isinstance(value[0], dict):
            key = next((k for k in _KEYS if all(k in item for item in value)), None)
            ours = {item[key] for item in value} if key else set()
            others = [item for item in there if key and item.get(key) not in ours]
            body[name] = copy.deepcopy(value) + others
        else:
            body[name] = copy.deepcopy(value)
