"""A node without machines: says of pods of experiments what a kubelet would, and serves their logs as one does."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kubernetes import client

from paceline_operator import naming
from tests.cluster.operators import Object, Place
from tests.harness.controlplane import ControlPlane

NODE = "stand-in"
ADDRESS = "127.0.0.1"
EVERY_SECONDS = 0.2


@dataclass(frozen=True)
class Life:
    """What becomes of a pod; `status` None: no node takes it."""

    status: Object | None
    logs: Mapping[str, str] = field(default_factory=dict)
    """Of each container."""


class Kubelet:
    """Of one namespace, while it is entered. `live` is asked once for each pod."""

    def __init__(self, cluster: ControlPlane, namespace: str, live: Callable[[Object], Life]) -> None:
        self._cluster, self._place, self._live = cluster, Place(cluster, namespace), live
        self._api = client.CoreV1Api(cluster.api)
        self._logs: dict[tuple[str, str], str] = {}
        self._known: set[str] = set()
        self._ended = threading.Event()

    def __enter__(self) -> Kubelet:
        self._server = _server(self._cluster, self._logs)
        address = {"type": "InternalIP", "address": ADDRESS}
        port = self._server.server_address[1]
        self._api.create_node({"metadata": {"name": NODE}})
        status = {"addresses": [address], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        self._api.patch_node_status(NODE, {"status": status})
        self._threads = [threading.Thread(target=work) for work in (self._server.serve_forever, self._run)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()
        self._api.delete_node(NODE)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            with suppress(OSError, client.ApiException, AssertionError):  # a pod went in between: looked at again
                for pod in self._place.list("Pod"):
                    if naming.LABEL_EXPERIMENT in pod["metadata"].get("labels", {}):
                        self._see(pod)

    def _see(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            self._api.delete_namespaced_pod(name, self._place.namespace, grace_period_seconds=0)
        elif uid not in self._known:
            life = self._live(pod)
            if life.status is not None:
                self._logs.update({(name, container): text for container, text in life.logs.items()})
                if not pod["spec"].get("nodeName"):
                    self._bind(name)
                self._place.patch("Pod", name, {"status": life.status}, "status")
            self._known.add(uid)

    def _bind(self, pod: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        self._place.kubectl(
            "create", "--raw", self._place.path("Pod", pod, "binding"), "-f", "-", input=json.dumps(body)
        )


def _server(cluster: ControlPlane, logs: Mapping[tuple[str, str], str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, what, _, pod, container = self.path.partition("?")[0].split("/")
            text = logs.get((pod, container)) if what == "containerLogs" else None
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((ADDRESS, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cluster.authority.serving(f"kubelet-{server.server_address[1]}", [ADDRESS], [NODE]))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
