"""Profiles under a real operator: told by a serving, taken out, brought in, used by another, refused by its key."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_engine.protocol import Identity, State
from paceline_operator import naming
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.clients.keys import key_version
from tests.cluster.decoding import LADDER, SPEC, Decoding
from tests.cluster.operators import KEY, Place
from tests.cluster.shell import Shell
from tests.cluster.stand_ins import control, pod_of, run_pod, token
from tests.harness.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

SERVING: dict[str, Any] = {**SPEC, "tuning": {"ladder": list(LADDER), "intervalSeconds": 1}}
TOLD = Identity(
    gpu="NVIDIA H200",
    tensor_parallel_size=1,
    graph_mode="FULL",
    max_capture_size=512,
    model_digest="sha256:" + 64 * "1",
)


class Identified(Decoding):
    """An engine at four requests that says what its numbers hold for."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 4

    def state(self) -> State:
        state = super().state()
        able = state.capabilities.model_copy(update={"identity": TOLD})
        return state.model_copy(update={"capabilities": able, "engine_version": "0.33.0"})


def address() -> str:
    """Of loopback, and nobody else's: the ports are fixed."""
    return f"127.{random.randint(64, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"


def status(place: Place, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (place.get(naming.KIND_SERVING, name) or {}).get("status", {})
    return found


def run(place: Place, name: str) -> Any:
    """A stand-in in place of the serving's pod."""
    pod, at = pod_of(place, name), address()
    server = control(at, Identified(), (token(place, f"{name}-token-{key_version(KEY.encode())}"),))  # type: ignore[arg-type]
    return server, pod, at


def test_a_profile_goes_from_one_serving_to_another(
    place: Place, crds: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    shell = Shell(crds, namespace, tmp_path)
    place.serve("first", **SERVING)
    place.condition("first", "Accepted", "Valid")
    assert "nothing was learnt yet" in shell("profile", "export", "first", status=2)
    server, pod, at = run(place, "first")
    with server:
        run_pod(place, pod, at)
        place.wait("what is learnt", lambda: status(place, "first").get("learned", {}).get("cost"))
        keyed = {"PACELINE_MASTER_KEY_FILE": str(crds.folder / "master-key"), "PACELINE_NAMESPACE": namespace}
        recorded = shell("record", "first", "-o", "trace.jsonl", "--duration", "3", more=keyed)
        assert recorded.endswith(" passes in trace.jsonl\n")
        assert "in force" in shell("explain", "--record", "trace.jsonl")
        assert f"{namespace}/first" in shell("replay", "trace.jsonl")
    said = shell("profile", "export", "first", "-o", "learnt.yaml", "--name", "kept", "--workload", "chat")
    assert said.startswith("learnt.yaml: ")
    written = yaml.safe_load((tmp_path / "learnt.yaml").read_text())
    spec = ProfileSpec.model_validate(written["spec"])
    assert (spec.key.gpu, spec.key.engine_version, spec.key.max_tokens) == ("NVIDIA H200", "0.33.0", 5)
    assert spec.workload == "chat"
    for row in spec.cost:
        assert row.step_microseconds == pytest.approx(10_000 * (1 + 0.5 * row.k), rel=0.15)

    assert "kept is stored" in shell("profile", "import", "learnt.yaml")
    accepted = place.condition("kept", "Accepted", "Valid", of=naming.KIND_PROFILE)
    assert accepted["status"] == "True"
    stored = (place.get(naming.KIND_PROFILE, "kept") or {})["spec"]
    assert ProfileSpec.model_validate(stored) == spec

    (tmp_path / "other.yaml").write_text((tmp_path / "learnt.yaml").read_text().replace("NVIDIA H200", "NVIDIA B200"))
    refused = shell("profile", "import", "other.yaml", "--serving", "first", status=2)
    assert "gpu is NVIDIA B200 in the profile and NVIDIA H200 in the engines" in refused

    place.serve("second", **{**SERVING, "tuning": {**SERVING["tuning"], "profileRef": {"name": "kept"}}})
    server, pod, at = run(place, "second")
    with server:
        run_pod(place, pod, at)
        used = place.condition("second", "ProfileApplied", "KeyMatches")
        assert used["status"] == "True"
        assert f"{len(spec.cost)} step times" in used["message"]
        place.condition("second", "ProfileApplied", "KeyMatches")
        shell("profile", "import", "other.yaml")  # of the same name: the operator reads it anew
        place.patch(naming.KIND_SERVING, "second", {"spec": {"tuning": {"profileRef": {"name": "absent"}}}})
        missing = place.condition("second", "ProfileApplied", "ProfileNotFound")
        assert missing["status"] == "False"
        place.patch(naming.KIND_SERVING, "second", {"spec": {"tuning": {"profileRef": {"name": "kept"}}}})
        mismatch = place.condition("second", "ProfileApplied", "KeyMismatch")
        assert "gpu is NVIDIA B200 in the profile and NVIDIA H200 in the engines" in mismatch["message"]
        place.patch(naming.KIND_SERVING, "second", {"spec": {"tuning": {"profileRef": None}}})
        place.wait("the condition to go", lambda: "ProfileApplied" not in place.conditions("second"))


def test_what_is_no_profile_is_refused_in_one_line(crds: ControlPlane, namespace: str, tmp_path: Path) -> None:
    shell = Shell(crds, namespace, tmp_path)
    (tmp_path / "serving.yaml").write_text("kind: SpeculativeServing\n")
    assert "one document of kind SpeculationProfile" in shell("profile", "import", "serving.yaml", status=2)
    assert "cannot be read" in shell("profile", "import", "absent.yaml", status=2)
    (tmp_path / "half.yaml").write_text("apiVersion: paceline.dev/v1alpha1\nkind: SpeculationProfile\nspec: {}\n")
    assert "half.yaml" in shell("profile", "import", "half.yaml", status=2)
    assert "no SpeculativeServing ghost" in shell("profile", "export", "ghost", status=2)
