"""Specs that are meant to do harm, on a real API server: refused, or harmless, and no other serving sees any of it."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from paceline_operator import naming
from tests.cluster.operators import Operator, Place

pytestmark = pytest.mark.cluster

LATE_SECONDS = 15.0
"""Until a change of a serving that is well is done, beside whatever else there is, on a machine that others share."""
MAX_RSS_MIB = 250.0
DEPTHS = (900, 3000, 9000)


def sent(place: Place, name: str, spec: str) -> tuple[int, str]:
    """Create a serving; `spec` is JSON, as a client may send it that is none of ours. The API server's answer."""
    meta = json.dumps({"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, "metadata": {"name": name}})
    cluster = place.cluster
    request = urllib.request.Request(
        cluster.url + place.path(naming.KIND_SERVING),
        data=f'{meta[:-1]}, "spec": {spec}}}'.encode(),
        headers={"Authorization": f"Bearer {cluster.users['admin'].token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(cluster.authority.certificate))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")


def small(more: str = "") -> str:
    """A spec of its own, and JSON of further fields."""
    spec = {"replicas": 0, "model": {"source": "hf://owner/target"}, "speculation": {"method": "ngram"}}
    return json.dumps(spec)[:-1] + (f", {more}}}" if more else "}")


def rss_mib(operator: Operator) -> float:
    status = Path(f"/proc/{operator.daemon.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


@pytest.fixture
def well(operator: Operator, place: Place) -> Any:
    """Asserts, when called, that a change of another serving is done in time."""
    place.serve("well", replicas=0)
    place.child("Deployment", "well")
    tokens = iter(range(1, 1000))

    def check() -> None:
        begun, wanted = time.monotonic(), 64 + next(tokens)
        changed = place.patch(naming.KIND_SERVING, "well", {"spec": {"engine": {"maxNumSeqs": wanted}}})
        generation = changed["metadata"]["generation"]

        def done() -> bool:
            status = (place.get(naming.KIND_SERVING, "well") or {}).get("status", {})
            return bool(status.get("observedGeneration") == generation)

        place.wait("a change of a serving that is well", done, LATE_SECONDS)
        assert time.monotonic() - begun < LATE_SECONDS
        assert operator.healthy()
        assert rss_mib(operator) < MAX_RSS_MIB

    return check


def nested(depth: int) -> str:
    """Of a podTemplate, as JSON: Python's own writer does not go so deep."""
    return '"engine": {"podTemplate": ' + '{"spec":' * depth + "{}" + "}" * depth + "}"


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_spec_that_is_nested_deep_reaches_nobody_else(
    place: Place, operator: Operator, well: Any, depth: int
) -> None:
    well()
    status, text = sent(place, f"deep-{depth}", small(nested(depth)))
    try:
        assert status in (201, 400, 413, 422), text
        well()
        operator.daemon.check()
    finally:
        place.kubectl("delete", naming.PLURAL_SERVING, f"deep-{depth}", "--ignore-not-found")
    well()
