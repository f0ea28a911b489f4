"""A published experiment and published tables, fed to the analysis: it must come to the published conclusions."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_operator.experiment.consistency import Consistency, positions, ranked
from paceline_operator.experiment.results import folder
from paceline_operator.experiment.taint import Kind, of_all
from paceline_operator.experiment.verdict import Basis, Judge, Word, compare

PUBLISHED = Path(__file__).parents[1] / "data" / "experiments" / "qwen3-32b-rtx-pro-6000"
SURVIVAL = (0.437, 0.220, 0.119, 0.068, 0.043, 0.027, 0.016)
"""A large MoE with k=7: share of drafts accepted up to each position."""


def test_the_ratios_are_the_published_ones_raw_and_corrected() -> None:
    found = {(one.variant, one.load): one for one in compare(folder(PUBLISHED)) if one.judge is Judge.THROUGHPUT}
    assert {place: round(one.raw_ratio, 2) for place, one in found.items()} == {
        ("ngram", 1): 1.06, ("wide-ngram", 1): 1.17, ("eagle3", 1): 2.06,
        ("ngram", 16): 0.84, ("wide-ngram", 16): 0.98, ("eagle3", 16): 1.39,
    }  # fmt: skip
    corrected = {name: (round(found[name, 16].ratio, 2), found[name, 16].basis) for name in ("ngram", "eagle3")}
    assert corrected == {"ngram": (0.94, Basis.DECODE), "eagle3": (1.70, Basis.DECODE)}
    assert (round(found["wide-ngram", 16].ratio, 2), found["wide-ngram", 16].basis) == (0.98, Basis.CLEAN)


def test_the_first_tokens_that_waited_for_the_compiler_are_marked() -> None:
    results = folder(PUBLISHED)
    marked = {(variant, load): taints for (variant, load, _), taints in of_all(results).items()}
    compiled = {place for place, taints in marked.items() if any(taint.kind is Kind.JIT for taint in taints)}
    assert compiled == {("ngram", 16), ("eagle3", 16)}
    message = next(taint.message for taint in marked["eagle3", 16] if taint.kind is Kind.JIT)
    assert "_topk_topp_kernel" in message
    assert "3.30 s" in message
    warm = {place for place, taints in marked.items() if any(taint.kind is Kind.PREFIX for taint in taints)}
    assert warm == {(result.variant, 16) for result in results}
    assert not any(taint.excludes for taints in marked.values() for taint in taints if taint.kind is Kind.PREFIX)


def test_measured_once_nothing_is_called_better_or_worse() -> None:
    found = compare(folder(PUBLISHED))
    assert {one.word for one in found} == {Word.NO_DIFFERENCE}
    assert all(one.interval is None and one.reason for one in found)


def test_variants_rank_by_efficiency_and_not_by_their_best_moment() -> None:
    found = ranked(folder(PUBLISHED))
    assert [shown(one) for one in found] == [
        ("eagle3", 2.22, 1.92, 2.59, "56%"),
        ("wide-ngram", 1.83, 1.33, 3.04, "37%"),
        ("ngram", 2.18, 1.00, 5.09, "31%"),
    ]
    assert found[2].firing_rate == pytest.approx(0.05, abs=0.0005)


def shown(one: Consistency) -> tuple[str, float, float, float, str]:
    return one.variant, one.median_length, one.min_length, one.max_length, f"{one.efficiency:.0%}"


def test_the_published_table_by_position_to_the_digit() -> None:
    table = positions(SURVIVAL)
    assert [round(row.per_computed, 2) for row in table] == [0.72, 0.55, 0.44, 0.37, 0.31, 0.27, 0.24]
    assert [round(row.conditional or 0, 3) for row in table] == [0.437, 0.503, 0.541, 0.571, 0.632, 0.628, 0.593]
    assert [row.marginal for row in table] == list(SURVIVAL)
    assert round(table[-1].length, 2) == 1.93


def test_without_a_draft_a_position_gives_one_token() -> None:
    assert positions(()) == ()
    assert positions((0.0, 0.0))[1].conditional is None
    assert positions((5e-324, 1.0))[1].conditional == 1.0  # a share that no draft can have, and too large a ratio
