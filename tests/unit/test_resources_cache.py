"""The model cache in manifests: the claim, the puller's container, the pre-pull Job, and what vLLM is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from paceline_engine.preflight.asked import Asked
from paceline_engine.pull.layout import weights
from paceline_operator import resources
from paceline_operator.resources import cache, job, pod
from paceline_operator.resources.source import CACHE_ROOT, resolve
from tests.servings import DEFAULTS, TOKENS, serving, table_of

CLAIM = {"claim": {"size": "100Gi"}}


def template(**spec: Any) -> dict[str, Any]:
    given = serving(**spec)
    return pod.build(given, table_of(given), DEFAULTS, TOKENS)


def container(rendered: dict[str, Any], name: str, kind: str = "initContainers") -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in rendered["spec"].get(kind, []) if one["name"] == name)
    return found


def test_without_a_cache_pods_are_as_ever() -> None:
    rendered = template()
    assert [one["name"] for one in rendered["spec"]["initContainers"]] == ["paceline-plugin", "paceline-preflight"]
    assert cache.build(serving()) is None
    assert job.build(serving(), rendered) is None


def test_engines_read_target_and_draft_from_the_claim() -> None:
    rendered = template(model={"cache": CLAIM, "revision": "v1"})
    engine = container(rendered, "engine", "containers")
    target = str(CACHE_ROOT / weights("hf://owner/target", "v1"))
    draft = str(CACHE_ROOT / weights("hf://owner/draft", None))
    assert engine["args"][1] == target
    assert "--revision" not in engine["args"]
    assert any(f'"model":"{draft}"' in text for text in engine["args"])
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]
    puller = container(rendered, "paceline-pull")
    assert puller["image"] == engine["image"]
    assert puller["args"][-8:] == [
        *("--artefact", "model", "hf://owner/target", "v1"),
        *("--artefact", "draft", "hf://owner/draft", ""),
    ]


def test_the_puller_has_the_engine_s_environment_and_writes_the_claim() -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    spec = {"cache": CLAIM | {"compiled": False}, "tokenSecretName": "hub"}
    rendered = template(model=spec, engine={"env": [{"name": "HTTPS_PROXY", "value": "http://p"}]})
    puller = container(rendered, "paceline-pull")
    assert token in puller["env"]
    assert {"name": "HTTPS_PROXY", "value": "http://p"} in puller["env"]
    assert {"name": "paceline-cache", "mountPath": str(CACHE_ROOT)} in puller["volumeMounts"]
    mounted = container(rendered, "engine", "containers")["volumeMounts"]
    assert {"name": "paceline-cache", "mountPath": str(CACHE_ROOT), "readOnly": True} in mounted
    assert "--compiled" not in puller["args"]


@pytest.mark.parametrize("injection", ["InitContainer", "InImage", "None"])
def test_the_puller_finds_its_module_however_the_plugin_comes(injection: str) -> None:
    rendered = template(model={"cache": CLAIM}, engine={"plugin": {"injection": injection}})
    puller = container(rendered, "paceline-pull")
    paths = [variable["value"] for variable in puller["env"] if variable["name"] == "PYTHONPATH"]
    mounts = [mount["name"] for mount in puller["volumeMounts"]]
    assert (paths == ["/opt/paceline/plugin"]) == ("paceline-plugin" in mounts) == (injection != "InImage")
    volumes = {volume["name"] for volume in rendered["spec"]["volumes"]}
    for one in [*rendered["spec"]["initContainers"], *rendered["spec"]["containers"]]:
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
    engine = container(rendered, "engine", "containers")
    assert any(variable["name"] == "PYTHONPATH" for variable in engine["env"]) == (injection == "InitContainer")


def test_weights_that_are_mounted_are_looked_at_where_they_are() -> None:
    rendered = template(
        model={"source": "pvc://weights/llama", "cache": CLAIM},
        speculation={"draft": {"source": "oci://registry.example/draft:1"}},
    )
    puller = container(rendered, "paceline-pull")
    assert puller["args"][-8:] == [
        *("--artefact", "model", "/mnt/paceline/model/llama", ""),
        *("--artefact", "draft", "/mnt/paceline/draft", ""),
    ]
    assert {"model", "draft"} <= {mount["name"] for mount in puller["volumeMounts"]}
    image = next(one for one in rendered["spec"]["volumes"] if one["name"] == "draft")
    assert image["image"]["reference"] == "registry.example/draft:1"


def test_a_claim_is_named_by_what_cannot_change_in_place() -> None:
    def claim(**fields: Any) -> dict[str, Any]:
        found = cache.build(serving(model={"cache": {"claim": {"size": "100Gi"} | fields}}))
        assert found is not None
        return found

    first, grown, other = claim(), claim(size="200Gi"), claim(accessMode="ReadWriteOnce")
    assert first["metadata"]["name"] == grown["metadata"]["name"] != other["metadata"]["name"]
    assert first["metadata"]["name"].startswith("demo-models-")
    assert first["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}}
    assert claim(storageClassName="fast")["spec"]["storageClassName"] == "fast"


def test_a_claim_that_is_there_is_used_and_not_made() -> None:
    given = serving(model={"cache": {"claimName": "shared"}})
    assert cache.build(given) is None
    assert cache.volume(given) is not None
    rendered = template(model={"cache": {"claimName": "shared"}})
    volumes = rendered["spec"]["volumes"]
    claims = [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]
    assert claims == ["shared"]


def test_the_job_is_the_puller_where_engines_may_run() -> None:
    spec = {"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}], "runtimeClassName": "nvidia"}
    given = serving(model={"cache": CLAIM | {"download": "Job"}}, engine={"podTemplate": {"spec": spec}})
    rendered = pod.build(given, table_of(given), DEFAULTS, TOKENS)
    made = job.build(given, rendered)
    assert made is not None
    inner = made["spec"]["template"]["spec"]
    assert [one["name"] for one in inner["containers"]] == ["paceline-pull"]
    assert [one["name"] for one in inner["initContainers"]] == ["paceline-plugin", "paceline-preflight"]
    assert inner["restartPolicy"] == "Never"
    assert inner["nodeSelector"] == {"zone": "a"}
    assert "runtimeClassName" not in inner
    assert made["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "puller"
    assert inner["automountServiceAccountToken"] is False
    assert not any("nvidia.com/gpu" in str(one["resources"]) for one in inner["containers"])
    again = job.build(given, rendered)
    assert again == made
    other = serving(model={"cache": CLAIM | {"download": "Job"}, "revision": "v2"})
    changed = job.build(other, pod.build(other, table_of(other), DEFAULTS, TOKENS))
    assert changed is not None
    assert changed["metadata"]["name"] != made["metadata"]["name"]
    assert len(made["metadata"]["name"]) <= 63


@pytest.mark.parametrize("device", ["GPU", "CPU"])
@pytest.mark.parametrize("mode", ["Checks", "TinyModel"])
def test_another_ladder_makes_no_other_job(device: str, mode: str) -> None:
    def made(**spec: Any) -> dict[str, Any]:
        engine = {"device": device, "preflight": mode, "image": "engine:$(HOME)"}
        given = serving(model={"cache": CLAIM | {"download": "Job"}, "revision": "$v"}, engine=engine, **spec)
        found = job.build(given, pod.build(given, table_of(given), DEFAULTS, TOKENS))
        assert found is not None
        return found

    one, other = made(tuning={"ladder": [5, 3, 0]}), made(tuning={"ladder": [5, 1, 0]})
    assert one == other
    checks = container(one["spec"]["template"], "paceline-preflight")
    assert checks["args"][:2] == ["--no-machine", "--asked"]
    asked = Asked.model_validate_json(checks["args"][2])
    assert (asked.target.source, asked.target.revision, asked.max_tokens) == ("hf://owner/target", "$$v", 5)
    assert (asked.ladder, asked.capture_sizes) == ([], [])


def test_a_cache_is_one_claim() -> None:
    assert resolve("hf://a/b", "model", "v1").revision == "v1"
    with pytest.raises(ValidationError):
        serving(model={"cache": {"claim": {"size": "much"}}})


def test_all_children_render_with_a_cache() -> None:
    given = serving(model={"cache": CLAIM})
    assert resources.render(given, table_of(given), DEFAULTS, TOKENS)
