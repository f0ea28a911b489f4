"""The verbs of `paceline` about a cluster, on the real API server: what they print, what they change, how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from paceline_operator import naming
from paceline_operator.api.serving import ServingSpec
from paceline_operator.resources import revision
from paceline_operator.rollout.diff import boot_spec
from tests.cluster.operators import Place
from tests.cluster.shell import Here, Shell
from tests.harness.controlplane import ControlPlane
from tests.servings import serving

pytestmark = pytest.mark.cluster


@pytest.fixture
def shell(crds: ControlPlane, namespace: str, tmp_path: Path) -> Shell:
    return Here(crds, namespace, tmp_path)


def spec(place: Place, name: str) -> dict[str, object]:
    found: dict[str, object] = (place.get(naming.KIND_SERVING, name) or {})["spec"]
    return found


def test_status_in_every_form(crds: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """As processes of their own, as people run them."""
    shell, place = Shell(crds, namespace, tmp_path), Place(crds, namespace)
    assert shell("status") == ""
    place.serve("chat")
    place.serve("code", replicas=3)
    head, first, second = shell("status").splitlines()
    assert head.split()[:2] == ["NAMESPACE", "NAME"]
    assert (first.split()[:2], second.split()[:2]) == ([namespace, "chat"], [namespace, "code"])
    assert second.split()[-1] == "0/3"
    assert "hf://owner/target" in shell("status", "-o", "wide")
    assert shell("status", "-o", "name") == (
        "speculativeserving.paceline.dev/chat\nspeculativeserving.paceline.dev/code\n"
    )
    whole = json.loads(shell("status", "-o", "json"))
    assert [item["kind"] for item in whole["items"]] == [naming.KIND_SERVING] * 2
    one = yaml.safe_load(shell("status", f"{namespace}/chat", "-o", "yaml", "--context", "elsewhere"))
    assert (one["metadata"]["name"], "managedFields" in one["metadata"]) == ("chat", False)
    assert namespace in shell("status", "--all-namespaces", "--context", "elsewhere", command="kubectl-paceline")
    assert shell("top").splitlines()[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert len(shell("top", "chat", "--count", "2", "--interval", "0.5").splitlines()) >= 2
    assert shell("history", "chat") == shell("table", "chat") == ""
    assert json.loads(shell("table", "chat", "-o", "json"))["metadata"]["name"] == "chat"


def test_a_pin_is_a_change_of_the_spec_and_is_taken_back(crds: ControlPlane, namespace: str, shell: Shell) -> None:
    place = Place(crds, namespace)
    place.serve("chat", tuning={"mode": "Observe", "intervalSeconds": 7})
    assert f"{namespace}/chat is pinned to k 2" in shell("pin", "chat", "2")
    tuning = spec(place, "chat")["tuning"]
    assert isinstance(tuning, dict)
    assert (tuning["mode"], tuning["table"], tuning["intervalSeconds"]) == ("Manual", [{"fromRequests": 1, "k": 2}], 7)
    shell("pin", "chat", "0")
    assert "mode Observe" in shell("unpin", "chat")
    tuning = spec(place, "chat")["tuning"]
    assert isinstance(tuning, dict)
    assert (tuning["mode"], "table" in tuning) == ("Observe", False)
    assert "not pinned" in shell("unpin", "chat", status=2)
    assert "maxTokens 5" in shell("pin", "chat", "9", status=2)
    assert "pin" in shell("pin", "chat", "99", status=2)
    shell("suspend", "chat")
    assert spec(place, "chat")["suspend"] is True
    shell("resume", "chat", "-n", namespace, "--context", "elsewhere")
    assert spec(place, "chat")["suspend"] is False


def test_a_mistake_is_one_line(shell: Shell) -> None:
    assert "no SpeculativeServing ghost in namespace" in shell("status", "ghost", status=2)
    assert "no SpeculativeServing ghost" in shell("pin", "ghost", "1", status=2)
    said = shell("status", "--context", "nowhere", status=2)
    assert "nowhere" in said
    assert len(said.splitlines()) == 1
    shell.kubeconfig.write_text(shell.kubeconfig.read_text().replace("https://127.0.0.1:", "https://127.0.0.1:1", 1))
    assert "status" in shell("status", status=2)


def test_the_shell_completes_names_of_servings(crds: ControlPlane, namespace: str, shell: Shell) -> None:
    place = Place(crds, namespace)
    for name in ("chat", "code", "draw"):
        place.serve(name)
    asked = {"_PACELINE_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    for verb in ("explain", "status", "rollback"):
        assert shell(more=asked | {"COMP_WORDS": f"paceline {verb} c"}).split() == ["chat", "code"]
    shell.kubeconfig.write_text("none")
    assert shell(more=asked | {"COMP_WORDS": "paceline explain c"}).split() == []


def test_a_rollback_asks_for_the_template_before(crds: ControlPlane, namespace: str, shell: Shell) -> None:
    place = Place(crds, namespace)
    place.serve("chat", engine={"env": [{"name": "A", "value": "2"}]})
    assert "no other template is stored" in shell("rollback", "chat", status=2)
    stored = {}
    for number, engine in enumerate(
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}), 1
    ):
        of = ServingSpec.model_validate({**spec(place, "chat"), "engine": engine})
        one = stored[number] = revision.of("chat", {"spec": {"containers": []}}, boot_spec(of), "1", number)
        body = revision.build(serving(), one)
        labels = {naming.LABEL_SERVING: "chat"}
        body["metadata"] |= {"namespace": namespace, "labels": labels, "ownerReferences": []}
        place.kubectl("apply", "-f", "-", input=json.dumps(body))
    place.patch(naming.KIND_SERVING, "chat", {"status": {"rollout": {"revision": stored[2].name}}}, "status")
    said = shell("rollback", "chat")
    assert f"{namespace}/chat goes back to revision {stored[1].name}: engine.env[A].value" in said
    undone = spec(place, "chat")["engine"]
    assert isinstance(undone, dict)
    assert undone["env"] == [{"name": "A", "value": "1"}]
    assert "asks for revision" in shell("rollback", "chat", "--to", stored[1].name, status=2)
    assert f"there are: {', '.join(sorted(one.name for one in stored.values()))}" in shell(
        "rollback", "chat", "--to", "x", status=2
    )


def test_doctor_names_what_is_missing(crds: ControlPlane, namespace: str, shell: Shell) -> None:
    checks = json.loads(shell("doctor", "--operator-namespace", namespace, "-o", "json", status=1))
    graded = {(check["name"], check["grade"]) for check in checks}
    assert {("kubernetes", "pass"), ("crds", "pass"), ("operator", "warn"), ("lease", "fail")} <= graded
    assert ("crds", "warn") not in graded, "the schema as stored is the schema as generated"
    assert all(check["remedy"] for check in checks if check["grade"] != "pass")
    assert "REMEDY" in shell("doctor", "--operator-namespace", namespace, status=1)


def test_doctor_finds_a_living_operator(place: Place, module_namespace: str, shell: Shell) -> None:
    place.serve("chat")
    place.condition("chat", "Accepted", "Valid")
    found = json.loads(shell("doctor", "--operator-namespace", module_namespace, "-o", "json"))
    assert [check["grade"] for check in found if check["name"] == "lease"] == ["pass"]
