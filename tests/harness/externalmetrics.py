"""External metrics for a HorizontalPodAutoscaler: an API of its own behind the API server's aggregation layer.

The API server reaches it on loopback by a Service of type ExternalName, shows its front-proxy certificate and names the
user that asks.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.controlplane import FRONT_PROXY, ControlPlane
from tests.harness.processes import wait_until

GROUP_VERSION = "external.metrics.k8s.io/v1beta1"
API_SERVICE = "v1beta1.external.metrics.k8s.io"
NAME = "external-metrics"


class ExternalMetrics:
    """`values`: metric name to its present value, the same in all namespaces; `askers`: users that read one."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.askers: set[str] = set()

    def answer(self, path: str) -> dict[str, Any] | None:
        """Body of `GET path`, None where there is nothing."""
        root = f"/apis/{GROUP_VERSION}"
        if path.rstrip("/") == root:
            kind = {"name": "*", "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
            resources = [{**kind, "verbs": ["get"]}]
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": GROUP_VERSION,
                "resources": resources,
            }
        metric = path.rpartition("/")[2]
        if not path.startswith(f"{root}/namespaces/") or metric not in self.values:
            return None
        item = {
            "metricName": metric,
            "metricLabels": {},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": f"{round(1000 * self.values[metric])}m",
        }
        return {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": [item]}


@contextmanager
def external_metrics(cluster: ControlPlane, namespace: str) -> Iterator[ExternalMetrics]:
    """Serve them, registered with `cluster`; its Service is in `namespace`."""
    served = ExternalMetrics()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            peer = self.connection.getpeercert()  # type: ignore[attr-defined]
            names = {value for part in peer["subject"] for key, value in part if key == "commonName"}
            body = served.answer(self.path.partition("?")[0]) if names == {FRONT_PROXY} else None
            if body and "items" in body:
                served.askers.add(self.headers.get("X-Remote-User", ""))
            text = json.dumps(body).encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    certificate, key = cluster.authority.serving(NAME, [], [f"{NAME}.{namespace}.svc"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cluster.authority.certificate))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": {
                "group": GROUP_VERSION.partition("/")[0],
                "version": GROUP_VERSION.partition("/")[2],
                "service": {"name": NAME, "namespace": namespace, "port": server.server_port},
                "caBundle": base64.b64encode(cluster.authority.certificate.read_bytes()).decode(),
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    try:
        wait_until(lambda: cluster.get(f"/apis/{GROUP_VERSION}"), "external metrics to be served", timeout_seconds=30)
        yield served
    finally:
        cluster.kubectl("delete", "apiservice", API_SERVICE)
        cluster.kubectl("-n", namespace, "delete", "service", NAME)
        server.shutdown()
        server.server_close()
        thread.join()
