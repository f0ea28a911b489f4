"""What of an experiment or a profile is refused, and that the message names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.acceptance import judgement
from paceline_operator.api.conditions import Reason
from paceline_operator.verdicts import Verdict
from tests.harness.objects import DIGEST, EAGLE, EXPERIMENT, PROFILE, SPECS, VARIANT, Change, thing

EXAMPLE = Path(__file__).parents[2] / "examples" / "experiment.yaml"
NGRAM = {"speculation": {"method": "ngram"}}
ROW: dict[str, Any] = {"k": 2, "requestSteps": 9, "drafts": 8, "drafted": [8, 7], "accepted": [6, 3]}


def variants(*changes: Change, parent: str = "serving") -> dict[str, Any]:
    """Variants v0, v1, ... each the child of the one before; the first of `parent`."""
    parents = [parent, *(f"v{index}" for index in range(len(changes)))]
    return {
        "variants": [
            {"name": f"v{index}", "parent": parents[index], "change": change} for index, change in enumerate(changes)
        ]
    }


def judged(kind: str, change: Any) -> Verdict:
    return judgement(kind, thing(kind, change))


GOOD = [
    ("the smallest", EXPERIMENT, {}),
    ("a child of the baseline", EXPERIMENT, variants({"enforceEager": True}, parent="baseline")),
    ("a speculation for the baseline", EXPERIMENT, variants(NGRAM, {"ngram": {"maxTokens": 2}}, parent="baseline")),
    ("a window of the serving's method", EXPERIMENT, variants({"ngram": {}})),
    ("a window for a method of its own", EXPERIMENT, variants(EAGLE, NGRAM, {"ngram": {}})),
    ("a parent that comes later", EXPERIMENT, {"variants": [{**VARIANT, "name": "b", "parent": "k3"}, VARIANT]}),
    ("the smallest", PROFILE, {}),
    ("counts", PROFILE, {"acceptance": [ROW, {**ROW, "drafts": 9, "drafted": [9, 9], "accepted": [9, 9]}]}),
    ("a draft", PROFILE, {"key": {"method": "eagle3", "draftDigest": DIGEST}}),
]
REFUSED = [
    ("two changes", EXPERIMENT, variants({"maxTokens": 3, "enforceEager": True}), "spec.variants[0].change", "exactly"),
    ("no change", EXPERIMENT, variants({"maxTokens": 3}, {}), "spec.variants[1].change has nothing", "exactly one"),
    ("a taken name", EXPERIMENT, {"variants": [{**VARIANT, "name": "baseline"}]}, "spec.variants[0].name", "taken"),
    ("a name twice", EXPERIMENT, {"variants": [VARIANT, VARIANT]}, "spec.variants[1].name", "twice"),
    ("no such parent", EXPERIMENT, variants({"maxTokens": 3}, parent="x"), "spec.variants[0].parent", "stops at x"),
    ("its own parent", EXPERIMENT, variants({"maxTokens": 3}, parent="v0"), "spec.variants[0].parent", "lead back"),
    (
        "parents in a circle",
        EXPERIMENT,
        variants({"maxTokens": 3}, {"enforceEager": True}, parent="v1"),
        "spec.variants[0].parent",
        "lead back",
    ),
    (
        "k of no speculation",
        EXPERIMENT,
        variants({"enforceEager": True}, {"maxTokens": 3}, parent="baseline"),
        "spec.variants[1].change.maxTokens",
        "baseline has no speculation",
    ),
    (
        "a method without its draft",
        EXPERIMENT,
        variants({"speculation": {"method": "eagle3"}}),
        "spec.variants[0].change.speculation.method",
        "needs a draft",
    ),
    (
        "verification without probabilities",
        EXPERIMENT,
        variants({"speculation": {"method": "ngram", "adaptiveVerification": "Enabled"}}),
        "spec.variants[0].change.speculation.adaptiveVerification",
        "ngram",
    ),
    (
        "a window of another method",
        EXPERIMENT,
        variants(EAGLE, {"ngram": {}}),
        "spec.variants[1].change.ngram",
        "not e",
    ),
    (
        "a window upside down",
        EXPERIMENT,
        variants({"ngram": {"promptLookupMin": 9}}),
        "spec.variants[0].change.ngram.promptLookupMin",
        "exceeds",
    ),
    ("no prompts", EXPERIMENT, {"load": {"prompts": {"random": None}}}, "spec.load.prompts has nothing", "exactly one"),
    (
        "prompts from two places",
        EXPERIMENT,
        {"load": {"prompts": {"configMap": {"name": "a", "key": "b"}}}},
        "spec.load.prompts",
        "random, configMap",
    ),
    ("half a duration", EXPERIMENT, {"duration": {"timesToFault": 3}}, "spec.duration", "secondsToFault"),
    ("an unknown method", EXPERIMENT, variants({"speculation": {"method": "new"}}), "spec.variants.0.change", "ngram"),
    ("no load", EXPERIMENT, {"load": None}, "spec.load", "required"),
    ("a key without its draft", PROFILE, {"key": {"method": "eagle3"}}, "spec.key.draftDigest", "draft model"),
    ("costs of a larger k", PROFILE, {"key": {"maxTokens": 1}, "acceptance": [ROW]}, "spec.acceptance[0].k is 2", "1"),
    ("a cost of a larger k", PROFILE, {"cost": [SPECS[PROFILE]["cost"][0] | {"k": 6}]}, "spec.cost[0].k", "maxTokens"),
    ("a count too few", PROFILE, {"acceptance": [{**ROW, "drafted": [8]}]}, "spec.acceptance[0].drafted", "k is 2"),
    ("a count too many", PROFILE, {"acceptance": [{**ROW, "accepted": [1, 1, 1]}]}, "spec.acceptance[0].accepted", "3"),
    ("more drafts than steps", PROFILE, {"acceptance": [{**ROW, "drafts": 10}]}, "spec.acceptance[0].drafts", "Steps"),
    ("more drafted", PROFILE, {"acceptance": [ROW, {**ROW, "drafted": [9, 7]}]}, "spec.acceptance[1].drafted[0]", "8"),
    ("more accepted", PROFILE, {"acceptance": [{**ROW, "accepted": [6, 8]}]}, "spec.acceptance[0].accepted[1]", "7"),
]


@pytest.mark.parametrize(("kind", "change"), [row[1:] for row in GOOD], ids=[f"{row[1]} {row[0]}" for row in GOOD])
def test_accepted_says_what_comes_of_it(kind: str, change: Any) -> None:
    comes = {
        EXPERIMENT: "variants are measured one at a time, each beside the serving",
        PROFILE: "servings with its key that name it in tuning.profileRef start from it",
    }[kind]
    verdict = judged(kind, change)
    assert (verdict.status, verdict.reason) == (True, Reason.VALID), verdict.message
    assert verdict.message == f"The spec is valid; {comes}"


@pytest.mark.parametrize(
    ("kind", "change", "field", "words"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused_with_the_field(kind: str, change: Any, field: str, words: str) -> None:
    verdict = judged(kind, change)
    assert (verdict.status, verdict.reason) == (False, Reason.INVALID_SPEC)
    first = verdict.message.split("; spec.")[0]
    assert first.startswith(field)
    assert words in first


def test_the_example_is_accepted() -> None:
    assert judgement(EXPERIMENT, yaml.safe_load(EXAMPLE.read_text())).status is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["a", "b", "c", "serving", "baseline", "nobody"])


@given(st.sampled_from([EXPERIMENT, PROFILE]), st.sampled_from(sorted({*SPECS[EXPERIMENT], *SPECS[PROFILE]})), JSON)
def test_no_stored_spec_breaks_a_pass(kind: str, field: str, value: Any) -> None:
    assert judgement(kind, thing(kind, {}) | {"spec": {**SPECS[kind], field: value}}).message
    assert judgement(kind, thing(kind, {}) | {"spec": value}).status is False


@given(st.lists(st.tuples(NAMES, NAMES), max_size=5))
def test_any_family_is_judged_and_only_descent_from_a_root_is_accepted(family: list[tuple[str, str]]) -> None:
    change = {"variants": [{"name": name, "parent": parent, "change": {"image": "i"}} for name, parent in family]}
    parents, reached = dict(family), {"serving", "baseline"}
    for _ in family:
        reached |= {name for name, parent in family if parent in reached}
    good = len(parents) == len(family) and not {"serving", "baseline"} & set(parents) and set(parents) <= reached
    assert judged(EXPERIMENT, change).status is good
