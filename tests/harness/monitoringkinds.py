"""Bare definitions of the Prometheus operator's kinds that the chart renders: the fields it sets, so that a typo shows.

Written after the public API (monitoring.coreos.com/v1). Nothing acts on these objects here.
"""

from __future__ import annotations

import json
from typing import Any

from tests.harness.controlplane import ControlPlane
from tests.harness.optional import BOOLEAN, INT_OR_STRING, Schema, fields, items, mapping, text

GROUP = "monitoring.coreos.com"
DURATION = text(pattern=r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$")


def _pod_monitor() -> Schema:
    expression = fields("key", "operator", key=text(), operator=text(), values=items(text()))
    selector = fields(matchLabels=mapping(text()), matchExpressions=items(expression))
    endpoint = fields(port=text(), interval=DURATION, honorLabels=BOOLEAN, path=text())
    places = fields(any=BOOLEAN, matchNames=items(text()))
    return fields("selector", selector=selector, namespaceSelector=places, podMetricsEndpoints=items(endpoint))


def _prometheus_rule() -> Schema:
    words = mapping(text())
    rule = fields("expr", expr=INT_OR_STRING, record=text(), alert=text(), labels=words, annotations=words)
    rule["properties"]["for"] = DURATION
    return fields(groups=items(fields("name", name=text(minLength=1), rules=items(rule)), "name"))


KINDS = {"PodMonitor": _pod_monitor, "PrometheusRule": _prometheus_rule}


def install(cluster: ControlPlane) -> None:
    """Let the cluster have these kinds."""
    for kind, spec in KINDS.items():
        plural = f"{kind.lower()}s"
        schema = {"openAPIV3Schema": fields("spec", spec=spec())}
        definition: dict[str, Any] = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(definition))
        cluster.established(f"crd/{plural}.{GROUP}")
