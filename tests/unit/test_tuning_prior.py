"""The ladder and the boot table: what an engine runs before anybody has measured anything."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import compress
from paceline_operator.tuning.prior import boot_table, ladder_of
from tests.unit.simulated import SURVIVALS, goodput, grid, spec, workload


@pytest.mark.parametrize(
    ("max_tokens", "ladder"),
    [
        (1, (1, 0)),
        (2, (2, 1, 0)),
        (3, (3, 2, 1, 0)),
        (4, (4, 3, 2, 1, 0)),
        (5, (5, 3, 2, 1, 0)),
        (7, (7, 5, 3, 2, 1, 0)),
        (6, (6, 3, 2, 1, 0)),
        (15, (15, 7, 5, 3, 2, 1, 0)),
        (16, (16, 5, 2, 1, 0)),
    ],
)
def test_default_ladder_thins_out_and_nests(max_tokens: int, ladder: tuple[int, ...]) -> None:
    speculation = {"method": "ngram", "maxTokens": max_tokens}
    assert ladder_of(spec(speculation=speculation)) == ladder


@given(st.integers(1, 32), st.integers(1, 300))
def test_default_ladder_always_boots(max_tokens: int, max_num_seqs: int) -> None:
    ladder = ladder_of(
        spec(speculation={"method": "ngram", "maxTokens": max_tokens}, engine={"maxNumSeqs": max_num_seqs})
    )
    assert ladder[0] == max_tokens
    assert max_num_seqs == 1 or ladder[-1] == 0
    assert len(boot_table(ladder, max_num_seqs)) == max_num_seqs + 1


@given(st.integers(1, 32), st.integers(1, 300), st.sets(st.integers(0, 32), min_size=1, max_size=8))
def test_the_default_ladder_has_every_k_of_a_manual_table(max_tokens: int, max_num_seqs: int, ks: set[int]) -> None:
    ks = {min(k, max_tokens) for k in ks}
    table = [{"fromRequests": start, "k": k} for start, k in enumerate(ks, start=1)]
    tuning = {"mode": "Manual", "table": table}
    speculation = {"method": "ngram", "maxTokens": max_tokens}
    ladder = ladder_of(spec(speculation=speculation, engine={"maxNumSeqs": max_num_seqs}, tuning=tuning))
    assert ks <= set(ladder)
    assert len(ladder) <= max(len(ks), max_num_seqs)
    if len(ks) <= max_num_seqs:
        assert len(boot_table(ladder, max_num_seqs)) == max_num_seqs + 1


def test_a_given_ladder_is_taken_as_it_is() -> None:
    assert ladder_of(spec(tuning={"ladder": [0, 4, 2]})) == (4, 2, 0)


V1 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}


@pytest.mark.parametrize(
    ("method", "engine"), [("suffix", {}), ("ngram_gpu", V1), ("ngram", V1)], ids=["suffix", "ngram_gpu", "V1"]
)
def test_an_engine_without_a_schedule_has_a_ladder_of_one(method: str, engine: dict[str, object]) -> None:
    assert ladder_of(spec(speculation={"method": method, "maxTokens": 4}, engine=engine)) == (4,)
    assert set(boot_table((4,), 64)) == {4}


def test_on_the_v1_runner_a_ladder_is_asked_for_or_costs_nothing() -> None:
    for engine, tuning in (
        (V1, {"ladder": [4, 0]}),
        ({**V1, "cudagraphMode": "PIECEWISE"}, {}),
        ({"device": "CPU"}, {}),
    ):
        found = ladder_of(spec(speculation={"method": "ngram", "maxTokens": 4}, engine=engine, tuning=tuning))
        assert found[0] == 4
        assert found[-1] == 0


ladders = st.sets(st.integers(0, 32), min_size=1, max_size=12).map(lambda ks: tuple(sorted(ks, reverse=True)))


@settings(deadline=None)
@given(ladders, st.integers(1, 600))
def test_boot_table_descends_through_the_whole_ladder(ladder: tuple[int, ...], max_num_seqs: int) -> None:
    if len(ladder) > max_num_seqs:
        with pytest.raises(ValueError, match="maxNumSeqs"):
            boot_table(ladder, max_num_seqs)
        return
    table = boot_table(ladder, max_num_seqs)
    assert len(table) == max_num_seqs + 1
    assert all(a >= b for a, b in pairwise(table))
    assert set(table[1:]) == set(ladder), "each ladder k owns a batch size: the engine captures graphs for these"
    assert table[0] == table[1]


@pytest.mark.parametrize("ladder", [(), (1, 2), (3, 3), (2, -1)])
def test_a_ladder_that_is_none_is_refused(ladder: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="descend"):
        boot_table(ladder, 64)


def test_boot_table_of_the_default_serving() -> None:
    assert compress(boot_table((5, 3, 2, 1, 0), 256)) == ((1, 5), (20, 3), (33, 2), (49, 1), (256, 0))


def test_boot_table_is_a_better_guess_than_any_constant() -> None:
    """On the measured grid, over all its loads and workloads (the poorest drafts included), in mean goodput lost."""
    cost, loads = grid("h200_dense32b_eagle.csv"), (1, 4, 8, 16, 32, 48, 64, 96, 128, 192)
    table = boot_table((5, 3, 2, 1, 0), 256)

    def regret(guess: dict[int, int]) -> float:
        lost = []
        for survival in (workload("gsm8k"), workload("sharegpt"), SURVIVALS["poor"]):
            for load in loads:
                known = {k: goodput(cost, survival, load, k) for k in (5, 3, 2, 1, 0)}
                lost.append(1 - known[guess[load]] / max(known.values()))
        return sum(lost) / len(lost)

    boot = regret({load: table[load] for load in loads})
    assert boot < min(regret(dict.fromkeys(loads, k)) for k in (5, 3, 2, 1, 0))
