"""Variants as servings: one change, fixed k, the operator's own rendering; and the way back into the serving."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.experiment import BASELINE, SERVING, ExperimentSpec, SpeculationExperiment
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.written import unread
from paceline_operator.experiment import templates, variants
from paceline_operator.experiment.plan import plan
from paceline_operator.local.container import IMAGES
from paceline_operator.resources.pod import CONTAINER

EAGLE = {"method": "eagle3", "draft": {"source": "hf://org/draft"}, "maxTokens": 3}


def serving(**spec: Any) -> SpeculativeServing:
    return SpeculativeServing.model_validate(
        {
            "apiVersion": "paceline.dev/v1alpha1",
            "kind": "SpeculativeServing",
            "metadata": {"name": "chat", "uid": "u"},
            "spec": {"model": {"source": "hf://org/model"}, "speculation": {"method": "ngram", "maxTokens": 5}} | spec,
        }
    )


def experiment(*found: dict[str, Any]) -> ExperimentSpec:
    load = {"concurrency": [1], "prompts": {"random": {}}}
    return ExperimentSpec.model_validate({"servingRef": {"name": "chat"}, "load": load, "variants": list(found)})


def argv(of: SpeculativeServing, variant: variants.Variant) -> list[str]:
    template = variants.rendered(of, variant, IMAGES)
    return list(next(one for one in template["spec"]["containers"] if one["name"] == CONTAINER)["args"])


def config(arguments: list[str], name: str = "--speculative-config") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(arguments[arguments.index(name) + 1])
    return found


def test_each_variant_is_its_parent_with_one_change() -> None:
    base = serving()
    found = variants.of(
        experiment(
            {"name": "cached-k2", "parent": "k2", "change": {"enablePrefixCaching": True}},
            {"name": "k2", "change": {"maxTokens": 2}},
            {"name": "eagle", "parent": BASELINE, "change": {"speculation": EAGLE}},
            {"name": "eager", "parent": BASELINE, "change": {"enforceEager": True}},
            {"name": "decode", "change": {"cudagraphMode": "FULL_DECODE_ONLY"}},
        ),
        base.spec,
    )
    assert list(found) == [BASELINE, SERVING, "cached-k2", "k2", "eagle", "eager", "decode"]
    assert {name: one.k for name, one in found.items()} == {
        BASELINE: 0, SERVING: 5, "cached-k2": 2, "k2": 2, "eagle": 3, "eager": 0, "decode": 5,
    }  # fmt: skip
    assert "--enable-prefix-caching" in argv(base, found["cached-k2"])
    assert "--speculative-config" not in argv(base, found["eager"])
    assert "--enforce-eager" in argv(base, found["eager"])
    assert config(argv(base, found["decode"]), "--compilation-config")["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert config(argv(base, found["eagle"]))["model"] == "org/draft"


@pytest.mark.parametrize(
    "tuning", [{}, {"ladder": [5, 2, 0]}, {"mode": "Manual", "table": [{"fromRequests": 1, "k": 1}]}]
)
def test_k_is_the_same_at_every_load_and_there_is_no_plugin(tuning: dict[str, Any]) -> None:
    base = serving(tuning=tuning)
    found = variants.of(experiment(), base.spec)
    arguments = argv(base, found[SERVING])
    assert config(arguments)["num_speculative_tokens"] == 5
    assert "num_speculative_tokens_per_batch_size" not in config(arguments)
    assert all(size % 6 == 0 for size in config(arguments, "--compilation-config")["cudagraph_capture_sizes"][1:])
    template = variants.rendered(base, found[SERVING], IMAGES)
    engine = next(one for one in template["spec"]["containers"] if one["name"] == "engine")
    assert "PYTHONPATH" not in {one["name"] for one in engine["env"]}
    assert variants.VERBOSE in arguments


def test_a_variant_that_is_its_parent_once_more_is_refused() -> None:
    same, other = ({"name": name, "change": {"maxTokens": k}} for name, k in (("same", 5), ("other", 3)))
    child = {"name": "child", "parent": "other", "change": {"maxTokens": 3}}
    found = variants.of(experiment(same, other, child), serving().spec)
    assert list(variants.refusals(found)) == [
        "variant same: its change changes nothing: serving is like that already",
        "variant child: its change changes nothing: other is like that already",
    ]


def test_what_vllm_would_not_run_is_refused_by_the_variants_name() -> None:
    enabled = {"name": "on", "change": {"adaptiveVerification": "Enabled"}}
    (said,) = variants.refusals({"on": variants.of(experiment(enabled), serving().spec)["on"]})
    assert said.startswith("variant on: ")


@pytest.mark.parametrize(
    ("change", "raw", "expected"),
    [
        ({"maxTokens": 2}, {}, {"speculation": {"maxTokens": 2}}),
        (
            {"ngram": {"promptLookupMin": 2, "promptLookupMax": 16, "maxTokens": 4}},
            {},
            {"speculation": {"maxTokens": 4, "ngram": {"promptLookupMin": 2, "promptLookupMax": 16}}},
        ),
        (
            {"speculation": EAGLE},
            {"ngram": {"promptLookupMin": 1}},
            {"speculation": {"draft": {"source": "hf://org/draft"}, "maxTokens": 3, "method": "eagle3", "ngram": None}},
        ),
        ({"enablePrefixCaching": False}, {}, {"engine": {"enablePrefixCaching": False}}),
    ],
)
def test_the_patch_has_exactly_the_changed_fields(
    change: dict[str, Any], raw: dict[str, Any], expected: dict[str, Any]
) -> None:
    speculation = {"method": "ngram", "maxTokens": 5, **raw}
    base = serving(speculation=speculation)
    variant = variants.of(experiment({"name": "v", "change": change}), base.spec)["v"]
    stored = {"spec": {"speculation": speculation}}
    assert variants.patch(stored, variant, base.spec) == {"spec": expected}


def test_the_baseline_is_speculation_switched_off_and_the_serving_is_nothing() -> None:
    base = serving()
    found = variants.of(experiment(), base.spec)
    stored = {"spec": {"speculation": {"method": "ngram", "maxTokens": 5}}}
    off = variants.patch(stored, found[BASELINE], base.spec)
    assert off == {"spec": {"speculation": {"enabled": False}}}
    assert list(variants.differences(off, stored)) == ["spec.speculation.enabled: unset -> False"]
    assert variants.patch(stored, found[SERVING], base.spec) == {"spec": {}}


CHANGES = st.sampled_from(
    [
        {"maxTokens": 2}, {"enablePrefixCaching": True}, {"enforceEager": True}, {"speculation": EAGLE},
        {"ngram": {"maxTokens": 4}}, {"cudagraphMode": "PIECEWISE"}, {"speculation": {"method": "ngram"}},
    ]
)  # fmt: skip


@given(st.lists(CHANGES, min_size=1, max_size=4))
def test_a_patched_serving_is_the_variant(changes: list[dict[str, Any]]) -> None:
    """However long the line of parents, where the operator's own merge puts it together."""
    base = serving()
    names = [SERVING, *(f"v{at}" for at in range(len(changes)))]
    listed = [{"name": name, "parent": names[at], "change": changes[at]} for at, name in enumerate(names[1:])]
    variant = variants.of(experiment(*listed), base.spec)[names[-1]]
    stored = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
    patched = _merged(stored, variants.patch(stored, variant, base.spec))
    after = SpeculativeServing.model_validate(patched).spec
    assert argv(base, variant) == argv(base, variants.Variant(SERVING, None, after, drafter=True))


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


@pytest.mark.parametrize("name", list(templates.titles()))
def test_a_template_can_be_planned_and_rendered(name: str) -> None:
    (document,) = yaml.safe_load_all(templates.text(name).replace("ORGANISATION/DRAFT", "org/draft"))
    found = SpeculationExperiment.model_validate(document)
    assert unread(document, found) == []
    assert found.metadata.name == name
    assert plan(found.spec).cut == ()
    eagle = {"method": "eagle", "draft": {"source": "hf://org/draft"}, "maxTokens": 4}
    base = serving() if name == "four-variants" else serving(speculation={**eagle, "adaptiveVerification": "Enabled"})
    known = variants.of(found.spec, base.spec)
    assert list(variants.refusals(known)) == []
    rendered = {tuple(argv(base, one)) for one in known.values()}
    assert len(rendered) == len(known), "every variant is another engine"


def test_a_template_that_is_none() -> None:
    with pytest.raises(KeyError):
        templates.text("../templates/k-sweep")
