"""Many servings through their lives at once: specs applied in lockstep, and what the cluster holds after each step."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import naming
from paceline_operator.clients.kube import RESOURCES
from paceline_operator.kinds import OPTIONAL
from tests.cluster.operators import PATIENCE_SECONDS, Object, Place
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import Change

OWN = (naming.KIND_SERVING, naming.KIND_EXPERIMENT, naming.KIND_PROFILE)
AT_ONCE = 8
"""Requests on their way."""
LONG_AGO = "2026-01-01T00:00:00Z"
MOVING = ("Progressing", "MetricsAvailable", "Tuned")
VOLATILE = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "ownerReferences",
    "namespace",
    "finalizers",
)
DRAWN = ("clusterIP", "clusterIPs", "volumeName")
"""Fields of a spec that the API server or a controller fills in."""
WRITTEN = [kind for kind in {**RESOURCES, **OPTIONAL} if kind not in ("Event", "Lease", "Pod", *OWN)]
"""Kinds of children."""

Answer = tuple[int, str]
"""HTTP status and body."""
Key = tuple[str, str]
"""(namespace, name) of a serving."""
Children = dict[str, Object]
"""`kind/name` -> the object."""


@dataclass
class Lives:
    """All servings in some namespaces of a cluster."""

    cluster: ControlPlane
    namespaces: tuple[str, ...]
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE))

    def create(self, wanted: Mapping[Key, Change]) -> dict[Key, Answer]:
        """New servings."""
        kind = {"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING}
        bodies = {key: {**kind, "metadata": {"name": key[1]}, "spec": spec} for key, spec in wanted.items()}
        return self._each("POST", {key: (self._path(key[0]), body) for key, body in bodies.items()})

    def replace(self, wanted: Mapping[Key, Change]) -> dict[Key, Answer]:
        """The whole spec of servings that are there."""
        bodies = {key: [{"op": "replace", "path": "/spec", "value": spec}] for key, spec in wanted.items()}
        return self._each("PATCH", {key: (f"{self._path(key[0])}/{key[1]}", body) for key, body in bodies.items()})

    def delete(self, keys: Iterable[Key]) -> None:
        """What they own goes after them."""
        self._each("DELETE", {key: (f"{self._path(key[0])}/{key[1]}", None) for key in keys})

    def refusals(self, key: Key, specs: Sequence[Change]) -> list[Answer]:
        """What the API server says of specs for one serving, one after the other."""
        return [self.replace({key: spec})[key] for spec in specs]

    def _path(self, namespace: str) -> str:
        return Place(self.cluster, namespace).path(naming.KIND_SERVING)

    def _each(self, method: str, calls: Mapping[Key, tuple[str, Any]]) -> dict[Key, Answer]:
        return dict(zip(calls, self._pool.map(lambda call: self._call(method, *call), calls.values()), strict=True))

    def servings(self) -> dict[Key, Object]:
        """As they are now."""
        places = [Place(self.cluster, namespace) for namespace in self.namespaces]
        return {
            (place.namespace, item["metadata"]["name"]): item
            for place in places
            for item in place.list(naming.KIND_SERVING)
        }

    def wait(self, done: Callable[[Object], bool], of: Iterable[Key]) -> dict[Key, Any]:
        """Until `done` holds for each of these servings, as long as it comes to hold for one after the other. Those for
        which it does not, with their conditions."""
        deadline, left, waited = 0.0, -1, set(of)
        while True:
            found = self.servings()
            late = {key: found.get(key, {}) for key in waited if key not in found or not done(found[key])}
            if len(late) != left:
                deadline, left = time.monotonic() + PATIENCE_SECONDS, len(late)
            if not late or time.monotonic() > deadline:
                return {key: serving.get("status", {}).get("conditions") for key, serving in late.items()}
            time.sleep(0.3)

    def children(self) -> dict[Key, Children]:
        """Of each serving all that it owns, of every kind that the operator can write."""
        found: dict[Key, Children] = {key: {} for key in self.servings()}
        places = [(kind, Place(self.cluster, namespace)) for kind in WRITTEN for namespace in self.namespaces]
        for (kind, place), items in zip(places, self._pool.map(_listed, places), strict=True):
            for item in items:
                for owner in item["metadata"].get("ownerReferences", []):
                    if owner["kind"] == naming.KIND_SERVING and "deletionTimestamp" not in item["metadata"]:
                        found.setdefault((place.namespace, owner["name"]), {})[f"{kind}/{item['metadata']['name']}"] = (
                            item
                        )
        return found

    def end_jobs(self) -> None:
        """What kubelets would say of Jobs' pods: they are done. The Jobs' controller does the rest."""
        for place in (Place(self.cluster, namespace) for namespace in self.namespaces):
            for pod in place.list("Pod"):
                if "job-name" in pod["metadata"].get("labels", {}) and pod["status"].get("phase") == "Pending":
                    name = pod["spec"]["containers"][0]["name"]
                    done = {"terminated": {"exitCode": 0, "startedAt": LONG_AGO, "finishedAt": LONG_AGO}}
                    status = {
                        "name": name,
                        "image": "x",
                        "imageID": "x",
                        "ready": False,
                        "restartCount": 0,
                        "state": done,
                    }
                    body = {"status": {"phase": "Succeeded", "containerStatuses": [status]}}
                    place.patch("Pod", pod["metadata"]["name"], body, "status")

    def _call(self, method: str, path: str, body: Any) -> tuple[int, str]:
        api = self.cluster.api
        content = "application/json-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": content, "Accept": "application/json"}
        request = api.param_serialize(method, path, header_params=headers, body=body, auth_settings=["BearerToken"])
        response = api.call_api(*request)
        return response.status, response.read().decode()


def _listed(place: tuple[str, Place]) -> list[Object]:
    """Empty where the cluster lacks the kind."""
    try:
        return place[1].list(place[0])
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return []


def unlike(here: Children, fresh: Children) -> list[str]:
    """What of a serving's children is not as a fresh apply of the same spec makes it.

    Stored templates of earlier specs are history, as a Deployment's old ReplicaSets are: they may stay.
    """
    past = {key for key in here if key.startswith("ControllerRevision/") and key not in fresh}
    return differences(_normal({key: item for key, item in here.items() if key not in past}), _normal(fresh))


def differences(here: Any, there: Any, path: str = "") -> list[str]:
    """Where two values differ, and how."""
    if isinstance(here, dict) and isinstance(there, dict):
        names = sorted(here.keys() | there.keys())
        return [line for n in names for line in differences(here.get(n), there.get(n), f"{path}.{n}")]
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        pairs = enumerate(zip(here, there, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{path}[{i}]")]
    return [] if here == there else [f"{path}: {str(here)[:200]} instead of {str(there)[:200]}"]


def _normal(children: Children) -> Children:
    """Without what is another for each object, and what controllers write."""
    return {key: plain(item) for key, item in children.items()}


def plain(item: Object) -> Object:
    namespace = item["metadata"]["namespace"]
    kept = json.loads(
        json.dumps(item).replace(f'"{namespace}', '"NAMESPACE').replace(f'\\"{namespace}\\"', "NAMESPACE")
    )
    for name in ("status", "revision"):
        kept.pop(name, None)
    meta = {name: value for name, value in kept["metadata"].items() if name not in VOLATILE}
    ours = {key: value for key, value in meta.get("annotations", {}).items() if naming.GROUP in key}
    kept["metadata"] = {**meta, "annotations": ours}
    spec = kept.get("spec", {})
    for name in DRAWN:
        spec.pop(name, None)
    if "completionMode" in spec:  # a Job's selector names its UID
        spec.pop("selector")
        spec["template"]["metadata"].pop("labels", None)
    if "immutable" in kept:  # the token Secret's content is the object's own
        kept["data"] = sorted(kept.get("data", {}))
    return dict(kept)


def stamps(children: Children) -> dict[str, str]:
    """What moves with each write to what a child is meant to be: its generation, where it counts one."""
    return {
        key: str(item["metadata"].get("generation", item["metadata"]["resourceVersion"]))
        for key, item in children.items()
    }


def told(serving: Object) -> dict[str, tuple[str, str]]:
    """Condition -> (status, reason); but for those that tell how far other controllers have come."""
    conditions = serving.get("status", {}).get("conditions", [])
    return {each["type"]: (each["status"], each["reason"]) for each in conditions if each["type"] not in MOVING}


def looked_at(serving: Object) -> bool:
    """A whole pass over its present spec has ended."""
    return bool(serving.get("status", {}).get("observedGeneration") == serving["metadata"]["generation"])


def says(reason: str) -> Callable[[Object], bool]:
    """A condition about the present spec is not True, for `reason`."""

    def found(serving: Object) -> bool:
        generation = serving["metadata"]["generation"]
        return any(
            (each["reason"], each["observedGeneration"]) == (reason, generation) and each["status"] != "True"
            for each in serving.get("status", {}).get("conditions", [])
        )

    return found
