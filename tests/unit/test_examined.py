"""What `paceline preflight` says of manifests: examples are accepted, all else has its reason, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_operator.cli.app import app
from paceline_operator.examined import Examined, Level, examine
from tests.harness.objects import EXPERIMENT, PROFILE, thing
from tests.servings import MINIMAL, serving

RUNNER = CliRunner()
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def of(**spec: Any) -> Examined:
    return examine({**MINIMAL, "spec": serving(**spec).spec.model_dump(by_alias=True, exclude_none=True, mode="json")})


def reasons(found: Examined, level: Level) -> list[str]:
    return [remark.reason for remark in found.remarks if remark.level is level]


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("Qwen/Qwen3-8B", "; is hf://Qwen/Qwen3-8B meant?"),
        ("hf:/Qwen/Qwen3-8B", ""),
        ("Qwen", ""),
        ("https://x/y", ""),
        ("", ""),
    ],
)
def test_a_source_that_is_none_is_told_how_sources_are_written(source: str, meant: str) -> None:
    ours = {**MINIMAL, "spec": {**MINIMAL["spec"], "model": {"source": source}}}
    (remark,) = examine(ours).remarks
    assert remark.message == (
        "spec.model.source: not a source: write "
        f"hf://owner/name, s3://bucket/path, pvc://claim/path, oci://image or /path{meant}"
    )


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_is_accepted_and_none_weakens_its_pods(file: Path) -> None:
    result = RUNNER.invoke(app, ["preflight", "-f", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    for document in json.loads(result.output):
        assert document["accepted"]
        assert not [remark for remark in document["remarks"] if remark["level"] in ("refused", "weakens")]


def test_a_refusal_names_rule_and_source_and_ends_with_1(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    spec = {**MINIMAL["spec"], "engine": {"enforceEager": True}}
    spec["speculation"] = {**spec["speculation"], "adaptiveVerification": "Enabled"}
    file.write_text(yaml.safe_dump({**MINIMAL, "spec": spec}))
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert result.exit_code == 1
    assert "demo (vLLM 0.32, V2 model runner): refused" in result.output
    assert "av-graphs: spec.speculation.adaptiveVerification" in result.output
    assert "https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/config/vllm.py" in result.output


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.40.0", "(vLLM 0.40, judged by the rules of 0.33, V2 model runner)"),
        ("0.20.0", "(vLLM 0.20, judged by the rules of 0.32, V2 model runner)"),
        ("0.33.0", "(vLLM 0.33, V2 model runner)"),
        (None, "(vLLM 0.32, V2 model runner)"),
    ],
)
def test_a_version_without_rules_of_its_own_is_told_by_which_it_is_judged(
    version: str | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "serving.yaml"
    engine = {"vllmVersion": version} if version else {}
    file.write_text(yaml.safe_dump({**MINIMAL, "spec": {**MINIMAL["spec"], "engine": engine}}))
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert said in result.output


def test_all_files_are_checked_and_named(tmp_path: Path) -> None:
    bad, none = tmp_path / "bad.yaml", tmp_path / "none.yaml"
    bad.write_text(yaml.safe_dump({**MINIMAL, "spec": {**MINIMAL["spec"], "engine": {"maxNumSeqs": 0}}}))
    none.write_text("kind: Pod")
    good = str(EXAMPLES[0])
    for files in ([str(bad), good], [good, str(bad)]):
        given = [word for file in files for word in ("-f", file)]
        result = RUNNER.invoke(app, ["preflight", *given])
        assert result.exit_code == 1
        assert f"{bad}: SpeculativeServing demo: refused" in result.output
        assert f"{good}: SpeculativeServing " in result.output
        told = json.loads(RUNNER.invoke(app, ["preflight", *given, "-o", "json"]).output)
        assert list(dict.fromkeys(one["file"] for one in told)) == files
        assert {one["file"]: one["accepted"] for one in told} == {str(bad): False, good: True}
    result = RUNNER.invoke(app, ["preflight", "-f", good, "-f", str(none)])
    assert (result.exit_code, f"{none}: no document of kind" in result.stderr) == (2, True)
    assert f"{good}: SpeculativeServing " in result.stdout, "a file that cannot be read hides no other"
    told = RUNNER.invoke(app, ["preflight", "-f", str(none), "-f", good, "-o", "json"])
    assert (told.exit_code, [one["file"] for one in json.loads(told.stdout)]) == (2, [good])
    alone = RUNNER.invoke(app, ["preflight", "-f", good])
    assert (alone.exit_code, good in alone.output) == (0, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "there is Pod"),
        ("kind: [Pod]", "no document of kind"),
        ("{", "not YAML"),
        ("", "no document of kind"),
        ("- a", "no mapping"),
    ],
)
def test_a_file_without_ours_is_a_mistake(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (
            {"kind": "SpeculativeServering"},
            "kind 'SpeculativeServering' is none of paceline.dev: is SpeculativeServing meant?",
        ),
        ({"kind": "speculativeserving", "apiVersion": "v1"}, "is SpeculativeServing meant?"),
        ({"kind": "SpeculationProfiles"}, "is SpeculationProfile meant?"),
        ({"kind": "Other"}, "paceline.dev/v1alpha1 has SpeculativeServing, "),
        ({"kind": None, "apiVersion": None}, "it has no kind"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_kind_that_is_misspelt_is_not_passed_over(
    beside: dict[str, Any], said: str, alone: bool, tmp_path: Path
) -> None:
    file = tmp_path / "x.yaml"
    bad = {**MINIMAL, **beside, "metadata": {"name": "second"}}
    file.write_text(yaml.safe_dump_all([bad] if alone else [MINIMAL, bad]))
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert result.exit_code == 1
    assert "second: refused" in result.output
    assert said in result.output
    assert ("demo (vLLM" in result.output) is not alone


def test_kinds_of_others_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    others = [
        {"apiVersion": "v1", "kind": kind} for kind in ("Service", "Secret", "InferenceService", "ServiceMonitor")
    ]
    load = {"apiVersion": "paceline.dev/v1alpha1", "kind": "LocalLoad"}
    file.write_text(yaml.safe_dump_all([*others, load, MINIMAL]))
    result = RUNNER.invoke(app, ["preflight", "-f", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    assert [one["name"] for one in json.loads(result.output)] == ["demo"]


def test_memory_is_no_wish_that_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    result = RUNNER.invoke(app, ["preflight", "-f", str(file), "--gpu-memory", "80"])
    assert result.exit_code == 2
    assert "--gpu-memory needs --models" in result.output


def test_what_the_schema_refuses_is_said_field_by_field() -> None:
    found = examine({**MINIMAL, "spec": {"model": {}, "speculation": {"method": "medusa"}}})
    assert not found.accepted
    texts = " ".join(remark.message for remark in found.remarks)
    assert "spec.model.source" in texts
    assert "spec.speculation.method" in texts


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec": {"foo": 1}}, "unknown field spec.foo"),
        ({"spec": {"tunning": {}}}, "unknown field spec.tunning"),
        ({"spec": {"speculation": {"method": "ngram", "maxToken": 3}}}, "unknown field spec.speculation.maxToken"),
        ({"spec": {"replicas": "2"}}, "spec.replicas: '2' is a text"),
        ({"metadata": {"name": "Bad_Name"}}, "metadata.name 'Bad_Name'"),
        ({"metadata": {"name": "a" * 41}}, "at most 40 characters"),
        ({"apiVersion": "paceline.dev/v1beta1"}, "'paceline.dev/v1beta1' is not paceline.dev/v1alpha1"),
        ({"data": {}}, "unknown field data"),
        ({"spec": {"tuning": {"ladder": [5, 0, 0]}}}, "spec.tuning.ladder[2] is there twice"),
        ({"spec": {"engine": {"env": [{"name": "A"}, {"name": "B"}, {"name": "A"}]}}}, "engine.env[2] is there twice"),
    ],
)
def test_what_an_api_server_refuses_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    spec = {**MINIMAL["spec"], **changes.get("spec", {})}
    file.write_text(yaml.safe_dump({**MINIMAL, **changes, "spec": spec}))
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert result.exit_code == 1
    assert said in result.output


def test_an_engine_over_several_nodes_leaves_less_room_for_its_name() -> None:
    document = yaml.safe_load((EXAMPLES[0].parent / "multi-node.yaml").read_text())
    for length, accepted in ((36, True), (37, False), (51, False)):
        found = examine({**document, "metadata": {"name": "a" * length}})
        assert found.accepted is accepted, found
        assert accepted or "metadata.name" in found.remarks[0].message


KEDA = {"mode": "KEDA", "maxReplicas": 4, "targetRunningRequests": 8, "keda": {"serverAddress": "http://p:9090"}}
BUILTIN = {"mode": "Builtin", "maxReplicas": 4, "targetRunningRequests": 8}
WINDOW = {"days": ["Monday"], "start": "02:00", "durationMinutes": 60, "timeZone": "UTC"}


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (KEDA, {"keda": {}}, "serverAddress"),
        (KEDA, {"maxReplicas": None}, "needs spec.autoscaling.maxReplicas"),
        (KEDA, {"targetRunningRequests": None}, "targetRunningRequests"),
        (KEDA, {"minReplicas": 0}, "wakeUpQuery"),
        (KEDA, {"minReplicas": 5}, "exceeds"),
        (BUILTIN, {"minReplicas": 0}, "cannot wake"),
        (BUILTIN, {"targetRunningRequests": None}, "tpotMilliseconds"),
    ],
)
def test_rules_of_autoscaling_are_held(good: dict[str, Any], bad: dict[str, Any], said: str) -> None:
    assert of(autoscaling=good).accepted
    found = of(autoscaling={**good, **bad})
    assert not found.accepted
    assert said in found.remarks[0].message


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (
            {"engine": {"multiNode": {"nodes": 2}, "tensorParallelSize": 4}},
            {"engine": {"multiNode": {"nodes": 3}, "tensorParallelSize": 4}},
            "multiNode.nodes 3",
        ),
        (
            {"metrics": {"prometheus": {"labels": {"team": "a"}}}},
            {"metrics": {"prometheus": {"labels": {"te-am": "a"}}}},
            "te-am",
        ),
        (
            {"rollout": {"requireCanary": True}},
            {"rollout": {"requireCanary": True, "canary": {"mode": "Disabled"}}},
            "requireCanary",
        ),
        (
            {"rollout": {"windowsForUserChanges": True, "maintenanceWindows": [WINDOW]}},
            {"rollout": {"windowsForUserChanges": True}},
            "windowsForUserChanges",
        ),
        ({"model": {"cache": {"claimName": "a"}}}, {"model": {"cache": {}}}, "claimName"),
        ({"autoscaling": BUILTIN}, {"autoscaling": BUILTIN, "engine": {"plugin": {"injection": "None"}}}, "plugin"),
    ],
)
def test_rules_between_fields_are_held(good: dict[str, Any], bad: dict[str, Any], said: str) -> None:
    assert of(**good).accepted, of(**good)
    found = of(**bad)
    assert not found.accepted
    assert said in found.remarks[0].message


@pytest.mark.parametrize("kind", [EXPERIMENT, PROFILE])
def test_other_kinds_are_held_to_the_same(kind: str) -> None:
    good = thing(kind, {})
    assert examine(good).accepted, examine(good)
    spec = {**good["spec"], "foo": 1}
    for changed in ({"apiVersion": "paceline.dev/v2"}, {"metadata": {"name": "Bad_Name"}}, {"spec": spec}):
        found = examine({**good, **changed})
        assert not found.accepted
        assert found.remarks[0].level is Level.REFUSED


def test_a_value_that_contains_itself_is_refused() -> None:
    template: dict[str, Any] = {}
    template["spec"] = template
    found = examine({**MINIMAL, "spec": {**MINIMAL["spec"], "engine": {"podTemplate": template}}})
    assert not found.accepted


@pytest.mark.parametrize(
    "spec",
    [
        "engine: {podTemplate: &a {metadata: {annotations: {}}, spec: *a}}",
        "speculation: {method: ngram, extraConfig: &a {x: *a}}",
        "speculation: {method: ngram, extraConfig: {x: &a [1, [*a]]}}",
    ],
)
def test_a_file_whose_value_contains_itself_is_a_mistake(spec: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"kind: SpeculativeServing\nspec:\n  {spec}\n")
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert (result.exit_code, result.output) == (
        2,
        f"paceline preflight: {file}: a value contains itself (`&` and `*`)\n",
    )
    file.write_text("kind: SpeculativeServing\nspec: {a: &a {x: 1}, b: *a, c: [*a, *a]}\n")
    assert "contains itself" not in RUNNER.invoke(app, ["preflight", "-f", str(file)]).output


def test_a_key_that_is_set_twice_is_a_mistake_and_an_unquoted_time_is_none(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("kind: SpeculativeServing\nspec:\n  replicas: 1\n  replicas: 2\n")
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert (result.exit_code, "line 4: replicas is set already in line 3" in result.output) == (2, True)
    window = {"days": ["Monday"], "start": "22:30", "durationMinutes": 60, "timeZone": "Europe/Berlin"}
    text = yaml.safe_dump({**MINIMAL, "spec": {**MINIMAL["spec"], "rollout": {"maintenanceWindows": [window]}}})
    file.write_text(text.replace("'22:30'", "22:30"))
    assert "22:30\n" in file.read_text()
    result = RUNNER.invoke(app, ["preflight", "-f", str(file)])
    assert result.exit_code == 0, result.output


def test_how_far_k_can_follow_is_said(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    for method, said in (("ngram", "accepted, k among 5 3 2 1 0"), ("suffix", "accepted, k fixed at 5")):
        spec = {**MINIMAL["spec"], "speculation": {"method": method, "maxTokens": 5}}
        file.write_text(yaml.safe_dump({**MINIMAL, "spec": spec}))
        assert said in RUNNER.invoke(app, ["preflight", "-f", str(file)]).output
    assert RUNNER.invoke(app, ["preflight", "-f", str(file), "-o", "wide"]).exit_code == 2


def test_why_k_stays_is_said_once() -> None:
    found = of(speculation={"method": "suffix", "draft": None})
    assert found.accepted
    assert found.ladder == (5,)
    assert reasons(found, Level.LIMIT) == ["fixed-k"]
    v1 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}
    assert reasons(of(engine=v1), Level.LIMIT) == ["schedule-drops-full-graphs"]
    asked = of(engine=v1, tuning={"ladder": [5, 0]})
    assert asked.ladder == (5, 0)
    assert not any("stays" in remark.message for remark in asked.remarks)


def test_ks_that_miss_their_graphs_are_said() -> None:
    asked: dict[str, Any] = {"speculation": {"maxTokens": 16}, "tuning": {"ladder": [16, 10, 6, 4, 3, 2, 1, 0]}}
    unplugged = {"plugin": {"injection": "None"}}
    assert "few-graphs" in reasons(of(**asked, engine=unplugged), Level.LIMIT)
    assert "few-graphs" not in reasons(of(**asked), Level.LIMIT), "the plugin puts each graph within reach"
    assert "few-graphs" not in reasons(of(speculation={"maxTokens": 16}, engine=unplugged), Level.LIMIT)


def test_what_weakens_pods_is_said() -> None:
    found = of(engine={"podTemplate": {"spec": {"hostNetwork": True}}})
    assert found.accepted
    (remark,) = [remark for remark in found.remarks if remark.level is Level.WEAKENS]
    assert "spec.engine.podTemplate.spec.hostNetwork" in remark.message
    assert "restricted" in remark.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KINDS = ("SpeculativeServing", "SpeculationExperiment", "SpeculationProfile")


@given(st.sampled_from(KINDS), JSON, JSON)
def test_no_document_breaks_it(kind: str, metadata: Any, spec: Any) -> None:
    found = examine({"apiVersion": "paceline.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    assert found.remarks or found.accepted
