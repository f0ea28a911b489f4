"""The chart's objects for each way to install it, byte for byte, and install.yaml beside them.

`PACELINE_UPDATE_GOLDEN=1` writes what is rendered now; the difference then shows in review.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import chart
from tests.harness.binaries import ensure_built
from tests.harness.chart import CHART, NAMESPACES, VARIANTS, helm, rendered

EXPECTED = Path(__file__).parent / "chart" / "expected"
DRAWN = re.compile(r'^  keys: ".*"$', re.MULTILINE)
"""A new master key with each render."""


@pytest.fixture(scope="module", autouse=True)
def _helm_is_there() -> None:
    ensure_built()


def text(name: str) -> str:
    """What `helm template` writes, the contents of rules and dashboards left to their own tests."""
    drawn = DRAWN.sub('  keys: "(drawn)"', helm("template", "paceline", CHART, *_options(name)).stdout)
    documents = [yaml.safe_load(document) for document in drawn.split("\n---\n")]
    return yaml.safe_dump_all(map(_short, filter(None, documents)), sort_keys=False, width=120)


def _options(name: str) -> list[str | Path]:
    return ["--namespace", NAMESPACES[0], "--values", VARIANTS[name]]


def _short(document: dict[str, Any]) -> dict[str, Any]:
    if document["kind"] == "PrometheusRule":
        return {**document, "spec": "(monitoring/rules.yaml)"}
    return {**document, "data": sorted(document["data"])} if document["kind"] == "ConfigMap" else document


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_rendered_as_it_was(name: str) -> None:
    file, now = EXPECTED / f"{name}.yaml", text(name)
    if os.environ.get("PACELINE_UPDATE_GOLDEN"):
        file.write_text(now)
    assert file.read_text() == now


def test_every_value_is_set_in_one_of_them() -> None:
    variants = [yaml.safe_load(path.read_text()) or {} for path in VARIANTS.values()]

    def told(values: Any, path: list[str]) -> bool:
        return not path or (isinstance(values, dict) and path[0] in values and told(values[path[0]], path[1:]))

    paths = [row.path.split(".") for row in chart.rows() if row.type]
    assert [path for path in paths if not any(told(values, path) for values in variants)] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_lint(name: str) -> None:
    helm("lint", "--strict", CHART, "--values", VARIANTS[name])


def test_the_bundle_is_the_chart_with_crds_and_a_key_of_ones_own() -> None:
    """At parity with `helm template`: nothing more, nothing less, nothing otherwise."""
    bundle = [document for document in yaml.safe_load_all(chart.bundle()) if document]
    crds = [yaml.safe_load(path.read_text()) for path in sorted((CHART / "crds").glob("*"))]
    own = f"--set=masterKey.existingSecret={chart.MASTER_KEY}"
    objects = [document for document in rendered(own) if document["kind"] != "Pod"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": chart.NAMESPACE}}

    def key(document: dict[str, Any]) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(bundle, key=key) == sorted([namespace, *crds, *objects], key=key)


def test_no_key_is_in_the_bundle() -> None:
    assert "kind: Secret" not in chart.bundle()


def test_generated_files_are_what_the_chart_says() -> None:
    root = Path(chart.__file__).parents[1]
    for name, now in chart.files().items():
        assert (root / name).read_text() == now, f"{name}: run `make generate`"
