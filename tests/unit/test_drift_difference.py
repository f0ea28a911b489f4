"""Drift: nothing where an apply would change nothing, and a path for whatever it would change."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline_operator import naming
from paceline_operator.drift import difference, digest
from tests.fakes import FakeKube, Object

NAMES = st.sampled_from(["alpha", "beta", "gamma", "delta"])
LEAVES = st.one_of(
    st.integers(0, 9), st.sampled_from(["x", "y", ""]), st.booleans(), st.lists(st.integers(0, 3), max_size=3)
)


def _named(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists that Kubernetes merges by name."""
    items = st.dictionaries(NAMES, values, max_size=3)
    return st.dictionaries(NAMES, items, min_size=1, max_size=3).map(
        lambda by_name: [{**fields, "name": name} for name, fields in by_name.items()]
    )


TREES = st.recursive(
    LEAVES, lambda v: st.one_of(st.dictionaries(NAMES, v, min_size=1, max_size=3), _named(v)), max_leaves=6
)
SPECS = st.dictionaries(NAMES, TREES, min_size=1, max_size=3)


def manifest(spec: Object, **metadata: Any) -> Object:
    meta = {"name": "child", "namespace": "team", "labels": {"a": "b"}, **metadata}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": copy.deepcopy(spec)}


def applied(*bodies: Object) -> Object:
    """What the server has after these applies, one after the other."""
    kube = FakeKube()
    for body in bodies:
        asyncio.run(kube.apply(body))
    return kube.find("Service", "child")


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything that an apply sets; items of lists by index, their names left out."""
    if isinstance(tree, dict) and tree:
        return [p for k, v in tree.items() if k != "name" for p in leaves(v, (*path, k))]
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return [p for i, v in enumerate(tree) for p in leaves(v, (*path, i))]
    return [path] if path else []


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


@given(SPECS)
def test_what_was_applied_does_not_differ(spec: Object) -> None:
    assert difference(manifest(spec), applied(manifest(spec))) is None


@given(SPECS, st.data())
def test_what_others_add_does_not_differ(spec: Object, data: st.DataObject) -> None:
    live = applied(manifest(spec))

    def add(tree: Any) -> None:
        if isinstance(tree, dict):
            for value in list(tree.values()):
                add(value)
            if data.draw(st.booleans()):
                tree["theirs"] = {"deep": [1]}
        elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
            for item in list(tree):
                add(item)
            tree.insert(0, {"name": "theirs", "image": "sidecar"})

    add(live["spec"])
    live["metadata"]["annotations"] = {"kubectl": "1"}
    live["status"] = {"replicas": 3}
    assert difference(manifest(spec), live) is None


@given(SPECS, st.data())
def test_a_changed_or_removed_field_of_ours_differs(spec: Object, data: st.DataObject) -> None:
    paths = leaves(spec)
    assume(paths)
    path = data.draw(st.sampled_from(paths))
    live = applied(manifest(spec))
    parent = at(live["spec"], path[:-1])
    if data.draw(st.booleans()):
        parent[path[-1]] = "something else entirely"
    elif isinstance(parent, dict):
        del parent[path[-1]]
    else:
        parent[path[-1]] = {}
    found = difference(manifest(spec), live)
    assert found is not None
    assert found.startswith("spec")


@given(SPECS, st.data())
def test_a_field_that_is_no_longer_set_differs_until_it_is_applied(spec: Object, data: st.DataObject) -> None:
    paths = [path for path in leaves(spec) if isinstance(path[-1], str)]
    assume(paths)
    path = data.draw(st.sampled_from(paths))
    less = copy.deepcopy(spec)
    del at(less, path[:-1])[path[-1]]
    assert difference(manifest(less), applied(manifest(spec))) is not None
    assert difference(manifest(less), applied(manifest(spec), manifest(less))) is None


@given(SPECS, SPECS)
def test_digests_tell_what_was_applied_and_not_what_happened_since(one: Object, other: Object) -> None:
    live = applied(manifest(one))
    before = digest(live)
    live["metadata"] |= {"resourceVersion": "99", "generation": 7, "managedFields": []}
    live["status"] = {"anything": True}
    assert digest(live) == before
    assert (digest(manifest(one)) == digest(manifest(other))) == (one == other and repr(one) == repr(other))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"metadata": {"labels": {"a": "c"}}}, "metadata.labels.a"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences[u]"),
        ({"spec": {"ports": [{"port": 80, "name": "http"}]}}, "spec.ports[http].port"),
        ({"spec": {"ports": []}}, "spec.ports[http]"),
        ({"spec": {"ports": None}}, "spec.ports"),
        ({"spec": {"args": ["-a"]}}, "spec.args"),
        ({"spec": {"rules": [{"x": 1}]}}, "spec.rules"),
        ({"spec": {"rules": [{"x": 1}, {"x": 3}]}}, "spec.rules[1].x"),
        ({"spec": None}, "spec"),
        ({"metadata": {"managedFields": []}}, "metadata.managedFields"),
    ],
)
def test_paths_name_the_field(change: Object, path: str) -> None:
    spec = {"ports": [{"name": "http", "port": 8000}], "args": ["-a", "-b"], "rules": [{"x": 1}, {"x": 2}]}
    wanted = manifest(spec, ownerReferences=[{"uid": "u", "name": "demo"}])
    live = applied(wanted)
    for section, fields in change.items():
        live[section] = {**live[section], **fields} if isinstance(fields, dict) else fields
    assert difference(wanted, live) == path


def test_one_volume_may_be_mounted_twice() -> None:
    mounts = [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b", "readOnly": True}]
    live = applied(manifest({"mounts": mounts}))
    live["spec"]["mounts"] = mounts[::-1]
    assert difference(manifest({"mounts": mounts}), live) is None
    live["spec"]["mounts"] = mounts[:1]
    assert difference(manifest({"mounts": mounts}), live) == "spec.mounts[/b]"


def test_the_servers_notation_is_understood() -> None:
    """FieldsV1 as an API server wrote it: completed keys, set members, another manager's entries."""
    spec = {"ports": [{"containerPort": 8000, "name": "http"}], "finalizers": ["a"]}
    wanted = manifest(spec)
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {
            ".": {},
            "f:ports": {
                ".": {},
                'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:name": {}},
            },
            "f:finalizers": {".": {}, 'v:"a"': {}},
        },
    }
    other = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:other": {}}}}
    status = {"manager": naming.FIELD_MANAGER, "operation": "Apply", "subresource": "status", "fieldsV1": {}}
    ours = {"manager": naming.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    live = {**copy.deepcopy(wanted), "spec": copy.deepcopy(spec)}
    live["metadata"] = {**wanted["metadata"], "managedFields": [other, status, ours]}
    assert difference(wanted, live) is None
    fields["f:spec"]["f:finalizers"]['v:"b"'] = {}  # type: ignore[index]
    assert difference(wanted, live) == 'spec.finalizers."b"'


@pytest.mark.parametrize("rest", [{}, {"f:spec": {"f:ports": {}}}])
def test_what_somebody_added_to_a_selector_is_a_difference(rest: Object) -> None:
    """The map is one value: whoever changes it holds all of it, and we nothing (seen on a real API server)."""
    live = manifest({"selector": {"app": "chat", "evil": "1"}, "ports": []})
    ours = {
        "manager": naming.FIELD_MANAGER,
        "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}},
    }
    ours["fieldsV1"] |= rest
    live["metadata"]["managedFields"] = [ours]
    desired = manifest({"selector": {"app": "chat"}, "ports": []})
    assert difference(desired, live) == "spec.selector"
    live["spec"]["selector"].pop("evil")
    assert difference(desired, live) is None


def test_what_somebody_added_to_a_map_of_fields_is_theirs() -> None:
    live = manifest({"selector": {"app": "chat", "theirs": "1"}})
    fields = {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:selector": {"f:app": {}}}}
    live["metadata"]["managedFields"] = [{"manager": naming.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}]
    assert difference(manifest({"selector": {"app": "chat"}}), live) is None
