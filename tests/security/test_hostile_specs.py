"""Specs that are meant to do harm, on a real API server: refused, or harmless, and no other serving sees any of it."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from paceline_operator import naming
from tests.cluster.operators import PATIENCE_SECONDS, Operator, Place

pytestmark = pytest.mark.cluster

LATE_SECONDS = PATIENCE_SECONDS
"""Until a change of a serving that is well is done, on a machine that others share: where the watch ends, never."""
MAX_RSS_MIB = 250.0


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
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
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
    place.serve("sound", replicas=0)
    place.child("Deployment", "sound")
    tokens = iter(range(1, 1000))

    def check() -> None:
        wanted = 64 + next(tokens)
        changed = place.patch(naming.KIND_SERVING, "sound", {"spec": {"engine": {"maxNumSeqs": wanted}}})
        generation = changed["metadata"]["generation"]

        def done() -> bool:
            status = (place.get(naming.KIND_SERVING, "sound") or {}).get("status", {})
            return bool(status.get("observedGeneration") == generation)

        place.wait("a change of a serving that is well", done, LATE_SECONDS)
        assert operator.healthy()
        assert rss_mib(operator) < MAX_RSS_MIB

    return check


def nested(depth: int) -> str:
    """Of a podTemplate, as JSON: Python's own writer does not go so deep."""
    return '"engine": {"podTemplate": ' + '{"spec":' * depth + "{}" + "}" * depth + "}"


def engine(**fields: Any) -> str:
    return f'"engine": {json.dumps(fields)}'


REFUSED, STORED, TAKEN = "refused by the API server", "stored and not accepted", "accepted"
SPECS: dict[str, tuple[str, str]] = {
    "deep-900": (nested(900), STORED),
    "deep-3000": (nested(3000), STORED),
    "deep-20000": (nested(20_000), REFUSED),
    "huge-text": (engine(podTemplate={"metadata": {"annotations": {"a": "x" * 1_000_000}}}), TAKEN),
    "too-huge": (engine(podTemplate={"metadata": {"annotations": {"a": "x" * 4_000_000}}}), REFUSED),
    "wide": (engine(podTemplate={"spec": {f"a{i}": i for i in range(5_000)}}), TAKEN),
    "long-argument": (engine(extraArgs=["x" * 100_000]), REFUSED),
    "many-arguments": (engine(extraArgs=["--seed"] * 10_000), REFUSED),
    "nul": (engine(extraArgs=["--seed", "a\u0000b"]), TAKEN),
    "overflow": ('"replicas": 1e400', REFUSED),
    "large-number": (f'"replicas": {2**63}', REFUSED),
    "secret-elsewhere": ('"model": {"source": "hf://a/b", "tokenSecretName": "kube-system/token"}', REFUSED),
    "claim-elsewhere": ('"model": {"source": "pvc://../kube-system/claim"}', REFUSED),
    "traversal": ('"model": {"source": "/models/../../etc/shadow"}', STORED),
    "development": (engine(env=[{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]), STORED),
    "own-variable": (engine(env=[{"name": "PACELINE_TOKEN_FILE", "value": "/x"}]), STORED),
    "command": (
        engine(podTemplate={"spec": {"containers": [{"name": "engine", "command": ["sh", "-c", "id"]}]}}),
        STORED,
    ),
    "a-file-as-url": ('"metrics": {"prometheus": {"url": "file:///etc/passwd"}}', REFUSED),
    "quoted-label": ('"metrics": {"prometheus": {"url": "http://x.example", "labels": {"a\\"} or x{": "b"}}}', REFUSED),
}
"""JSON that is put into the spec of a serving, and what comes of it."""
MAX_STATUS_BYTES = 32_000


def told(place: Place, name: str, path: str) -> str:
    """A part of a serving, by kubectl: Python does not read all of them."""
    return place.kubectl("get", naming.PLURAL_SERVING, name, f"--output=jsonpath={path}")


def judged(place: Place, name: str, reason: str) -> None:
    """Wait until `Accepted` has this reason."""
    path = '{.status.conditions[?(@.type=="Accepted")].reason}'
    place.wait(f"{name} to be {reason}", lambda: told(place, name, path) == reason)


def test_a_spec_that_is_nested_deep_reaches_nobody_else(place: Place, operator: Operator, well: Any) -> None:
    well()
    status, text = sent(place, "deep", small(nested(3000)))
    assert status == 201, text
    well()
    operator.daemon.check()
    judged(place, "deep", "InvalidSpec")
    place.kubectl("delete", naming.PLURAL_SERVING, "deep")
    well()


@pytest.mark.long
def test_specs_that_mean_harm_reach_nobody_else(place: Place, operator: Operator, well: Any) -> None:
    well()
    answers = {name: sent(place, name, small(more)) for name, (more, _) in SPECS.items()}
    for name, (_, fate) in SPECS.items():
        status, text = answers[name]
        assert (status == 201) == (fate != REFUSED), f"{name}: HTTP {status}: {text[:500]}"
        assert status == 201 or 400 <= status < 500 or "too large" in text, f"{name}: HTTP {status}: {text[:500]}"
    well()
    for name, (_, fate) in SPECS.items():
        if fate != REFUSED:
            judged(place, name, "Valid" if fate == TAKEN else "InvalidSpec")
            assert len(told(place, name, "{.status}")) < MAX_STATUS_BYTES, name
    assert all(len(event["message"]) <= 1024 for event in place.list("Event"))
    well()
    gone = [name for name, (_, fate) in SPECS.items() if fate != REFUSED]
    place.kubectl("delete", naming.PLURAL_SERVING, *gone, "--wait=false")
    well()
