"""Which load is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import LOAD_EDGES, AcceptanceCell, CostCell, Gauges, Samples, load_bucket
from paceline_operator.tuning.load import Load, buckets_of, observe


def cell(load: int, seconds: float) -> CostCell:
    return CostCell(
        load=load,
        context=0,
        k_drafted=1,
        k_verified=1,
        probe=False,
        steps=10,
        request_steps=10 * max(1, load),
        emitted=0,
        seconds=seconds,
        seconds_squared=0.0,
        histogram={},
    )


def answer(
    *cells: CostCell, running: int = 0, reset: bool = False, acceptance: tuple[AcceptanceCell, ...] = ()
) -> Samples:
    gauges = Gauges(running=running, waiting=0, kv_cache_usage=0, prompt_tokens=0, generation_tokens=0)
    return Samples(
        boot_id="b",
        cursor="b:1",
        reset=reset,
        lost_windows=0,
        from_seconds=0,
        to_seconds=1,
        cells=cells,
        acceptance=acceptance,
        excluded_steps={},
        steps_by_k={},
        probe_steps_by_k={},
        gauges=gauges,
    )


def test_nothing_decoded_is_no_load() -> None:
    assert observe([]) == Load()
    assert observe([answer(running=5)]) == Load()


def test_decode_time_decides_not_the_number_of_steps() -> None:
    found = observe([answer(cell(1, 1.0), cell(16, 9.0))])
    assert found.present == 16
    assert found.shares == {1: 0.1, 16: 0.9}


def test_stragglers_do_not_move_the_load_into_a_bucket_nobody_was_in() -> None:
    assert observe([answer(cell(64, 8.0), cell(1, 2.0))]).present == 64


def test_an_idle_engine_says_nothing() -> None:
    assert observe([answer(), answer(cell(8, 3.0)), answer(cell(0, 5.0))]).present == 8


def test_since_boot_only_the_gauge_tells_of_now() -> None:
    assert observe([answer(cell(64, 100.0), running=5, reset=True)]).present == 4
    assert observe([answer(cell(64, 100.0), running=0, reset=True)]).present is None


def test_steps_with_prefill_in_all_of_them_still_tell_the_load() -> None:
    counts = AcceptanceCell(k=1, load=12, request_steps=120, drafts=120, drafted=(120,), accepted=(60,))
    assert observe([answer(acceptance=(counts,))]).present == 12


@given(st.lists(st.tuples(st.sampled_from(LOAD_EDGES), st.floats(0.01, 100)), min_size=1, max_size=10))
def test_the_present_load_is_one_that_was_there(parts: list[tuple[int, float]]) -> None:
    found = observe([answer(*(cell(load, seconds) for load, seconds in parts))])
    assert found.present in {load for load, _ in parts}
    assert abs(sum(found.shares.values()) - 1) < 1e-9


@given(st.integers(1, 4096))
def test_every_load_an_engine_reaches_has_its_bucket(max_num_seqs: int) -> None:
    loads = buckets_of(max_num_seqs)
    assert loads[0] == 1
    assert {load_bucket(n) for n in range(1, max_num_seqs + 1)} == set(loads)


def test_a_load_that_the_table_has_no_entry_for_counts_as_its_last() -> None:
    assert observe([answer(cell(128, 2.0), cell(64, 1.0))], 64) == Load(64, {64: 1.0})
    assert observe([answer(running=5000, reset=True)], 100).present == 96
