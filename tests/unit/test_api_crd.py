"""The CRDs: names, columns, subresources, bounds, and the command that writes and checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import V1CustomResourceDefinition

from paceline_operator import naming
from paceline_operator.api.crd import CRD_FOLDERS, KINDS, Kind, crd, generated, main, root_schema, stale
from paceline_operator.api.serving import SpeculativeServing

DEFINITIONS = {kind.name: crd(kind) for kind in KINDS}


def version(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DEFINITIONS[name]["spec"]["versions"][0]
    return found


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def test_the_serving_is_named_as_the_rest_of_the_operator_names_it() -> None:
    names = DEFINITIONS[naming.KIND_SERVING]["spec"]["names"]
    assert names["plural"] == naming.PLURAL_SERVING
    assert SpeculativeServing.__name__ == naming.KIND_SERVING


def test_short_names_are_unique() -> None:
    assert len({kind.short for kind in KINDS}) == len(KINDS) == 3


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_the_client_library_reads_it(definition: dict[str, Any]) -> None:
    V1CustomResourceDefinition.model_validate(definition)


def test_only_a_serving_scales_and_all_have_a_status() -> None:
    assert version("SpeculativeServing")["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert "default" in root_schema(SpeculativeServing)["properties"]["spec"]["properties"]["replicas"]
    for name in ("SpeculationExperiment", "SpeculationProfile"):
        assert version(name)["subresources"] == {"status": {}}


def test_columns_of_a_serving() -> None:
    columns = version("SpeculativeServing")["additionalPrinterColumns"]
    assert [column["name"] for column in columns if "priority" not in column] == [
        "Ready",
        "K",
        "Replicas",
        "Tier",
        "Age",
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_columns_and_rules_point_at_fields_that_exist(kind: Kind) -> None:
    schema = root_schema(kind.model)
    paths = {re.sub(r"^root", "", path) for path, _ in nodes(schema, "root")}
    for column in kind.columns:
        path = re.sub(r"\[\?\(.*?\)\]", "[]", column.path)
        assert path in paths or path == ".metadata.creationTimestamp"
    for path, node in nodes(schema, "root"):
        for rule in node.get("x-kubernetes-validations", []):
            assert f"{path}{rule.get('fieldPath', '')}".removeprefix("root") in paths


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_is_explained(kind: Kind) -> None:
    silent = [path for path, node in nodes(root_schema(kind.model), kind.name) if not node.get("description")]
    assert [path for path in silent if ".metadata" not in path and not path.endswith("[]")] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_number_and_list_of_a_spec_is_bounded(kind: Kind) -> None:
    spec = root_schema(kind.model)["properties"]["spec"]
    for path, node in nodes(spec, "spec"):
        if node["type"] == "integer" and "enum" not in node:
            assert "minimum" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
        if node["type"] == "string":
            assert {"maxLength", "enum", "format"} & set(node), path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_status_has_no_defaults_and_conditions_are_keyed_by_type(kind: Kind) -> None:
    status = root_schema(kind.model)["properties"]["status"]
    assert [path for path, node in nodes(status, "status") if "default" in node] == []
    conditions = status["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert conditions["items"]["properties"]["status"]["enum"] == ["True", "False", "Unknown"]


def test_write_then_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--check"]) == 1
    assert capsys.readouterr().err.count("crd --write") == len(generated())
    assert main(["--write"]) == 0
    assert main(["--check"]) == 0
    chart_copy, original = (sorted((tmp_path / folder).glob("*")) for folder in CRD_FOLDERS)
    assert [path.read_text() for path in chart_copy] == [path.read_text() for path in original]


def test_check_names_what_differs_and_what_does_not_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["--write"])
    (tmp_path / "docs/reference/speculativeserving.md").write_text("by hand")
    (tmp_path / "charts/paceline/crds/old.yaml").write_text("")
    (tmp_path / "crds/paceline.dev_speculationprofiles.yaml").unlink()
    assert stale(tmp_path) == [
        "charts/paceline/crds/old.yaml",
        "crds/paceline.dev_speculationprofiles.yaml",
        "docs/reference/speculativeserving.md",
    ]
    assert main(["--check"]) == 1
    assert "speculativeserving.md is not what the API types say" in capsys.readouterr().err


def test_the_command_wants_an_action() -> None:
    with pytest.raises(SystemExit):
        main([])


def test_the_reference_has_every_field_once_in_its_section() -> None:
    page = generated()["docs/reference/speculativeserving.md"]
    sections = dict(re.findall(r"^## (\S+)$(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    schema = root_schema(SpeculativeServing)["properties"]
    for part in ("spec", "status"):
        for path, node in nodes(schema[part], part):
            for name in node.get("properties", {}):
                assert sections[path].count(f"\n| `{name}` |") == 1
    assert all(row.count(" | ") - row.count("\\| ") == 3 for row in re.findall(r"^\| `.*$", page, flags=re.MULTILINE))
