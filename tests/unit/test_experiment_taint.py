"""Which windows count, and what drafts were worth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.experiment.consistency import consistency, positions, survival
from paceline_operator.experiment.load import TALKS
from paceline_operator.experiment.results import Acceptance, LengthPoint, LogWarning, Methods, VariantResult, Window
from paceline_operator.experiment.taint import Kind, clean, of_all


def window(load: int = 1, round_: int = 0, **fields: Any) -> Window:
    return Window.model_validate(
        {
            "load": load,
            "round": round_,
            "seed": 0,
            "started_at": 100.0 * round_ + 10 * load,
            "seconds": 9.0,
            "warmed": True,
            "tokens": 900,
            "requests": 9,
            **fields,
        }
    )


def result(*windows: Window, variant: str = "baseline", **fields: Any) -> VariantResult:
    return VariantResult(
        experiment="e", variant=variant, k=0 if variant == "baseline" else 3, windows=windows,
        **{"methods": Methods(gpu="none"), **fields},
    )  # fmt: skip


def kinds(*results: VariantResult) -> dict[tuple[str, int, int], list[tuple[Kind, bool]]]:
    return {
        place: [(taint.kind, taint.excludes) for taint in taints] for place, taints in of_all(results).items() if taints
    }


@pytest.mark.parametrize(("at", "tainted"), [(9.9, False), (10.0, True), (19.0, True), (20.0, True), (20.1, False)])
def test_a_compiler_taints_the_window_it_ran_in(at: float, tainted: bool) -> None:
    """The window is from 10 s to 19 s; the log is a second coarse."""
    warning = LogWarning(at=at, event="Triton kernel JIT compilation", kernel="k")
    found = kinds(result(window(1), window(3), warnings=(warning,)))
    assert found == ({("baseline", 1, 0): [(Kind.JIT, True)]} if tainted else {})


def test_another_variants_compiler_does_not() -> None:
    warning = LogWarning(at=12, event="Triton kernel JIT compilation", kernel="k")
    found = kinds(result(window()), result(window(), variant="a", warnings=(warning,)))
    assert found == {("a", 1, 0): [(Kind.JIT, True)]}


def test_a_window_that_nothing_warmed_up_is_cold() -> None:
    assert kinds(result(window(warmed=False))) == {("baseline", 1, 0): [(Kind.COLD, True)]}


def test_failures_taint() -> None:
    found = kinds(result(window(errors={"TimeoutError": 2}), window(2, fault_seconds=3.0)))
    assert found == {("baseline", 1, 0): [(Kind.FAILED, True)], ("baseline", 2, 0): [(Kind.FAILED, True)]}


def test_a_warm_prefix_cache_excludes_only_where_the_baseline_had_none() -> None:
    """40 % at the second load of all variants is the same for all; 40 % of one is its advantage."""
    warm = (window(1, prefix_cache_hit_rate=0.0), window(16, prefix_cache_hit_rate=0.4))
    cold = (window(1, prefix_cache_hit_rate=0.0), window(16, prefix_cache_hit_rate=0.02))
    both = kinds(result(*warm), result(*warm, variant="a"))
    assert both == {(name, 16, 0): [(Kind.PREFIX, False)] for name in ("baseline", "a")}
    one = kinds(result(*cold), result(*warm, variant="a"))
    assert one == {("a", 16, 0): [(Kind.PREFIX, True)]}
    assert kinds(result(*cold), result(*cold, variant="a")) == {}


def test_what_talks_have_in_the_cache_is_no_taint_unless_the_baseline_has_not() -> None:
    warm = (window(1, prefix_cache_hit_rate=0.0), window(16, prefix_cache_hit_rate=0.4))
    talks = {"methods": Methods(gpu="none", load={TALKS: "40"})}
    assert kinds(result(*warm, **talks), result(*warm, variant="a", **talks)) == {}
    cold = (window(1, prefix_cache_hit_rate=0.0), window(16, prefix_cache_hit_rate=0.02))
    assert kinds(result(*warm, **talks), result(*cold, variant="a", **talks)) == {("a", 16, 0): [(Kind.PREFIX, True)]}


def test_a_cache_that_the_variant_switched_off_is_told_against_the_baseline() -> None:
    warm, cold = window(prefix_cache_hit_rate=0.4), window(prefix_cache_hit_rate=0.0)
    assert kinds(result(warm), result(cold, variant="a")) == {("a", 1, 0): [(Kind.PREFIX, True)]}


def test_only_what_excludes_makes_a_window_unclean() -> None:
    assert clean(())
    found = of_all((result(window(warmed=False)),))["baseline", 1, 0]
    assert not clean(found)


def test_lengths_of_the_warm_up_do_not_count() -> None:
    points = tuple(LengthPoint(at=at, length=length) for at, length in ((5, 4.0), (11, 2.0), (15, 3.0), (18, 2.5)))
    found = consistency(result(window(), variant="a", lengths=points))
    assert found
    assert (found.median_length, found.min_length, found.max_length, found.points) == (2.5, 2.0, 3.0, 3)
    assert found.efficiency == 2.5 / 4
    assert consistency(result(window(), variant="a")) is None
    assert consistency(result(window(), lengths=points)) is None


def test_survival_weighs_windows_by_their_drafts() -> None:
    counted = [
        Acceptance(drafts=10, drafted=30, accepted=5, by_position=(0.4, 0.1)),
        Acceptance(drafts=30, drafted=90, accepted=24, by_position=(0.8,)),
        Acceptance(drafts=0, drafted=0, accepted=0),
    ]
    found = survival(result(*(window(load, acceptance=one) for load, one in enumerate(counted, 1)), variant="a"))
    assert found == pytest.approx((0.7, 0.025))


@given(st.lists(st.floats(0, 1), max_size=16).map(lambda shares: sorted(shares, reverse=True)))
def test_the_table_by_position_is_consistent(shares: list[float]) -> None:
    table = positions(shares)
    assert len(table) == len(shares)
    length = 1.0
    for row in table:
        length += row.marginal
        assert row.length == pytest.approx(length)
        assert row.per_computed == pytest.approx(length / (row.position + 1))
        assert row.conditional is None or 0 <= row.conditional <= 1
