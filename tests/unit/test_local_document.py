"""The file of `paceline local`: what is right is understood, what is wrong is told with its place."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.local.document import Text, read
from paceline_operator.local.mistake import UserError

EXAMPLE = Path(__file__).parents[2] / "examples" / "local.yaml"
SERVING: dict[str, Any] = {
    "apiVersion": "paceline.dev/v1alpha1",
    "kind": "SpeculativeServing",
    "metadata": {"name": "one", "labels": {"a": "b"}},
    "spec": {"model": {"source": "/models/m"}, "speculation": {"method": "ngram"}},
}
LOAD: dict[str, Any] = {
    "apiVersion": "paceline.dev/v1alpha1",
    "kind": "LocalLoad",
    "spec": {"phases": [{"durationSeconds": 5, "concurrency": 3, "text": "copy"}]},
}


def written(folder: Path, *documents: Any) -> Path:
    file = folder / "file.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def test_a_serving_alone_has_no_load_and_a_uid_of_its_own(tmp_path: Path) -> None:
    serving, load = read(written(tmp_path, SERVING))
    other, _ = read(written(tmp_path, SERVING))
    assert (serving.metadata.name, load) == ("one", None)
    assert serving.metadata.uid
    assert serving.metadata.uid != other.metadata.uid


def test_a_load_comes_with_it_in_either_order(tmp_path: Path) -> None:
    for documents in ((SERVING, LOAD), (LOAD, SERVING)):
        _, load = read(written(tmp_path, *documents))
        assert load is not None
        phase = load.spec.phases[0]
        assert (phase.duration_seconds, phase.concurrency, phase.text) == (5, 3, Text.COPY)


def test_there_is_no_claim_for_a_model_cache_here(tmp_path: Path) -> None:
    model = {"source": "hf://a/b", "cache": {"claim": {"size": "1Gi"}}}
    serving, _ = read(written(tmp_path, changed(SERVING, model=model)))
    assert (serving.spec.model.source, serving.spec.model.cache) == ("hf://a/b", None)


def test_the_example_is_right() -> None:
    serving, load = read(EXAMPLE)
    assert load is not None
    assert max(phase.concurrency for phase in load.spec.phases) <= serving.spec.engine.max_num_seqs
    assert {phase.text for phase in load.spec.phases} == set(Text)
    assert sum(phase.duration_seconds for phase in load.spec.phases) < 540


def changed(document: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return document | {"spec": document["spec"] | spec}


PHASE = LOAD["spec"]["phases"][0]


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ((), "no document of kind SpeculativeServing"),
        ((LOAD,), "no document of kind SpeculativeServing"),
        ((SERVING, SERVING), "two documents of kind SpeculativeServing"),
        ((SERVING, {"kind": "Pod"}), "kind 'Pod' is none of"),
        ((SERVING | {"apiVersion": "v1"},), "apiVersion is 'v1'"),
        (("text",), "a document is no mapping"),
        ((changed(SERVING, replicas=-1),), "spec.replicas"),
        ((changed(SERVING, tunning={}),), "unknown field spec.tunning"),
        ((changed(SERVING, tuning={"intervalSecond": 1}),), "unknown field spec.tuning.intervalSecond"),
        ((changed(SERVING, model={"source": "relative"}),), "spec.model.source"),
        ((changed(SERVING, speculation={"method": "eagle"}),), "spec.speculation.draft.source"),
        ((changed(SERVING, tuning={"ladder": [3, 1]}),), "spec.tuning.ladder lacks 0"),
        ((changed(SERVING, replicas=True),), "spec.replicas: True is true or false, and must be a number"),
        ((changed(SERVING, replicas="2"),), "spec.replicas: '2' is a text, and must be a number"),
        ((changed(SERVING, suspend="no"),), "spec.suspend: 'no' is a text, and must be true or false"),
        ((SERVING, changed(LOAD, phases=[PHASE | {"durationSeconds": True}])), "spec.phases.0.durationSeconds: True"),
        ((SERVING, changed(LOAD, phases=[])), "spec.phases"),
        ((SERVING, changed(LOAD, phases=[PHASE | {"text": "poems"}])), "spec.phases.0.text"),
        ((SERVING, changed(LOAD, phases=[PHASE, PHASE | {"concurency": 1}])), "unknown field spec.phases.1.concurency"),
    ],
)
def test_each_mistake_is_told_with_its_place(tmp_path: Path, documents: tuple[Any, ...], said: str) -> None:
    file = written(tmp_path, *documents)
    with pytest.raises(UserError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_or_no_yaml_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        read(tmp_path)
    for bad in ("a: [", "a: 1\nb: : x", "a: !!timestamp soon", "a: !!bool maybe", 'a: !!int ""'):
        (tmp_path / "bad.yaml").write_text(bad)
        with pytest.raises(UserError, match="not YAML") as caught:
            read(tmp_path / "bad.yaml")
        assert "\n" not in str(caught.value)


def test_a_value_that_contains_itself_is_told(tmp_path: Path) -> None:
    template: dict[str, Any] = {}
    template["spec"] = template
    with pytest.raises(UserError, match="contains itself"):
        read(written(tmp_path, changed(SERVING, engine={"podTemplate": template})))


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=100) | HOSTILE.map(lambda value: yaml.safe_dump(value).encode()))
def test_no_content_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("hostile") / "file.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError):
        read(file)


PLACES = ("model", "speculation", "engine", "tuning", "slo", "replicas", "suspend", "rollout")


@given(st.sampled_from(PLACES), HOSTILE)
def test_no_value_of_a_field_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, place: str, value: Any
) -> None:
    file = written(tmp_path_factory.mktemp("hostile"), changed(SERVING, **{place: value}))
    try:
        serving, _ = read(file)
    except UserError:
        pass
    else:
        assert serving.metadata.name == "one"


@pytest.mark.parametrize("name", ["", "../../etc", "a" * 41, "Demo", "9lives", "two\nlines"])
def test_a_name_that_a_cluster_would_refuse_is_refused_here(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"metadata\.name"):
        read(written(tmp_path, {**SERVING, "metadata": {"name": name}}))
