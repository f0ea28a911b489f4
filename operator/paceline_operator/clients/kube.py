"""The Kubernetes API as the operator uses it: raw JSON, every call bounded, every failure one of a few kinds.

Typed models are not used: they validate answers, so that a call which the server accepted can fail on this side. The
library's TLS and authentication are. At most `concurrency` calls are on their way at once.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import yaml
from kubernetes import client, config

from paceline_operator import metrics, naming
from paceline_operator.clients import sent, shallow
from paceline_operator.clients.session import ACCEPT, Answer, Session
from paceline_operator.kinds import OPTIONAL

Object = dict[str, Any]
_T = TypeVar("_T")

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
LIST_LIMIT = 500
NAMES_LIMIT = 100
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
"""What is accepted where of a list's objects their metadata is enough."""
LOG_LINES, LOG_BYTES = 400, 256 * 1024
"""Of a container's log that are asked for: its end has vLLM's two tracebacks of an engine that died, 100 lines each."""
CONCURRENCY = 16
DISCOVERY_SECONDS = 5.0
"""For which it is believed that the cluster has, or has not, an optional kind."""

RESOURCES: Mapping[str, tuple[str, str]] = {
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "Pod": ("v1", "pods"),
    "Event": ("v1", "events"),
    "ConfigMap": ("v1", "configmaps"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Job": ("batch/v1", "jobs"),
    "Deployment": ("apps/v1", "deployments"),
    "ControllerRevision": ("apps/v1", "controllerrevisions"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    naming.KIND_SERVING: (naming.API_VERSION, naming.PLURAL_SERVING),
    naming.KIND_EXPERIMENT: (naming.API_VERSION, naming.PLURAL_EXPERIMENT),
    naming.KIND_PROFILE: (naming.API_VERSION, naming.PLURAL_PROFILE),
}
"""Kind to (apiVersion, plural) of all that is read or written; those that a cluster may lack are in kinds.OPTIONAL."""


UNUSABLE = (
    config.ConfigException,
    yaml.YAMLError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the library raises where KUBECONFIG is not YAML, or is YAML of another shape: it looks at few of its types."""
APPLY = "application/apply-patch+yaml"
UNTYPABLE = "failed to create typed patch object"
"""How the API server begins its answer, HTTP 500, to an apply with a value of another type than the schema has."""


@dataclass(eq=False)
class KubeError(Exception):
    """The API did not do it. `retry_after`: seconds that the server asks to wait, where it said so."""

    status: int
    """HTTP status; 0 where no answer came."""
    reason: str
    message: str
    retry_after: float | None = None

    def __str__(self) -> str:
        return f"{self.message} ({self.reason}" + (f", HTTP {self.status})" if self.status else ")")


class NotFoundError(KubeError):
    """404: the object, its namespace or its kind is not there."""


class ConflictError(KubeError):
    """409: somebody else wrote in between, or a precondition does not hold: read again and decide again."""


class ForbiddenError(KubeError):
    """401, 403: the operator may not do this; waiting does not help, a role does."""


class InvalidError(KubeError):
    """400, 413, 415, 422, or a value of the wrong type: the server understood and refuses what was sent."""


class ThrottledError(KubeError):
    """429: wait `retry_after`."""


class UnavailableError(KubeError):
    """5xx, 410, a timeout or a broken connection: whether a write took place is unknown, read again."""


_KINDS: Mapping[int, type[KubeError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
    429: ThrottledError,
}


def connect(context: str | None = None) -> client.ApiClient:
    """A client for the cluster this process runs in or, outside of one, of KUBECONFIG: the order kopf logs in by.

    With `context`, of that context of KUBECONFIG. Raises ValueError where there is neither.
    """
    configuration = client.Configuration()
    try:
        if context is not None:
            raise config.ConfigException("a context was named")
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            config.load_kube_config(context=context, client_configuration=configuration)
        except UNUSABLE as error:
            why = " ".join(str(error).split())[:500]
            if not isinstance(error, config.ConfigException | OSError):
                why = f"it is not what kubectl writes: {type(error).__name__}: {why}"
            where = config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION
            if not any(os.path.exists(os.path.expanduser(one)) for one in where.split(os.pathsep)):
                why = "no such file"
            raise ValueError(
                f"no cluster: not in a pod, and KUBECONFIG is of no use: {where}: {why.removesuffix('.')}; "
                "name a file with which kubectl works"
            ) from None
    return client.ApiClient(configuration)


class Kube:
    """Few verbs. Every method raises a KubeError, and nothing else, when the API does not do it.

    Retries are decided by the caller of a pass, with a new look at the world. Close it, or use it as `async with`.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        concurrency: int = CONCURRENCY,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_write` is asked right before each request that changes something."""
        self._may_write = may_write
        # Connections of its own: calls that hang here must not take those of another client, the Lease's least of all.
        self._session = Session(api, concurrency, connect_seconds, read_seconds)
        self._slots = asyncio.Semaphore(concurrency)
        self._discovered: dict[str, tuple[float, frozenset[str]]] = {}
        """apiVersion of optional kinds -> (when asked, on the loop's clock; plurals)."""
        self._lookups: dict[str, asyncio.Lock] = {}
        self.kinds_changed = 0
        """How often what was found of an optional kind was not what had been found before."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self._call("GET", kind, namespace, name)
        except NotFoundError:
            return None

    async def merge(self, kind: str, namespace: str, name: str, changes: Object) -> Object:
        """Merge patch (RFC 7386) of the object: for a person's change, never for the operator's own fields."""
        query, content = {"fieldManager": naming.CLI_MANAGER}, "application/merge-patch+json"
        return await self._call("PATCH", kind, namespace, name, query=query, body=changes, content=content)

    async def names(self, kind: str, namespace: str) -> list[tuple[str, str]]:
        """(namespace, name) of all objects; `namespace` empty: of all. A thousand whole ones would take 100 MB."""
        query, found = {"limit": str(NAMES_LIMIT)}, list[tuple[str, str]]()
        while True:
            page = await self._call("GET", kind, namespace, query=query, accept=METADATA_LIST)
            with shaped(f"GET {kind}"):
                meta = [item["metadata"] for item in page.get("items") or []]
                found += [(str(one["namespace"]), str(one["name"])) for one in meta]
                token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            query = {**query, "continue": token}

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str], fields: str = "") -> list[Object]:
        """All objects with these labels, in pages; `namespace` empty: of all. Items carry no kind: the caller does."""
        query = {"limit": str(LIST_LIMIT), "labelSelector": ",".join(f"{k}={v}" for k, v in labels.items())}
        if fields:
            query["fieldSelector"] = fields
        items: list[Object] = []
        while True:
            page = await self._call("GET", kind, namespace, query=query)
            with shaped(f"GET {kind}"):
                items += page.get("items") or []
                token = (page.get("metadata") or {}).get("continue")
            if not token:
                return items
            query = {**query, "continue": token}

    async def apply(self, body: Object, subresource: str = "", manager: str = naming.FIELD_MANAGER) -> Object:
        """Server-side apply of exactly the fields in `body`, taking over those that others hold. Returns the result."""
        return await self._call(
            "PATCH",
            body["kind"],
            body["metadata"]["namespace"],
            body["metadata"]["name"],
            subresource,
            query={"fieldManager": manager, "force": "true"},
            body=body,
        )

    async def create(self, body: Object) -> Object:
        """Create an object; ConflictError where it exists."""
        query = {"fieldManager": naming.FIELD_MANAGER}
        return await self._call("POST", body["kind"], body["metadata"]["namespace"], query=query, body=body)

    async def replace(self, body: Object) -> Object:
        """Replace an object read before; ConflictError where it changed since (metadata.resourceVersion)."""
        meta = body["metadata"]
        query = {"fieldManager": naming.FIELD_MANAGER}
        return await self._call("PUT", body["kind"], meta["namespace"], meta["name"], query=query, body=body)

    async def scale(self, body: Object, replicas: int) -> None:
        """Set spec.replicas of an object read before by its scale subresource; ConflictError where it changed since."""
        meta = {name: body["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": meta, "spec": {"replicas": replicas}}
        query = {"fieldManager": naming.FIELD_MANAGER}
        await self._call("PUT", body["kind"], meta["namespace"], meta["name"], "scale", query=query, body=scale)

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None) -> bool:
        """Delete, in the background, the object with this UID; False where it is gone already or is another one.

        `uid` None deletes whatever has the name: only for an object that is never read (the token Secret).
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind, namespace, name, body=options)
        except (NotFoundError, ConflictError):
            return False
        return True

    async def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool,
        lines: int = LOG_LINES,
        limit: int = LOG_BYTES,
    ) -> str:
        """The last lines of a container, or of the one before it in its place; empty where there are none."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        query |= {"previous": "true"} if previous else {}
        url = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?{urlencode(query)}"
        async with self._slots:
            answer = await self._session.request("GET", url, None, "")
        if answer.status in (400, 404):  # the container is gone, or never ran
            return ""
        if answer.status != 200:
            result(answer, f"GET log of {namespace}/{pod} {container}")
        return answer.body.decode("utf-8", "replace")

    async def fetch(self, path: str) -> Object | None:
        """What the API answers at `path` (`/version`, a kind of the cluster); None where there is nothing."""
        try:
            return await self._send("GET", path, f"GET {path}")
        except NotFoundError:
            return None

    async def may(self, verb: str, group: str, plural: str, namespace: str, subresource: str = "") -> bool:
        """Whether whoever asks may do this, in all namespaces where `namespace` is empty."""
        attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes | ({"subresource": subresource} if subresource else {})},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._send("POST", path, f"may {verb} {plural}", body=review)
        return bool((answer.get("status") or {}).get("allowed"))

    async def served(self, group_version: str) -> frozenset[str]:
        """Plurals of the kinds that the API has in this group and version: empty where it has none."""
        try:
            found = await self._send("GET", f"/apis/{group_version}", f"GET kinds of {group_version}")
        except NotFoundError:
            return frozenset()
        with shaped(f"GET kinds of {group_version}"):
            return frozenset(str(kind.get("name")) for kind in found.get("resources") or [])

    async def serves(self, kind: str) -> bool:
        """Whether the cluster has this optional kind, as it was at most DISCOVERY_SECONDS ago."""
        group_version, plural = OPTIONAL[kind]
        # One at a time: of passes that ask together one asks the API, and the others have its answer.
        async with self._lookups.setdefault(group_version, asyncio.Lock()):
            now = asyncio.get_running_loop().time()
            asked = self._discovered.get(group_version)
            if asked is None or now - asked[0] >= DISCOVERY_SECONDS:
                found = await self.served(group_version)
                self.kinds_changed += asked is not None and asked[1] != found
                asked = self._discovered[group_version] = now, found
        return plural in asked[1]

    async def _call(
        self,
        method: str,
        kind: str,
        namespace: str,
        name: str = "",
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = APPLY,
        accept: str = ACCEPT,
    ) -> Object:
        path = path_of(kind, namespace, name, subresource)
        where = f"{method} {kind} {namespace}/{name or '*'}" + (f" {subresource}" if subresource else "")
        url = f"{path}?{urlencode(query)}" if query else path
        return await self._send(method, url, where, kind, body, content, accept)

    async def _send(
        self,
        method: str,
        url: str,
        where: str,
        kind: str = "",
        body: Object | None = None,
        patch: str = APPLY,
        accept: str = ACCEPT,
    ) -> Object:
        data = None if body is None else sent.body(body)
        content = patch if method == "PATCH" else "application/json"
        async with self._slots:
            if method != "GET" and not self._may_write():
                raise UnavailableError(0, "NotLeading", f"{where}: not sent, another process may act by now")
            call = self._session.request(method, url, data, content, accept)
            # Shielded: a request on its way cannot be called back, and whoever cancels must know that it ended.
            answer = await call if method == "GET" else await _finish(asyncio.ensure_future(call))
        if method == "GET":
            metrics.API_READS.labels(kind, str(answer.status)).inc()
        else:
            metrics.API_WRITES.labels(kind, method, str(answer.status)).inc()
        return result(answer, where)


def path_of(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """Of an object, or without `name` of all of its kind; `namespace` empty: in all, or of none."""
    group_version, plural = RESOURCES.get(kind) or OPTIONAL[kind]
    prefix = "/api" if "/" not in group_version else "/apis"
    within = ("namespaces", namespace) if namespace else ()
    return "/".join(part for part in (prefix, group_version, *within, plural, name, subresource) if part)


async def _finish(call: asyncio.Future[_T]) -> _T:
    """Await `call` to its end even when cancelled: that takes no longer than its timeouts."""
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


@contextmanager
def shaped(where: str) -> Iterator[None]:
    """Where an answer is taken apart: one of another shape is none. Raises UnavailableError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise UnavailableError(0, "NotJson", f"{where}: the answer has another shape: {error!r}") from None


def result(answer: Answer, where: str) -> Object:
    """The object in `answer`. Raises the KubeError that it is; `where` says of what."""
    status = answer.status
    if status == 0:
        raise UnavailableError(0, "NoAnswer", f"{where}: {answer.body.decode('utf-8', 'replace')[:300]}")
    try:
        parsed = shallow.loads(answer.body)
    except (ValueError, RecursionError):
        parsed = None
    if 200 <= status < 300:
        if not isinstance(parsed, dict):
            raise UnavailableError(status, "NotJson", f"{where}: the answer is not a JSON object")
        return parsed
    details = parsed if isinstance(parsed, dict) else {}
    message = " ".join(str(details.get("message") or answer.body.decode("utf-8", "replace")).split())[:600]
    kind = InvalidError if message.startswith(UNTYPABLE) else _KINDS.get(status, UnavailableError)
    raise kind(status, str(details.get("reason") or "Unknown"), f"{where}: {message}", _seconds(answer.retry_after))


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header) if header else math.nan
        return None if math.isnan(seconds) else min(max(seconds, 0.0), 120.0)
    except ValueError:  # an HTTP date: the API server does not send one, a proxy may
        return None
