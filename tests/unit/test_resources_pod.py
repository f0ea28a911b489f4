"""The pod template: what keeps it safe, what keeps it running, and what a user may change of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from paceline_operator import naming, resources
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import argv, pod
from paceline_operator.resources.inputs import Tokens
from paceline_operator.resources.substitution import expand
from tests.servings import DEFAULTS, TOKENS, serving, table_of


def template_of(given: SpeculativeServing, tokens: Tokens = TOKENS) -> dict[str, Any]:
    return pod.build(given, table_of(given), DEFAULTS, tokens)


def engine_of(given: SpeculativeServing) -> dict[str, Any]:
    container: dict[str, Any] = template_of(given)["spec"]["containers"][0]
    assert container["name"] == "engine"
    return container


def environment_of(given: SpeculativeServing) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in engine_of(given)["env"]}


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in items]


@pytest.mark.parametrize(
    "tuning",
    [
        {"mode": "Observe"},
        {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]},
        {"intervalSeconds": 60},
        {"minGainPercent": 5},
        {"probing": {"mode": "Disabled", "maxSharePercent": 1}},
        {"ladder": [0, 1, 2, 3, 5]},
    ],
)
def test_what_is_tuned_live_restarts_nothing(tuning: dict[str, Any]) -> None:
    """The ladder of the last row is the one that the default chooses: written out, it is no change."""
    before, after = serving(), serving(tuning=tuning, slo={"tpotMilliseconds": 40})
    assert template_of(after) == template_of(before)


@pytest.mark.parametrize(
    "spec",
    [
        {"speculation": {"maxTokens": 7}},
        {"tuning": {"ladder": [5, 0]}},
        {"engine": {"maxNumSeqs": 64}},
        {"model": {"revision": "b"}},
    ],
)
def test_what_the_engine_boots_with_changes_the_template(spec: dict[str, Any]) -> None:
    assert template_of(serving(**spec)) != template_of(serving())


def test_replicas_and_rollout_are_not_in_the_template() -> None:
    given = serving(replicas=7, rollout={"maxSurge": 2, "maxUnavailable": 0})
    assert template_of(given) == template_of(serving())


@given_any(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.just("$(HOME)"), max_size=4))
def test_the_kubelet_hands_the_container_exactly_our_argv(extra: list[str]) -> None:
    """And no shell stands between: the executable is vLLM itself."""
    given = serving(engine={"extraArgs": extra}, model={"servedName": "$(HOME) $$ 'x'"})
    container = engine_of(given)
    received = [expand(element, environment_of(given)) for element in container["args"]]
    assert [*container["command"], *received] == argv.build(given, table_of(given))


def test_dollars_of_the_user_are_not_the_kubelets() -> None:
    given = serving(engine={"extraArgs": ["--seed", "$(HF_TOKEN)"], "env": [{"name": "X", "value": "$(HF_TOKEN)"}]})
    assert engine_of(given)["args"][-1] == "$$(HF_TOKEN)"
    assert environment_of(given)["X"] == "$$(HF_TOKEN)"


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [("lora_resolver", "lora_resolver,paceline"), ("a, paceline", "a,paceline"), ("", "paceline")],
)
def test_an_allow_list_of_plugins_gets_ours(set_by_user: str, expected: str) -> None:
    given = serving(engine={"env": [{"name": "VLLM_PLUGINS", "value": set_by_user}]})
    assert environment_of(given)["VLLM_PLUGINS"] == expected


def test_without_an_allow_list_there_stays_none() -> None:
    assert "VLLM_PLUGINS" not in environment_of(serving())


def test_the_plugin_comes_first_on_the_python_path() -> None:
    given = serving(engine={"env": [{"name": "PYTHONPATH", "value": "/mine"}]})
    assert environment_of(given)["PYTHONPATH"] == f"{naming.PLUGIN_DIRECTORY}:/mine"


def test_a_user_variable_replaces_ours_but_not_the_plugins() -> None:
    mine = [{"name": "VLLM_CACHE_ROOT", "value": "/mine"}, {"name": naming.ENV_TOKEN_DIRECTORY, "value": "/mine"}]
    environment = environment_of(serving(engine={"env": mine}))
    assert environment["VLLM_CACHE_ROOT"] == "/mine"
    assert environment[naming.ENV_TOKEN_DIRECTORY] == naming.TOKEN_DIRECTORY


@pytest.mark.parametrize(
    ("model", "draft", "offline"),
    [
        ("/models/a", "/models/b", True),
        ("pvc://c/a", "oci://i/b", True),
        ("/models/a", "hf://o/b", False),
        ("hf://o/a", "/models/b", False),
        ("s3://bucket/a", "/models/b", False),
    ],
)
def test_the_hub_is_off_where_all_weights_are_files(model: str, draft: str, offline: bool) -> None:
    given = serving(model={"source": model}, speculation={"draft": {"source": draft}})
    assert (environment_of(given).get("HF_HUB_OFFLINE") == "1") == offline


def test_a_hub_token_comes_from_its_secret_unless_the_user_sets_one() -> None:
    variable = engine_of(serving(model={"tokenSecretName": "hub"}))["env"][0]
    assert variable == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    mine = serving(model={"tokenSecretName": "hub"}, engine={"env": [{"name": "HF_TOKEN", "value": "t"}]})
    assert environment_of(mine)["HF_TOKEN"] == "t"


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        ("pvc://weights/a", {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}),
        ("oci://r.example/a:1", {"image": {"reference": "r.example/a:1", "pullPolicy": "IfNotPresent"}}),
    ],
)
def test_weights_in_a_volume_are_mounted_read_only(source: str, volume: dict[str, Any]) -> None:
    given = serving(model={"source": source}, speculation={"draft": {"source": source}})
    spec = template_of(given)["spec"]
    for name in ("model", "draft"):
        assert {"name": name, **volume} in spec["volumes"]
        mount = {"name": name, "mountPath": f"/mnt/paceline/{name}", "readOnly": True}
        assert mount in spec["containers"][0]["volumeMounts"]


def test_every_writable_place_is_a_volume_and_every_mount_has_one() -> None:
    spec = template_of(serving())["spec"]
    for container in [*spec["containers"], *spec["initContainers"]]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert set(names(container["volumeMounts"])) <= set(names(spec["volumes"]))
    writable = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/dev/shm", "/tmp", naming.CACHE_DIRECTORY]


def test_shared_memory_grows_with_the_gpus_of_the_pod() -> None:
    def size(engine: dict[str, Any]) -> str:
        volumes = template_of(serving(engine=engine))["spec"]["volumes"]
        return str(next(volume for volume in volumes if volume["name"] == "shm")["emptyDir"]["sizeLimit"])

    assert size({"device": "CPU"}) == "1Gi"
    assert size({}) == "2Gi"
    assert size({"tensorParallelSize": 4, "pipelineParallelSize": 2}) == "9Gi"


def test_gpus_are_asked_for_and_the_users_resources_laid_over() -> None:
    asked = engine_of(serving(engine={"tensorParallelSize": 2, "resources": {"limits": {"memory": "64Gi"}}}))
    assert asked["resources"] == {"limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}}
    other = {"limits": {"nvidia.com/gpu": None, "amd.com/gpu": "1"}}
    assert engine_of(serving(engine={"resources": other}))["resources"] == {"limits": {"amd.com/gpu": "1"}}


@pytest.mark.parametrize("shutdown", [0, 60, 3600])
def test_the_kill_comes_after_drain_and_shutdown(shutdown: int) -> None:
    spec = template_of(serving(engine={"shutdownTimeoutSeconds": shutdown}))["spec"]
    pre_stop = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > pre_stop + shutdown


@pytest.mark.parametrize("seconds", [10, 11, 1800, 86_400])
def test_the_startup_probe_waits_as_long_as_the_user_says(seconds: int) -> None:
    given = serving(engine={"startupTimeoutSeconds": seconds})
    probe = engine_of(given)["startupProbe"]
    assert seconds <= probe["failureThreshold"] * probe["periodSeconds"] < seconds + probe["periodSeconds"]
    assert environment_of(given)["VLLM_ENGINE_READY_TIMEOUT_S"] == str(seconds)


def test_liveness_is_slower_to_judge_than_readiness() -> None:
    container = engine_of(serving())

    def patience(probe: str) -> int:
        return int(container[probe]["periodSeconds"] * container[probe]["failureThreshold"])

    assert patience("readinessProbe") <= 5
    assert patience("livenessProbe") >= 60


@pytest.mark.parametrize(("injection", "has_init", "has_token"), [("InImage", False, True), ("None", False, False)])
def test_how_the_plugin_comes_decides_what_is_mounted(injection: str, has_init: bool, has_token: bool) -> None:
    given = serving(engine={"plugin": {"injection": injection}, "preflight": "Disabled"})
    spec = template_of(given)["spec"]
    assert ("initContainers" in spec) == has_init
    assert ("paceline-token" in names(spec["volumes"])) == has_token
    assert (naming.CONTROL_PORT_NAME in names(spec["containers"][0]["ports"])) == has_token
    assert (naming.ENV_TOKEN_DIRECTORY in environment_of(given)) == has_token
    assert "PYTHONPATH" not in environment_of(given)
    kinds = [child["kind"] for child in resources.render(given, table_of(given), DEFAULTS, TOKENS)]
    assert ("Secret" in kinds) == has_token


def test_the_end_of_a_key_rotation_restarts_nothing_and_another_key_does() -> None:
    rotated = Tokens(key_version=TOKENS.key_version, current=TOKENS.current)
    assert template_of(serving(), rotated) == template_of(serving())
    assert template_of(serving(), Tokens(key_version="3", current="x")) != template_of(serving())


def test_images_come_from_the_spec_or_else_from_the_installation() -> None:
    assert engine_of(serving())["image"] == DEFAULTS.engine_image
    assert engine_of(serving(engine={"device": "CPU"}))["image"] == DEFAULTS.cpu_engine_image
    given = serving(engine={"image": "mine", "plugin": {"image": "my-plugin"}})
    assert engine_of(given)["image"] == "mine"
    assert template_of(given)["spec"]["initContainers"][0]["image"] == "my-plugin"


def test_the_users_pod_template_wins_except_over_the_selector() -> None:
    override = {
        "metadata": {
            "labels": {naming.LABEL_SERVING: "stolen", "team": "a"},
            "annotations": {"scrape": "true"},
        },
        "spec": {
            "nodeSelector": {"gpu": "h200"},
            "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
            "containers": [{"name": "engine", "imagePullPolicy": "Always"}, {"name": "proxy", "image": "p"}],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}],
        },
    }
    plain, template = template_of(serving()), template_of(serving(engine={"podTemplate": override}))
    labels = template["metadata"]["labels"]
    assert labels.items() >= naming.selector("demo").items()
    assert labels["team"] == "a"
    assert template["metadata"]["annotations"] == {"scrape": "true"}
    spec = template["spec"]
    assert spec["nodeSelector"] == {"gpu": "h200"}
    assert spec["securityContext"]["runAsUser"] == 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert names(spec["containers"]) == ["engine", "proxy"]
    assert spec["containers"][0] == plain["spec"]["containers"][0] | {"imagePullPolicy": "Always"}
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "c"}} in spec["volumes"]


def test_the_track_is_a_label_that_an_override_cannot_change() -> None:
    given = serving(engine={"podTemplate": {"metadata": {"labels": {naming.LABEL_TRACK: "mine", "team": "a"}}}})
    template = pod.build(given, table_of(given), DEFAULTS, TOKENS, labels={naming.LABEL_TRACK: naming.TRACK_CANARY})
    assert template["metadata"]["labels"].items() >= {naming.LABEL_TRACK: "canary", "team": "a"}.items()


def test_a_plain_pod_is_the_same_engine_without_a_drafter() -> None:
    given = serving(speculation={"draft": {"source": "pvc://weights/draft"}}, engine={"maxNumSeqs": 8})
    template = pod.build(given, table_of(given), DEFAULTS, TOKENS, drafter=False)
    assert "draft" in names(template_of(given)["spec"]["volumes"])
    assert "draft" not in names(template["spec"]["volumes"])
    arguments = template["spec"]["containers"][0]["args"]
    assert "--speculative-config" not in arguments
    assert json.loads(arguments[arguments.index("--compilation-config") + 1]) == {
        "cudagraph_capture_sizes": list(range(1, 9))
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("vllm/vllm-openai:v0.32.0", "IfNotPresent"),
        ("vllm/vllm-openai", "Always"),
        ("vllm/vllm-openai:latest", "Always"),
        ("images.example:5000/vllm", "Always"),
        ("images.example:5000/vllm:1", "IfNotPresent"),
        ("vllm/vllm-openai@sha256:" + 64 * "0", "IfNotPresent"),
    ],
)
def test_how_an_image_is_pulled_does_not_depend_on_the_one_before(image: str, policy: str) -> None:
    spec = template_of(serving(engine={"image": image, "plugin": {"image": image}}))["spec"]
    assert {each["imagePullPolicy"] for each in (*spec["containers"], *spec["initContainers"])} == {policy}
