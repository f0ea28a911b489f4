"""Samples: every step is handed to every reader once, however rarely it reads, and memory stays bounded."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.policy import Phase
from paceline_engine.protocol import HISTOGRAM_BASE, Gauges, Samples, Verification, load_bucket
from paceline_engine.samples import (
    IDLE,
    IDLE_WINDOW_SECONDS,
    RING_CELLS,
    RING_WINDOWS,
    STALL_CREDIT,
    STALL_SHARE,
    TURNOVER_SHARE,
    TURNOVER_STEPS,
    WINDOW_SECONDS,
    History,
    Pace,
    Recorder,
    Step,
)
from paceline_engine.windows import MAX_CELLS, AcceptanceKey, AcceptanceSum, CostSum, Window, positions

GAUGES = Gauges(running=0, waiting=0, kv_cache_usage=0, prompt_tokens=0, generation_tokens=0)


def step(
    *, sampling: int = 1, k: int = 3, phase: Phase = Phase.TABLE, excluded: str = "", seconds: float = 0.01
) -> Step:
    return Step(
        sampling=sampling,
        k=k,
        phase=phase,
        k_before=k,
        verified=k,
        context=100.0,
        verification=Verification.ALL,
        excluded=excluded,
        seconds=seconds,
    )


def steps_in(samples: Samples) -> int:
    assert sum(samples.excluded_steps.values()) + sum(cell.steps for cell in samples.cells) == sum(
        samples.steps_by_k.values()
    ) + sum(samples.probe_steps_by_k.values())
    return sum(samples.steps_by_k.values()) + sum(samples.probe_steps_by_k.values())


def crowd(recorder: Recorder, steps: int) -> None:
    """Steps of which hardly two are alike."""
    for at in range(steps):
        verified, k = divmod(at, 64)
        recorder.step(replace(step(k=k), verified=verified), emitted=1)


events = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.sampled_from(["", "prefill", "settling"]), st.floats(0.001, 3.0)),
        st.tuples(st.just("read"), st.integers(0, 2), st.none()),
        st.tuples(st.just("housekeep"), st.none(), st.none()),
    ),
    max_size=120,
)


@given(events)
def test_every_reader_gets_every_step_once(happened: list[tuple[str, object, float | None]]) -> None:
    recorder = Recorder()
    history = History(recorder, "boot")
    cursors: list[str | None] = [None, None, None]
    got = [0, 0, 0]
    now, done = 0.0, 0

    def read(reader: int) -> None:
        answer = history.since(cursors[reader], GAUGES)
        assert answer.reset is (cursors[reader] is None)
        assert answer.lost_windows == 0
        assert answer.from_seconds <= answer.to_seconds <= now
        cursors[reader] = answer.cursor
        got[reader] += steps_in(answer)

    for kind, what, seconds in happened:
        if kind == "step":
            assert isinstance(what, str)
            assert seconds is not None
            now += seconds
            done += 1
            recorder.step(step(excluded=what, seconds=seconds), emitted=1)
            recorder.tick(now, idle=False)
        elif kind == "read":
            assert isinstance(what, int)
            read(what)
        else:
            history.collect()
    now += WINDOW_SECONDS
    recorder.tick(now, idle=False)
    for reader in range(3):
        read(reader)
    assert got == [done] * 3


def test_a_reader_that_slept_too_long_is_told_what_it_lost_and_a_fresh_one_gets_everything() -> None:
    recorder = Recorder()
    history = History(recorder, "boot")
    cursor = history.since(None, GAUGES).cursor
    for second in range(1, RING_WINDOWS + 51):
        recorder.step(step(), emitted=2)
        recorder.tick(float(second), idle=False)
        history.collect()
    late = history.since(cursor, GAUGES)
    assert (late.lost_windows, steps_in(late), late.reset) == (50, RING_WINDOWS, False)
    assert late.from_seconds == 50.0
    fresh = history.since(None, GAUGES)
    assert (fresh.lost_windows, steps_in(fresh), fresh.reset) == (0, RING_WINDOWS + 50, True)
    assert (fresh.from_seconds, fresh.to_seconds) == (0.0, RING_WINDOWS + 50.0)
    assert steps_in(history.since(late.cursor, GAUGES)) == 0


def test_when_nobody_takes_windows_over_their_number_is_bounded_and_no_step_is_lost() -> None:
    recorder = Recorder()
    seconds = 3 * RING_WINDOWS
    for second in range(1, seconds + 1):
        recorder.step(step(), emitted=1)
        recorder.tick(float(second), idle=False)
    assert len(recorder.sealed) == 2 * RING_WINDOWS
    history = History(recorder, "boot")
    history.collect()
    assert not recorder.sealed
    recorder.tick(float(seconds), idle=False)
    assert steps_in(history.since(None, GAUGES)) == seconds


def test_cells_are_bounded_in_a_window_in_the_ring_and_since_boot_and_no_step_is_lost() -> None:
    recorder = Recorder()
    history = History(recorder, "boot")
    windows = 40
    for second in range(1, windows + 1):
        crowd(recorder, MAX_CELLS + 100)
        recorder.tick(float(second), idle=False)
        history.collect()
    assert sum(len(window.cells) for window in history._ring) <= RING_CELLS
    answer = history.since(None, GAUGES)
    assert len(answer.cells) == MAX_CELLS
    assert steps_in(answer) == windows * (MAX_CELLS + 100)
    assert answer.excluded_steps == {"crowded": windows * 100}
    assert len(recorder._paces) <= MAX_CELLS


def test_a_cursor_of_the_process_before_is_told_that_counting_began_anew() -> None:
    first, second = History(Recorder(), "first"), History(Recorder(), "second")
    answer = second.since(first.since(None, GAUGES).cursor, GAUGES)
    assert (answer.reset, answer.boot_id, answer.lost_windows) == (True, "second", 0)


def test_lost_windows_are_counted_over_readers() -> None:
    recorder = Recorder()
    history = History(recorder, "boot")
    cursor = history.since(None, GAUGES).cursor
    for second in range(1, RING_WINDOWS + 11):
        recorder.step(step(), emitted=1)
        recorder.tick(float(second), idle=False)
        history.collect()
    history.since(cursor, GAUGES)
    history.since(cursor, GAUGES)
    assert history.lost_windows == 20


def test_an_unusual_step_is_a_stall_and_many_in_a_row_are_how_it_is_now() -> None:
    pace = Pace(inf)
    assert not pace.stalled(5.0)  # nothing to compare with
    pace = Pace(0.010)
    assert not any(pace.stalled(0.010) for _ in range(50))
    assert pace.stalled(0.5)
    assert not pace.stalled(0.011)
    in_a_row = int(STALL_CREDIT) - 1
    assert [pace.stalled(0.5) for _ in range(in_a_row + 20)] == [True] * in_a_row + [False] * 20
    assert not pace.stalled(0.010)


def test_steps_that_are_long_every_other_time_are_no_stalls() -> None:
    pace = Pace(inf)
    stalls = sum(pace.stalled(0.0001 if at % 2 else 0.02) for at in range(1000))
    assert stalls < 100


@given(st.lists(st.floats(0.001, 0.003), min_size=1, max_size=300))
def test_steps_within_a_bucket_are_never_stalls(times: list[float]) -> None:
    pace = Pace(inf)
    assert not any(pace.stalled(seconds) for seconds in times)


@given(st.lists(st.floats(1e-6, 100.0), max_size=300))
def test_no_more_than_a_few_steps_in_a_row_are_set_aside_and_few_in_the_long_run(times: list[float]) -> None:
    recorder = Recorder()
    row = stalled = 0
    for seconds in times:
        counted = recorder.step(step(seconds=seconds), emitted=1)
        stalled += not counted
        row = 0 if counted else row + 1
        assert row <= STALL_CREDIT
    assert stalled <= STALL_CREDIT + STALL_SHARE * len(times)


@given(st.text(max_size=40) | st.integers(-5, 50).map(lambda n: f"boot:{n}") | st.just("boot:\u0663"))
def test_any_text_is_a_cursor_and_a_strange_one_starts_anew(cursor: str) -> None:
    recorder = Recorder()
    history = History(recorder, "boot")
    for second in range(1, 4):
        recorder.step(step(), emitted=1)
        recorder.tick(float(second), idle=False)
    ours = cursor in {f"boot:{n}" for n in range(4)}
    answer = history.since(cursor, GAUGES)
    assert answer.reset is not ours
    assert steps_in(answer) == (3 - int(cursor[5:]) if ours else 3)


def test_a_window_is_sealed_by_time_and_sooner_when_the_engine_falls_idle() -> None:
    recorder = Recorder()
    recorder.step(step(), emitted=1)
    recorder.tick(WINDOW_SECONDS / 2, idle=False)
    assert not recorder.sealed
    recorder.tick(WINDOW_SECONDS, idle=False)
    recorder.step(step(), emitted=1)
    recorder.tick(WINDOW_SECONDS + IDLE_WINDOW_SECONDS / 2, idle=True)
    assert len(recorder.sealed) == 1
    recorder.tick(WINDOW_SECONDS + 1.01 * IDLE_WINDOW_SECONDS, idle=True)
    assert len(recorder.sealed) == 2


def test_cost_cells_are_kept_apart_by_load_k_and_probe() -> None:
    recorder = Recorder()
    recorder.step(step(sampling=5, seconds=0.010), emitted=9)
    recorder.step(step(sampling=4, seconds=0.012), emitted=7)
    recorder.step(step(sampling=4, phase=Phase.PROBE), emitted=4)
    recorder.step(step(sampling=4, phase=Phase.SETTLING, excluded="settling"), emitted=4)
    recorder.step(step(sampling=4, k=0), emitted=4)
    recorder.tick(1.0, idle=False)
    answer = History(recorder, "boot").since(None, GAUGES)
    assert [(c.load, c.k_drafted, c.probe, c.steps, c.request_steps, c.emitted) for c in answer.cells] == [
        (4, 0, False, 1, 4, 4),
        (4, 3, False, 2, 9, 16),
        (4, 3, True, 1, 4, 4),
    ]
    assert answer.cells[1].seconds == pytest.approx(0.022)
    assert answer.cells[1].seconds_squared == pytest.approx(0.010**2 + 0.012**2)
    assert answer.excluded_steps == {"settling": 1}
    assert (answer.steps_by_k, answer.probe_steps_by_k) == ({0: 1, 3: 2}, {3: 2})


def test_a_cell_whose_only_step_stalled_is_none() -> None:
    recorder = Recorder()
    recorder.step(step(seconds=0.010), emitted=4)
    assert not recorder.step(step(k=0, seconds=50.0), emitted=1)
    recorder.tick(1.0, idle=False)
    answer = History(recorder, "boot").since(None, GAUGES)
    assert [(cell.k_drafted, cell.steps) for cell in answer.cells] == [(3, 1)]
    assert answer.excluded_steps == {"stalled": 1}


@given(st.lists(st.floats(1e-9, 1e4), min_size=1, max_size=50))
def test_a_quantile_read_from_the_histogram_is_near_the_true_one(times: list[float]) -> None:
    cost = CostSum()
    for seconds in times:
        cost.step(1, seconds, 1)
    assert sum(cost.histogram.values()) == len(times)
    ordered = [index for index in sorted(cost.histogram) for _ in range(cost.histogram[index])]
    for seconds, index in zip(sorted(times), ordered, strict=True):
        low = HISTOGRAM_BASE**index * 1e-6
        assert max(seconds, 1e-6) >= low * (1 - 1e-9)
        assert max(seconds, 1e-6) <= low * HISTOGRAM_BASE * (1 + 1e-9)


@given(
    st.integers(0, 7),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 5)), max_size=30),
)
def test_acceptance_by_position_is_what_counting_one_draft_at_a_time_gives(
    k: int, drafts: list[tuple[int, int, int]]
) -> None:
    fate = AcceptanceSum()
    drafted, accepted = [0] * 8, [0] * 8
    for tokens, taken, requests in drafts:
        taken = min(tokens, taken)
        fate.request_steps += requests
        fate.add_positions(*positions({(tokens, taken): requests}))
        for at in range(tokens):
            drafted[at] += requests
            accepted[at] += requests * (at < taken)
    cell = fate.cell(AcceptanceKey(k, 4, Verification.ALL))
    size = max([k, *(tokens for tokens, _, _ in drafts)])
    assert (cell.drafted, cell.accepted) == (tuple(drafted[:size]), tuple(accepted[:size]))
    assert cell.drafts == sum(requests for tokens, _, requests in drafts if tokens)


def test_no_draft_has_more_accepted_than_verified() -> None:
    assert positions({(1, 3): 2, (0, 0): 5}) == ([2], [2])


def test_windows_add_up() -> None:
    first, second = Window(0.0), Window(1.0)
    second.end = 2.0
    second.excluded["prefill"] = 2
    second.steps_by_k[3] = 4
    first.add(second)
    first.add(second)
    assert (first.start, first.end, first.excluded, first.steps_by_k) == (0.0, 2.0, {"prefill": 4}, {3: 8})


def test_steps_between_an_end_and_the_request_that_follows_belong_to_the_same_load() -> None:
    recorder = Recorder()
    for sampling in (256, 255, 254, 255, 256, 193):
        recorder.step(step(sampling=sampling), emitted=1)
    assert {key.load for key in recorder._open.cells} == {256}
    recorder.step(step(sampling=191), emitted=1)
    assert {key.load for key in recorder._open.cells} == {256, 128}, "a quarter of them has gone: another load"


def test_a_load_that_fell_is_there_as_soon_as_its_steps_are() -> None:
    recorder = Recorder()
    recorder.step(step(sampling=256), emitted=1)
    for _ in range(TURNOVER_STEPS):
        recorder.step(step(sampling=200), emitted=1)
    assert [(key.load, cost.steps) for key, cost in sorted(recorder._open.cells.items())] == [(192, 1), (256, 8)]
    recorder.step(step(sampling=255, excluded=IDLE), emitted=1)
    recorder.step(step(sampling=255), emitted=1)
    assert [(key.load, cost.steps) for key, cost in sorted(recorder._open.cells.items())] == [(192, 2), (256, 8)]


@given(st.lists(st.integers(1, 256), min_size=1, max_size=60))
def test_the_load_of_a_step_is_that_of_a_step_of_lately_and_not_much_above_its_own(requests: list[int]) -> None:
    recorder = Recorder()
    for at, sampling in enumerate(requests):
        load = recorder._load(step(sampling=sampling))
        assert load in {load_bucket(one) for one in requests[max(0, at + 1 - TURNOVER_STEPS) : at + 1]}
        assert load_bucket(sampling) <= load <= sampling / (1 - TURNOVER_SHARE)
