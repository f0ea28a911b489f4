"""The chart, offline: it renders, refuses unknown values, and asks for no more rights than the operator uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from paceline_operator import leadership, naming, settings
from paceline_operator.clients.keys import parse
from paceline_operator.clients.kube import RESOURCES
from paceline_operator.kinds import OPTIONAL
from paceline_operator.process import CHILDREN, PLURALS
from paceline_operator.resources import Defaults
from tests.harness.binaries import ensure_built
from tests.harness.chart import CHART, helm, one, rendered

READ = {"get", "list", "watch"}
WRITE = {"create", "patch", "delete"}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="module", autouse=True)
def _helm_is_there() -> None:
    ensure_built()


def operator(*arguments: str) -> dict[str, Any]:
    container: dict[str, Any] = one(rendered(*arguments), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return container


def environment(*arguments: str) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in operator(*arguments)["env"]}


def rights(document: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """(API group, resource) → verbs."""
    return {
        (group, resource): set(rule["verbs"])
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def cluster_role(*arguments: str) -> dict[str, Any]:
    """The operator's."""
    return one(rendered("--set=rbac.aggregate=false", *arguments), "ClusterRole")


def test_the_default_objects() -> None:
    kinds = sorted(document["kind"] for document in rendered())
    assert kinds == sorted(
        [
            *(
                "ServiceAccount",
                "Secret",
                "NetworkPolicy",
                "Role",
                "RoleBinding",
                "ClusterRoleBinding",
                "Deployment",
                "Pod",
            ),
            *3 * ["ClusterRole"],  # the operator's; for people: view, edit
        ]
    )


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_pods_meet_the_restricted_standard_with_a_read_only_root(kind: str) -> None:
    document = one(rendered(), kind)
    pod = document["spec"]["template"]["spec"] if kind == "Deployment" else document["spec"]
    assert pod["automountServiceAccountToken"] is True, "the service account says no, and both ask the API server"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_the_operator_reads_every_variable_that_the_chart_sets() -> None:
    images = ("engine", "cpuEngine", "plugin")
    given = [f"--set=defaults.{name}Image=registry.example/{name}:1" for name in images]
    read = settings.read(environment("--set=watchNamespaces={a,b}", "--set=leaseSeconds=30", *given))
    assert read.watch_namespaces == {"a", "b"}
    assert read.lease_seconds == 30
    assert str(read.master_key_file) == "/etc/paceline/master-key/keys"
    assert [read.defaults.engine_image, read.defaults.cpu_engine_image, read.defaults.plugin_image] == [
        f"registry.example/{name}:1" for name in images
    ]


def test_the_plugin_image_is_of_the_operators_version_by_default() -> None:
    read = settings.read(environment())
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert read.defaults.plugin_image == f"paceline-plugin:{version}"
    assert operator()["image"] == f"paceline-operator:{version}"


def test_a_bare_uid_has_a_name() -> None:
    """getpass.getuser(), which kopf calls, raises for a uid without an account unless the environment names one."""
    assert environment()["USER"]


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + 64 * "a"
    assert operator(f"--set=image.digest={digest},image.tag=x")["image"] == f"paceline-operator@{digest}"


def test_pod_labels_are_those_that_engine_network_policies_let_in() -> None:
    labels = one(rendered("--set=podLabels.app\\.kubernetes\\.io/component=x"), "Deployment")["spec"]["template"]
    wanted = Defaults(engine_image="", cpu_engine_image="", plugin_image="").operator_labels
    assert wanted.items() <= labels["metadata"]["labels"].items()


def test_selectors_carry_no_version() -> None:
    selector = one(rendered(), "Deployment")["spec"]["selector"]["matchLabels"]
    assert set(selector) == {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")}


def test_rights_are_those_that_the_operator_uses() -> None:
    granted = rights(cluster_role())
    for group_version, plural in OPTIONAL.values():
        assert granted.pop((group_version.partition("/")[0], plural)) == {"get", "list"} | WRITE, "not watched"
    watched = {(version.rpartition("/")[0], plural) for version, plural in map(RESOURCES.__getitem__, CHILDREN)}
    expected: dict[tuple[str, str], set[str]] = dict.fromkeys(watched, READ | WRITE)
    for plural in PLURALS:
        expected |= {(naming.GROUP, plural): READ, (naming.GROUP, f"{plural}/status"): {"patch"}}
    expected |= {
        (naming.GROUP, f"{naming.PLURAL_SERVING}/scale"): {"update"},
        (naming.GROUP, f"{naming.PLURAL_SERVING}/finalizers"): {"update"},
        ("", "secrets"): WRITE,
        ("", "pods"): {"list", "watch", "delete"},
        ("", "pods/log"): {"get"},
        ("", "configmaps"): {"get", "create", "patch"},
        ("", "events"): {"list", "create"},
    }
    assert granted == expected
    known = {plural for _, plural in RESOURCES.values()}
    assert known == {resource for _, resource in granted if "/" not in resource} | {"leases"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("leaderWorkerSet", "LeaderWorkerSet"),
        ("inferencePool", "InferencePool"),
        ("httpRoute", "HTTPRoute"),
        ("scaledObject", "ScaledObject"),
    ],
)
def test_rights_to_kinds_of_others_can_be_left_out_one_by_one(name: str, kind: str) -> None:
    everything = rights(cluster_role())
    without = rights(cluster_role(f"--set=integrations.{name}=false"))
    group_version, plural = OPTIONAL[kind]
    assert everything.keys() - without.keys() == {(group_version.partition("/")[0], plural)}


def test_people_get_paceline_with_what_they_have_in_a_namespace() -> None:
    roles = {document["metadata"]["name"]: document for document in rendered() if document["kind"] == "ClusterRole"}
    view, edit = (roles[f"paceline-system:paceline-{name}"] for name in ("view", "edit"))
    kinds = {(naming.GROUP, plural) for plural in PLURALS}
    scale = (naming.GROUP, f"{naming.PLURAL_SERVING}/scale")
    assert rights(view) == {**dict.fromkeys(kinds, READ), scale: {"get"}}
    change = {"create", "update", "patch", "delete", "deletecollection"}
    assert rights(edit) == {**dict.fromkeys(kinds, change), scale: {"update", "patch"}}
    aggregated = {name for role in (view, edit) for name in role["metadata"]["labels"] if "aggregate-to" in name}
    assert aggregated == {f"rbac.authorization.k8s.io/aggregate-to-{name}" for name in ("view", "edit", "admin")}


def test_the_operators_pods_take_connections_to_one_port() -> None:
    policy = one(rendered(), "NetworkPolicy")["spec"]
    selector = one(rendered(), "Deployment")["spec"]["selector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"] == selector
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]


def test_the_lease_is_written_in_the_operators_namespace_alone() -> None:
    role = one(rendered(), "Role")
    assert role["metadata"]["namespace"] == "paceline-system"
    assert rights(role) == {("coordination.k8s.io", "leases"): {"get", "create", "update"}}


def test_named_namespaces_get_a_role_each_and_nothing_cluster_wide() -> None:
    documents = rendered("--set=watchNamespaces={a,b}")
    assert not [document for document in documents if document["kind"].startswith("Cluster")]
    roles = {document["metadata"]["namespace"]: document for document in documents if document["kind"] == "Role"}
    assert set(roles) == {"a", "b", "paceline-system"}
    assert rights(roles["a"]) == rights(roles["b"]) == rights(cluster_role())
    watched = {"name": "PACELINE_WATCH_NAMESPACES", "value": "a,b"}
    assert watched in operator("--set=watchNamespaces={a,b}")["env"]
    assert watched["name"] not in {variable["name"] for variable in operator()["env"]}


def test_the_master_key_is_usable_kept_and_can_be_ones_own() -> None:
    secret = one(rendered(), "Secret")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    key = yaml.safe_load(f"!!binary {secret['data']['keys']}")
    assert parse(key).previous is None
    assert secret["data"] != one(rendered("--set=replicas=2"), "Secret")["data"]
    own = rendered("--set=masterKey.existingSecret=mine,masterKey.entry=k")
    assert not [document for document in own if document["kind"] == "Secret"]
    (volume,) = (
        volume["secret"]
        for volume in one(own, "Deployment")["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    )
    assert (volume["secretName"], volume["items"]) == ("mine", [{"key": "k", "path": "k"}])


def test_the_test_pod_asks_for_the_lease_that_the_operator_holds() -> None:
    (container,) = one(rendered(), "Pod")["spec"]["containers"]
    script = container["command"][2]
    compile(script, "healthy.yaml", "exec")
    assert f'read_namespaced_lease("{leadership.LEASE_NAME}", "paceline-system")' in script


def test_names_stay_within_their_limit() -> None:
    for document in rendered(release="r" * 53):
        assert len(document["metadata"]["name"]) <= 63 or document["kind"].startswith("ClusterRole")


def test_notes_tell_about_crds_and_uninstall() -> None:
    notes = helm("install", "paceline", CHART, "--dry-run=client", "--namespace", "n").stdout.partition("NOTES:")[2]
    crds, servings, uninstall, kinds, key = (
        notes.index(words)
        for words in (
            "helm show crds CHART | kubectl apply --server-side",
            "kubectl delete speculativeservings --all",
            "helm uninstall paceline --namespace n",
            "kubectl delete crd",
            "delete secret paceline-master-key",
        )
    )
    assert crds < servings < uninstall < kinds < key


def objects(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from objects(member, f"{path}.{name}")


def test_the_schema_describes_exactly_the_values_and_their_defaults_are_valid() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    for path, schema in objects(SCHEMA, "values"):
        if "properties" not in schema:
            continue
        value = VALUES
        for name in path.split(".")[1:]:
            value = value[name]
        assert schema["additionalProperties"] is False, path
        if path != "values.resources":  # the sections of a container's resources are the user's to choose
            assert set(schema["properties"]) - {"global"} == set(value), path


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("replica=2", "at ''"),
        ("image.repo=x", "/image"),
        ("image.digest=latest", "/image/digest"),
        ("image.repository=", "/image/repository"),
        ("masterKey.value=secret", "/masterKey"),
        ("replicas=-1", "/replicas"),
        ("leaseSeconds=1", "/leaseSeconds"),
        ("watchNamespaces={A}", "/watchNamespaces/0"),
        ("rbac.create=perhaps", "/rbac/create"),
        ("serviceAccount.anotations.a=b", "/serviceAccount"),
        ("defaults.image=x", "/defaults"),
        ("resources.limit.cpu=1", "/resources"),
        ("fullnameOverride=Upper", "/fullnameOverride"),
        ("integrations.kubeRay=true", "/integrations"),
        ("integrations.httpRoute=yes", "/integrations/httpRoute"),
        ("networkPolicy.to[0].podSelector=x", "/networkPolicy"),
    ],
)
def test_values_that_nobody_reads_are_refused(setting: str, where: str) -> None:
    refused = helm("template", "paceline", CHART, "--set", setting, check=False)
    assert refused.returncode != 0
    assert where in refused.stderr


def test_values_of_parent_charts_are_let_through() -> None:
    helm("template", "paceline", CHART, "--set", "global.registry=x")
