"""The schedule of an experiment: interleaved, with the baseline, within its budget, one change at a time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.experiment import ExperimentSpec
from paceline_operator.experiment.plan import Costs, PlanError, plan, seconds_of

COSTS = Costs(boot_seconds=60, warm_up_seconds=10)


def spec(**fields: Any) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {
            "servingRef": {"name": "chat"},
            "variants": [{"name": "k2", "change": {"maxTokens": 2}}],
            "load": {"concurrency": [16, 1], "prompts": {"random": {}}, "seed": 7},
            "duration": {"seconds": 50},
            "budgetGpuMinutes": 1000,
            **fields,
        }
    )


def test_rounds_go_forwards_and_backwards_in_turn() -> None:
    found = plan(spec(repetitions=3), COSTS)
    assert [visit.variant for visit in found.visits] == [
        "baseline", "serving", "k2", "k2", "serving", "baseline", "baseline", "serving", "k2",
    ]  # fmt: skip
    loads = [[one.load for one in visit.measurements] for visit in found.visits]
    assert loads == [[1, 16]] * 3 + [[16, 1]] * 3 + [[1, 16]] * 3
    assert all(visit.warm_up == (16, 1) for visit in found.visits)


def test_variants_of_a_round_get_the_same_prompts_and_nothing_else_does() -> None:
    seeds = {
        (visit.round, one.load, visit.variant): one.seed
        for visit in plan(spec(repetitions=4), COSTS).visits
        for one in visit.measurements
    }
    by_place: dict[tuple[int, int], set[int]] = {}
    for (round_, load, _), seed in seeds.items():
        by_place.setdefault((round_, load), set()).add(seed)
    assert all(len(found) == 1 for found in by_place.values())
    assert len({next(iter(found)) for found in by_place.values()}) == 8
    assert min(seeds.values()) == 7


def test_the_budget_cuts_whole_rounds_and_says_so() -> None:
    """3 variants x (60 s boot + 2 loads x (10 + 50)) = 9 GPU-minutes a round on one GPU, 18 on two."""
    found = plan(spec(repetitions=5, budgetGpuMinutes=28), COSTS)
    assert (found.rounds, found.cut, found.gpu_minutes) == (3, (3, 4), 27)
    assert found.message == (
        "3 rounds of 3 variants and 2 loads: 27 GPU-minutes; "
        "spec.budgetGpuMinutes 28 leaves out rounds 4 to 5, which need 45"
    )
    two = Costs(boot_seconds=60, warm_up_seconds=10, gpus=2)
    assert plan(spec(repetitions=2, budgetGpuMinutes=36), two).gpu_minutes == 36
    with pytest.raises(PlanError, match=r"pays 1 of the 2 rounds.*18\.0 GPU-minutes; raise it to 36"):
        plan(spec(repetitions=2, budgetGpuMinutes=35), two)


def test_more_than_one_change_is_refused_with_the_preflights_own_words() -> None:
    two = {"name": "k2", "change": {"maxTokens": 2, "enforceEager": True}}
    with pytest.raises(PlanError, match="a variant changes exactly one thing"):
        plan(spec(variants=[two]), COSTS)


def test_every_field_of_a_group_is_named() -> None:
    wide = {"name": "wide", "change": {"ngram": {"promptLookupMin": 2, "promptLookupMax": 16, "maxTokens": 4}}}
    method = {"name": "other", "change": {"speculation": {"method": "ngram", "maxTokens": 4}}}
    changes = plan(spec(variants=[method, {**wide, "parent": "other"}]), COSTS).changes
    assert changes["wide"] == {"ngram.promptLookupMin": "2", "ngram.promptLookupMax": "16", "ngram.maxTokens": "4"}
    assert changes["other"]["speculation.method"] == "ngram"


def test_a_fault_is_waited_for_several_times() -> None:
    assert seconds_of(spec(duration={"timesToFault": 15, "secondsToFault": 60}).duration) == 900


@given(
    st.lists(st.integers(1, 4096), min_size=1, max_size=16, unique=True),
    st.integers(2, 20),
    st.integers(1, 100_000),
    st.integers(0, 2**31 - 1),
    st.integers(0, 3),
)
def test_every_plan_is_balanced_within_its_budget_or_refused(
    loads: list[int], repetitions: int, budget: int, seed: int, variants: int
) -> None:
    named = [{"name": f"k{k}", "change": {"maxTokens": k}} for k in range(1, variants + 1)]
    load = {"concurrency": loads, "prompts": {"random": {}}, "seed": seed}
    asked = spec(load=load, repetitions=repetitions, budgetGpuMinutes=budget, variants=named)
    if 2 * (2 + variants) * (1 + len(loads)) > budget:
        with pytest.raises(PlanError, match="budgetGpuMinutes"):
            plan(asked, COSTS)
        return
    found = plan(asked, COSTS)
    assert found.gpu_minutes <= budget
    assert 2 <= found.rounds == repetitions - len(found.cut)
    counts = Counter((visit.variant, one.load) for visit in found.visits for one in visit.measurements)
    assert counts.keys() == {(name, load) for name in found.variants for load in loads}
    assert set(counts.values()) == {found.rounds}
    assert all(0 <= one.seed < 2**31 for visit in found.visits for one in visit.measurements)
