"""Operators without the rights or the place they need: they say so, go on, and act once it is mended."""

from __future__ import annotations

import json

import pytest
import yaml

from paceline_operator import naming
from tests.cluster.operators import Place, account, start, wait_for_leader
from tests.harness.chart import rendered
from tests.harness.controlplane import ControlPlane

pytestmark = pytest.mark.cluster


def _roles(namespace: str, without: str) -> str:
    """The chart's Role in this namespace, lacking what it says about one resource."""
    documents = [
        d for d in rendered(f"--set=watchNamespaces={{{namespace}}}", namespace=namespace) if d["kind"] == "Role"
    ]
    for document in documents:
        document["rules"] = [rule for rule in document["rules"] if without not in rule["resources"]]
    return yaml.safe_dump_all(documents)


def test_a_missing_right_is_said_in_status_and_acted_on_once_it_is_there(crds: ControlPlane, namespace: str) -> None:
    place = Place(crds, namespace)
    kubeconfig = account(crds, namespace, watch=namespace)
    place.kubectl("apply", "-f", "-", input=_roles(namespace, "deployments"))
    operator = start(crds, "operator-rights", namespace, kubeconfig, watch=namespace)
    try:
        place.serve("chat")
        failed = place.condition("chat", "Progressing", "ApplyFailed")
        # One rule grants both, and which is missed first is the pass's own order.
        assert "deployments" in failed["message"] or "controllerrevisions" in failed["message"]
        assert "forbidden" in failed["message"]
        assert place.conditions("chat")["Accepted"]["status"] == "True"
        assert operator.healthy()
        place.kubectl("apply", "-f", "-", input=_roles(namespace, "nothing"))
        place.kubectl("annotate", naming.PLURAL_SERVING, "chat", "nudge=1")
        place.child("Deployment", "chat")
        place.condition("chat", "Progressing", "RollingOut")
        operator.daemon.check()
    finally:
        operator.daemon.stop()
    assert "Traceback" not in operator.log(), operator.log()


def test_without_a_namespace_for_its_lease_an_operator_waits_for_one(crds: ControlPlane, namespace: str) -> None:
    """The namespace to look after is there, the one for the Lease is not yet."""
    place, home = Place(crds, namespace), f"{namespace}-home"
    operator = start(crds, "operator-homeless", home, crds.kubeconfig, watch=namespace)
    try:
        place.serve("chat")
        place.wait("an attempt at the Lease", lambda: "Lease not read or written" in operator.log())
        assert not operator.leads()
        assert operator.healthy()
        assert place.get("Deployment", "chat") is None
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}}
        place.kubectl("create", "-f", "-", input=json.dumps(body))
        wait_for_leader(operator)
        place.child("Deployment", "chat")
    finally:
        operator.daemon.stop()
        crds.kubectl("delete", "namespace", home, "--wait=false", check=False)
    assert "Traceback" not in operator.log(), operator.log()
