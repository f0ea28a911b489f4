"""What stands around the operator: servings made and changed, pods said to be ready, status watched."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.scale.engines import LADDER, MAX_NUM_SEQS, Engine, Engines, loads
from paceline_engine.protocol import derive_token
from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from tests.cluster.operators import KEY
from tests.harness.chart import rendered
from tests.harness.controlplane import ControlPlane

Object = dict[str, Any]
REPLICAS = 3
AT_ONCE = 12
ANSWERED = aiohttp.ClientTimeout(total=120)
DENIED = "scale-denied"
"""The namespace whose permission is taken away."""
HOME = "paceline-system"
SERVINGS_A_NAMESPACE = 50
BOOT_TABLE = tuple(LADDER[0] for _ in range(MAX_NUM_SEQS + 1))


def account(cluster: ControlPlane, namespaces: list[str]) -> Path:
    """The chart's account, which may watch the cluster and act in `namespaces`: so that one can be taken from it."""
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    documents = [document for document in rendered(namespace=HOME) if document["kind"] in kinds]
    (role,) = (d for d in documents if d["kind"] == "ClusterRole" and d["metadata"]["name"] == _bound(documents))
    watching = copy.deepcopy(role)
    watching["metadata"]["name"] = name = "scale-watching"
    for rule in watching["rules"]:
        rule["verbs"] = [verb for verb in rule["verbs"] if verb in ("list", "watch")] or ["list"]
    for document in documents:
        if document["kind"] == "ClusterRoleBinding":
            document["metadata"]["name"], document["roleRef"]["name"] = name, name
    subject = {"kind": "ServiceAccount", "name": "paceline", "namespace": HOME}
    bindings = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "paceline-acts", "namespace": namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role["metadata"]["name"],
            },
            "subjects": [subject],
        }
        for namespace in namespaces
    ]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([*documents, watching, *bindings]))
    token = cluster.kubectl("-n", HOME, "create", "token", "paceline").stdout.strip()
    return cluster.write_kubeconfig("operator-scale", token=token)


def _bound(documents: list[Object]) -> str:
    (binding,) = (document for document in documents if document["kind"] == "ClusterRoleBinding")
    return str(binding["roleRef"]["name"])


@dataclass
class Seen:
    """One serving."""

    uid: str
    load: int
    status: Object = field(default_factory=dict)
    writes: int = 0
    addresses: list[str] = field(default_factory=list)

    @property
    def converged(self) -> bool:
        """Ready, and its first table acknowledged by its pods."""
        ready = any(
            each["type"] == "Ready" and each["status"] == "True" for each in self.status.get("conditions") or ()
        )
        return ready and self.status.get("policyGeneration", 0) > 0 and self.status["acknowledgedPods"] == REPLICAS


class World:
    """The servings of a run and their pods. Use as `async with`."""

    def __init__(self, cluster: ControlPlane, interval_seconds: int) -> None:
        self._cluster, self._interval = cluster, interval_seconds
        self.engines = Engines()
        self.servings: dict[tuple[str, str], Seen] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._given: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> World:
        context = ssl.create_default_context(cafile=str(self._cluster.authority.certificate))
        self._http = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                base_url=self._cluster.url,
                connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE + 4),
                headers={"Authorization": f"Bearer {self._cluster.users['admin'].token}"},
                timeout=aiohttp.ClientTimeout(total=None),
                read_bufsize=2**22,
            )
        )
        self._spawn(self._pods())
        self._spawn(self._statuses())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engines.close()
        await self._stack.aclose()

    def check(self) -> None:
        """Raise what one of its tasks failed with."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    async def create(self, namespace: str, name: str, number: int) -> None:
        """A serving as most will be written; its load is one of those that were measured."""
        body = {
            "apiVersion": naming.API_VERSION,
            "kind": naming.KIND_SERVING,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": REPLICAS,
                "model": {"source": "hf://owner/target"},
                "speculation": {"method": "eagle", "draft": {"source": "hf://owner/draft"}, "maxTokens": LADDER[0]},
                "tuning": {"intervalSeconds": self._interval},
            },
        }
        answer = await self.send("POST", _path(namespace), body)
        self.servings[namespace, name] = Seen(answer["metadata"]["uid"], loads()[number % len(loads())])

    def set_load(self, key: tuple[str, str], load: int) -> None:
        """Of all engines of a serving, from now on."""
        seen = self.servings[key]
        seen.load = load
        for address in seen.addresses:
            self.engines.by_address[address].load = load

    async def send(self, method: str, path: str, body: Object, content: str = "application/json") -> Object:
        """As administrator."""
        async with (
            self._slots,
            self._http.request(
                method, path, data=json.dumps(body), headers={"Content-Type": content}, timeout=ANSWERED
            ) as answer,
        ):
            text = await answer.text()
            assert answer.status < 300, text
            found: Object = json.loads(text)
            return found

    async def deny(self) -> None:
        """Take the operator's permission to act in one namespace."""
        await self.send(
            "DELETE", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{DENIED}/rolebindings/paceline-acts", {}
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

    async def _pods(self) -> None:
        """Say of each pod, as kubelets would, that it runs at an address and is ready; its engine listens there."""
        async for event in self._watch(f"/api/v1/pods?labelSelector={naming.LABEL_SERVING}"):
            pod = event["object"]
            uid = pod["metadata"]["uid"]
            if event["type"] == "ADDED" and uid not in self._given:
                self._given.add(uid)
                self._spawn(self._run(pod, len(self._given)))

    async def _run(self, pod: Object, number: int) -> None:
        meta = pod["metadata"]
        serving = meta["namespace"], meta["labels"][naming.LABEL_SERVING]
        while serving not in self.servings:  # noqa: ASYNC110 the answer to its creation is still on its way
            await asyncio.sleep(0.1)
        seen = self.servings[serving]
        # Another block for each process, so that two may run side by side.
        address = f"127.{64 + os.getpid() % 128}.{number // 250}.{1 + number % 250}"
        key = KEY.encode()
        token = derive_token(key, seen.uid, key_version(key)).encode()
        engine = Engine((token,), meta["uid"], BOOT_TABLE, seen.load)
        await self.engines.start(address, engine)
        seen.addresses.append(address)
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        body = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        await self.send("PATCH", path, {"status": body}, "application/merge-patch+json")

    async def _statuses(self) -> None:
        async for event in self._watch(_path("")):
            meta = event["object"]["metadata"]
            if seen := self.servings.get((meta["namespace"], meta["name"])):
                seen.status = event["object"].get("status", {})
                seen.writes += event["type"] == "MODIFIED"

    async def _watch(self, path: str) -> AsyncIterator[Object]:
        joint = "&" if "?" in path else "?"
        # A kind that was just defined may not be served yet; a watch that ends tells of everything again.
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self._http.get(f"{path}{joint}watch=true&timeoutSeconds=3600") as answer:
                    if answer.status == 200:
                        async for line in answer.content:
                            yield json.loads(line)
            await asyncio.sleep(0.2)


def _path(namespace: str) -> str:
    within = f"namespaces/{namespace}/" if namespace else ""
    return f"/apis/{naming.API_VERSION}/{within}{naming.PLURAL_SERVING}"


def placed(servings: int) -> list[tuple[str, str]]:
    """(namespace, name) of so many servings. One namespace is the one that will be denied."""
    spaces = [DENIED, *(f"scale-{number}" for number in range(max(1, servings // SERVINGS_A_NAMESPACE)))]
    return [(spaces[number % len(spaces)], f"s{number}") for number in range(servings)]


def since(begun: float) -> float:
    """Seconds, rounded for a result."""
    return round(time.monotonic() - begun, 1)
