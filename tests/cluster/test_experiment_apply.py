"""`paceline experiment apply` on the real API server: the winner's fields, and no other, become the serving's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from paceline_operator import naming
from paceline_operator.experiment.results import VariantResult
from tests.cluster.operators import Place
from tests.cluster.test_commands import Shell, spec
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import EXPERIMENT, thing
from tests.unit.test_experiment_run import variants

pytestmark = pytest.mark.cluster

STEADY = {"baseline": (100.0, 101.0, 100.5, 100.2), "serving": (120.0, 121.0, 120.5, 120.1)}
BETTER, SAME = (150.0, 151.0, 150.4, 150.3), (120.3, 120.8, 120.2, 120.4)
WIDE = {"name": "wide", "change": {"ngram": {"promptLookupMin": 2, "promptLookupMax": 16, "maxTokens": 4}}}


def folder(path: Path, serving: dict[str, object], **rates: tuple[float, ...]) -> Path:
    """Results as a run leaves them."""
    found: tuple[VariantResult, ...] = variants(**STEADY, **rates)
    path.mkdir()
    for one in found:
        (path / f"{one.variant}.json").write_text(one.model_dump_json())
    experiment = thing(EXPERIMENT, {"variants": [WIDE]}, "which")
    (path / "experiment.yaml").write_text(yaml.safe_dump_all([serving, experiment]))
    return path


@pytest.fixture
def shell(crds: ControlPlane, namespace: str, tmp_path: Path) -> Shell:
    return Shell(crds, namespace, tmp_path)


def test_the_winner_becomes_the_serving(crds: ControlPlane, namespace: str, shell: Shell, tmp_path: Path) -> None:
    place = Place(crds, namespace)
    place.serve("chat")
    before = spec(place, "chat")
    stored = {"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, "metadata": {"name": "chat"}}
    measured = folder(tmp_path / "results", {**stored, "spec": before}, wide=BETTER)
    dry = shell("experiment", "apply", str(measured), "--dry-run")
    assert "wide is better than the serving" in dry
    assert "would become wide" in dry
    assert "  spec.speculation.maxTokens: 5 -> 4" in dry
    assert spec(place, "chat") == before
    shell("experiment", "apply", str(measured))
    after = spec(place, "chat")
    assert after["speculation"]["maxTokens"] == 4  # type: ignore[index]
    assert after["speculation"]["ngram"] == {"promptLookupMin": 2, "promptLookupMax": 16}  # type: ignore[index]
    assert {name: value for name, value in after.items() if name != "speculation"} == {
        name: value for name, value in before.items() if name != "speculation"
    }
    managers = {one["manager"] for one in (place.get(naming.KIND_SERVING, "chat") or {})["metadata"]["managedFields"]}
    assert naming.CLI_MANAGER in managers
    assert "is wide already" in shell("experiment", "apply", str(measured))


def test_no_gain_changes_nothing(crds: ControlPlane, namespace: str, shell: Shell, tmp_path: Path) -> None:
    place = Place(crds, namespace)
    place.serve("chat")
    before = place.get(naming.KIND_SERVING, "chat") or {}
    stored = {"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, "metadata": {"name": "chat"}}
    measured = folder(tmp_path / "results", {**stored, "spec": before["spec"]}, wide=SAME)
    assert "nothing to change" in shell("experiment", "apply", str(measured))
    after = place.get(naming.KIND_SERVING, "chat") or {}
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    forced = shell("experiment", "apply", str(measured), "--variant", "baseline", "--dry-run")
    assert "spec.speculation.enabled" in forced


def test_mistakes_are_one_message(crds: ControlPlane, namespace: str, shell: Shell, tmp_path: Path) -> None:
    stored = thing(naming.KIND_SERVING, {}, "chat")
    measured = folder(tmp_path / "results", stored, wide=BETTER)
    assert "no SpeculativeServing chat" in shell("experiment", "apply", str(measured), status=2)
    assert "no variant k9" in shell("experiment", "apply", str(measured), "--variant", "k9", status=2)
    assert "experiment.yaml" in shell("experiment", "apply", str(tmp_path), status=2)
    file = measured / "wide.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    assert "wide.json" in shell("experiment", "apply", str(measured), status=2)
