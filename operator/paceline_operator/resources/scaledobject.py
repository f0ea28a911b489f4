"""The ScaledObject by which KEDA scales a serving through its scale subresource.

What it sets follows KEDA's own reference: https://keda.sh/docs/latest/reference/scaledobject-spec/ and
https://keda.sh/docs/latest/scalers/prometheus/.
"""

from __future__ import annotations

from typing import Any

from paceline_operator import naming
from paceline_operator.api.autoscaling import Autoscaling, ScaleDown, ScaleUp
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.kinds import OPTIONAL
from paceline_operator.resources import leaderworkerset
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata

KIND = "ScaledObject"
FAILURES = 3
"""Queries that fail in a row before the fallback counts."""
STEP_SECONDS = 60
"""For which a step's pods are counted by the HorizontalPodAutoscaler that KEDA makes."""


def build(serving: SpeculativeServing) -> Manifest:
    """ScaledObject `<serving>`, for mode KEDA.

    Numbers that are missing are an error (ignoreNullValues), not a load of 0; then at least as many pods as there are
    stay (fallback). A model that loads for long is not scaled away before it served (initialCooldownPeriod).
    """
    scaling, prometheus = serving.spec.autoscaling, serving.spec.metrics.prometheus
    address = scaling.keda.server_address or (prometheus.url if prometheus else None)
    return {
        "apiVersion": OPTIONAL[KIND][0],
        "kind": KIND,
        "metadata": child_metadata(serving),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": naming.API_VERSION,
                "kind": naming.KIND_SERVING,
                "name": serving.metadata.name,
            },
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "cooldownPeriod": scaling.keda.cooldown_period_seconds,
            "initialCooldownPeriod": serving.spec.engine.startup_timeout_seconds,
            "fallback": {
                "failureThreshold": FAILURES,
                "replicas": max(1, scaling.min_replicas),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {
                        "scaleUp": _direction(scaling.behavior.scale_up),
                        "scaleDown": _direction(scaling.behavior.scale_down),
                    }
                }
            },
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": address,
                        "query": query(scaling, serving.metadata.namespace, serving.metadata.name),
                        "threshold": str(scaling.target_running_requests),
                        "ignoreNullValues": "false",
                    },
                }
            ],
        },
    }


def query(scaling: Autoscaling, namespace: str, name: str) -> str:
    """PromQL for the requests of all pods together; where none is scraped, for those that wait at the router."""
    # Pods of Deployments or leaders of LeaderWorkerSets, and of no serving whose name begins alike. Plain pods are not
    # scaled: what they serve is no load of those that are.
    canary = f"(-{naming.TRACK_CANARY})?"
    groups = leaderworkerset.name(name, naming.TRACK_STABLE)
    pods = f"{name}{canary}-[0-9a-z]+-[0-9a-z]{{5}}|{groups}{canary}-[0-9]+"
    of = f'{{namespace="{namespace}",pod=~"{pods}"}}'
    running = scaling.keda.query or f"sum(vllm:num_requests_running{of}) + sum(vllm:num_requests_waiting{of})"
    wake_up = scaling.keda.wake_up_query
    return f"({running}) or ({wake_up})" if wake_up else running


def _direction(rules: ScaleUp | ScaleDown) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": rules.stabilization_window_seconds,
        "policies": [{"type": "Pods", "value": rules.max_step_replicas, "periodSeconds": STEP_SECONDS}],
    }
