"""The HTTPRoute: requests from Gateways to the speculating pods, and a share of them to plain pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.kinds import OPTIONAL
from paceline_operator.resources import inferencepool
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata

KIND = "HTTPRoute"


def build(serving: SpeculativeServing, ready: Mapping[str, bool]) -> Manifest | None:
    """HTTPRoute `<serving>`, where spec asks for one. `ready`: whether a track has a pod that answers."""
    routing = serving.spec.routing
    if routing.gateway is None:
        return None
    gateway = routing.gateway
    parents = [parent.model_dump(mode="json", by_alias=True, exclude_none=True) for parent in gateway.parent_refs]
    timeout = f"{gateway.request_timeout_seconds}s"
    return {
        "apiVersion": OPTIONAL[KIND][0],
        "kind": KIND,
        "metadata": child_metadata(serving),
        "spec": {
            "parentRefs": parents,
            **({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {}),
            "rules": [{"backendRefs": _backends(serving, ready), "timeouts": {"request": timeout}}],
        },
    }


def weights(plain_percent: int, stable_ready: bool, plain_ready: bool) -> tuple[int, int]:
    """Weights of speculating and plain pods. A side without a pod that answers gets nothing while the other has one:
    pods load for minutes, and what is sent to none fails."""
    if stable_ready != plain_ready:
        return (100, 0) if stable_ready else (0, 100)
    return 100 - plain_percent, plain_percent


def _backends(serving: SpeculativeServing, ready: Mapping[str, bool]) -> list[dict[str, Any]]:
    routing, name = serving.spec.routing, serving.metadata.name
    if routing.inference_pool is None:
        engines = _service(name)
    else:
        group = OPTIONAL[inferencepool.KIND][0].partition("/")[0]
        engines = {"group": group, "kind": inferencepool.KIND, "name": name}
    if routing.plain is None:
        return [engines | {"weight": 1}]
    sides = ready.get(naming.TRACK_STABLE, False), ready.get(naming.TRACK_PLAIN, False)
    speculating, plain = weights(routing.plain.weight_percent, *sides)
    without = _service(naming.child(name, naming.TRACK_PLAIN))
    return [engines | {"weight": speculating}, without | {"weight": plain}]


def _service(name: str) -> dict[str, Any]:
    return {"kind": "Service", "name": name, "port": naming.SERVING_PORT}
