"""What a run counts: sums of samples, and goodputs with intervals that hold."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import AcceptanceCell, CostCell, Gauges, Samples
from paceline_operator.local.tally import Cluster, Tally, ratio


def cost(load: int, k: int, steps: int, seconds: float, emitted: int, probe: bool = False) -> CostCell:
    return CostCell(
        load=load,
        context=0,
        k_drafted=k,
        k_verified=k,
        probe=probe,
        steps=steps,
        request_steps=load * steps,
        emitted=emitted,
        seconds=seconds,
        seconds_squared=seconds**2 / max(1, steps),
        histogram={},
    )


def samples(
    cells: Sequence[CostCell] = (),
    acceptance: Sequence[AcceptanceCell] = (),
    steps: dict[int, int] | None = None,
    probes: dict[int, int] | None = None,
) -> Samples:
    return Samples(
        boot_id="b",
        cursor="b:1",
        reset=False,
        lost_windows=0,
        from_seconds=0,
        to_seconds=1,
        cells=tuple(cells),
        acceptance=tuple(acceptance),
        excluded_steps={},
        steps_by_k=steps or {},
        probe_steps_by_k=probes or {},
        gauges=Gauges(running=0, waiting=0, kv_cache_usage=0, prompt_tokens=0, generation_tokens=0),
    )


def test_steps_in_force_are_told_from_probe_steps() -> None:
    tally = Tally()
    tally.add(samples(steps={3: 10}, probes={0: 4}))
    tally.add(samples(steps={3: 5, 1: 2}, probes={0: 1}))
    assert tally.steps_by_k == {3: 15, 1: 2}
    assert tally.probe_steps_by_k == {0: 5}


def test_acceptance_by_position_is_survival_conditional_and_marginal() -> None:
    tally = Tally()
    tally.add(
        samples(
            acceptance=[
                AcceptanceCell(k=2, load=1, request_steps=100, drafts=80, drafted=(80, 80), accepted=(40, 10)),
                AcceptanceCell(k=1, load=1, request_steps=50, drafts=20, drafted=(20,), accepted=(10,)),
                AcceptanceCell(k=0, load=1, request_steps=70, drafts=0, drafted=(), accepted=()),
            ]
        )
    )
    first, second = tally.positions[1], tally.positions[2]
    assert (first.survival, first.conditional, first.marginal) == (0.5, 0.5, 50 / 150)
    assert (second.survival, second.conditional, second.marginal) == (10 / 80, 10 / 40, 10 / 100)
    assert tally.firing_rate == 100 / 150


def test_length_and_goodput_in_force_leave_bursts_out_and_the_sweep_does_not() -> None:
    tally = Tally()
    for _ in range(2):
        tally.add(samples([cost(4, 2, 10, 1.0, 80), cost(4, 0, 10, 0.5, 40, probe=True)]))
    assert tally.acceptance_length == 2.0
    assert tally.load() == 4
    found = tally.sweep(4)
    assert {k: (goodput.value, steps) for k, (goodput, steps) in found.items()} == {0: (80.0, 20), 2: (80.0, 20)}
    assert tally.sweep(8) == {}


def test_the_ratio_is_the_time_the_same_tokens_would_have_taken() -> None:
    tally = Tally()
    for _ in range(3):
        tally.add(samples([cost(1, 5, 10, 1.0, 30), cost(1, 0, 10, 0.5, 10, probe=True)]))
        tally.add(samples([cost(16, 1, 10, 2.0, 200), cost(16, 0, 10, 1.0, 160, probe=True)]))
    found = tally.ratio_to_k0()
    assert found is not None
    # Load 1: 90 tokens in 3 s, 4.5 s at k=0. Load 16: 600 tokens in 6 s, 3.75 s at k=0.
    assert found.value == pytest.approx((4.5 + 3.75) / (3 + 6))
    assert found.low <= found.value <= found.high


def test_without_k0_there_is_no_ratio() -> None:
    tally = Tally()
    tally.add(samples([cost(1, 5, 10, 1.0, 30)]))
    tally.add(samples([cost(1, 5, 10, 1.0, 30)]))
    assert tally.ratio_to_k0() is None
    assert Tally().ratio_to_k0() is None
    assert Tally().tokens_per_second is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    chance, hits, trials = random.Random(1), 0, 400
    for _ in range(trials):
        parts = []
        for _ in range(8):
            seconds = chance.uniform(0.5, 1.5)
            parts.append(Cluster(100 * seconds * chance.lognormvariate(0, 0.1), seconds, 10))
        found = ratio(parts)
        assert found is not None
        hits += found.low <= 100.5 <= found.high  # exp(0.1**2 / 2): the mean of the noise
    assert 0.90 <= hits / trials <= 0.99


CELLS = st.builds(
    cost,
    st.sampled_from([1, 4, 16]),
    st.sampled_from([0, 1, 5]),
    st.integers(0, 50),
    st.floats(0, 10),
    st.integers(0, 10_000),
    st.booleans(),
)


@given(st.lists(st.lists(CELLS, max_size=6), max_size=6))
def test_no_samples_break_it_and_merging_is_adding(readings: list[list[CostCell]]) -> None:
    whole, merged = Tally(), Tally()
    for cells in readings:
        whole.add(samples(cells, steps={1: 2}))
        part = Tally()
        part.add(samples(cells, steps={1: 2}))
        merged.merge(part)
    assert whole == merged
    found = whole.ratio_to_k0()
    assert found is None or 0 < found.low <= found.value <= found.high
    load = whole.load()
    for goodput, steps in (whole.sweep(load) if load is not None else {}).values():
        assert goodput.low <= goodput.value <= goodput.high
        assert steps >= 0
