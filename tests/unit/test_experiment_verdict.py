"""The words of an experiment keep their promise: on recorded noise, and whatever the numbers are."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline_operator.experiment.results import Latency, LogWarning, Methods, Quantiles, VariantResult, Window
from paceline_operator.experiment.verdict import Basis, Comparison, Judge, Word, compare, holm

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "2026-11-29" / "closed_loop.json"
LOADS = (1, 32, 64, 128)
NAMES = ("baseline", "a", "b", "c")
RESAMPLES = 400
DRIFT = 0.03
"""Standard deviation of what all windows of a round have in common, in logarithms."""


def recorded_noise() -> np.ndarray:
    """What a window of 15 s differs by from its mean, in logarithms: one H200, 8B shape, one fixed k at each load.

    The closed loop visited each load twice, minutes apart; where both visits had the same one k in every step, half the
    difference is each window's part of it, times sqrt(2) for the degree of freedom that the mean took; signs both ways.
    """
    ways = json.loads(RECORDED.read_text())
    noise = [
        math.log(ways["up"][load]["settled"] / ways["down"][load]["settled"]) / math.sqrt(2)
        for load in ways["up"]
        if len(ways["up"][load]["k"]) == 1 and ways["up"][load]["k"].keys() == ways["down"][load]["k"].keys()
    ]
    return np.array([*noise, *(-one for one in noise)])


NOISE = recorded_noise()


def experiment(
    rates: np.ndarray, *, names: tuple[str, ...] = NAMES, loads: tuple[int, ...] = LOADS
) -> tuple[VariantResult, ...]:
    """Results from tokens per second by [variant, round, load]; TPOT as a closed loop has it."""
    return tuple(
        VariantResult.model_construct(
            experiment="e",
            variant=name,
            k=0 if name == "baseline" else 3,
            gpus=1,
            methods=Methods(gpu="none"),
            windows=tuple(
                window(load, round_, float(rates[at, round_, place]))
                for round_ in range(rates.shape[1])
                for place, load in enumerate(loads)
            ),
            warnings=(),
            lengths=(),
        )
        for at, name in enumerate(names)
    )


def window(load: int, round_: int, rate: float) -> Window:
    tpot = 1000 * load / rate
    return Window.model_construct(
        load=load, round=round_, seed=0, started_at=100.0 * round_, seconds=10.0, warmed=True, tokens=10 * rate,
        requests=10, errors={}, acceptance=None, prefix_cache_hit_rate=None, memory_bytes=None, fault_seconds=None,
        client=Latency(tpot=Quantiles(mean=tpot, p50=tpot, p95=tpot, p99=tpot)), server=Latency(),
    )  # fmt: skip


def resample(
    rng: np.random.Generator, rounds: int, effects: Mapping[tuple[int, int], float], louder: float = 1.0
) -> tuple[Comparison, ...]:
    """An experiment of recorded noise; `effects` of (variant, load place) as ratios; variant a is `louder`."""
    noise = rng.choice(NOISE, (len(NAMES), rounds, len(LOADS)))
    noise[1] *= louder
    noise += rng.normal(0, DRIFT, (1, rounds, 1))
    for (variant, place), ratio in effects.items():
        noise[variant, :, place] += math.log(ratio)
    return compare(experiment(1000 * np.exp(noise)))


def test_the_recorded_noise_is_two_percent() -> None:
    assert NOISE.size == 10
    assert math.sqrt(float(np.mean(NOISE**2))) == pytest.approx(0.0193, abs=0.0001)


@pytest.mark.parametrize(("rounds", "louder"), [(2, 1.0), (8, 1.0), (8, 3.0)])
def test_without_a_difference_one_is_shown_in_at_most_5_percent(rounds: int, louder: float) -> None:
    rng = np.random.default_rng(1)
    false = sum(
        any(one.word is not Word.NO_DIFFERENCE for one in resample(rng, rounds, {}, louder)) for _ in range(RESAMPLES)
    )
    assert false / RESAMPLES <= 0.05


def test_a_planted_5_percent_is_found_in_80_percent_of_8_rounds() -> None:
    """Each in one variant at one load, the hardest place to find it."""
    rng = np.random.default_rng(2)
    planted = {(2, 1): 1.05, (3, 2): 1 / 1.05}
    places = {(NAMES[2], LOADS[1]): Word.BETTER, (NAMES[3], LOADS[2]): Word.WORSE}
    found = Counter(
        place
        for _ in range(RESAMPLES)
        for one in resample(rng, 8, planted)
        if one.judge is Judge.THROUGHPUT and one.word is places.get(place := (one.variant, one.load))
    )
    assert found.keys() == places.keys()
    assert min(found.values()) / RESAMPLES >= 0.80


@pytest.mark.parametrize("rounds", [3, 8])
def test_the_smallest_effect_is_found_in_80_percent(rounds: int) -> None:
    """Against draws: mean and spread of normal noise, a true effect of that size, the bound of the whole family."""
    rng = np.random.default_rng(3)
    found = resample(rng, rounds, {})
    one = found[0]
    assert one.spread
    assert one.smallest_percent
    freedom, draws = one.spread.freedom, 200_000
    mean = rng.normal(math.log1p(one.smallest_percent / 100) / one.spread.error, 1, draws)
    statistic = mean / np.sqrt(rng.chisquare(freedom, draws) / freedom)
    p_values = 2 * stats.t.sf(statistic, freedom) * len(found)
    assert float(np.mean(p_values < 0.05)) == pytest.approx(0.80, abs=0.01)


def test_throughput_up_and_tpot_down_are_both_better() -> None:
    noise = np.random.default_rng(4).choice(NOISE, (2, 6, 1))
    noise[1] += math.log(1.7)
    by_judge = {
        one.judge: one for one in compare(experiment(1000 * np.exp(noise), names=("baseline", "a"), loads=(16,)))
    }
    assert by_judge[Judge.THROUGHPUT].ratio == pytest.approx(1.7, rel=0.05)
    assert by_judge[Judge.TPOT].ratio == pytest.approx(1 / 1.7, rel=0.05)
    assert {one.word for one in by_judge.values()} == {Word.BETTER}
    low, high = by_judge[Judge.THROUGHPUT].interval or (0.0, 0.0)
    assert 1 < low < by_judge[Judge.THROUGHPUT].ratio < high < 3


def test_a_compiled_window_is_in_the_raw_ratio_and_not_in_the_clean_one() -> None:
    rates = np.full((2, 3, 1), 100.0)
    rates[0, :, 0] += [0.1, -0.1, 0.0]
    rates[1, 0, 0] = 50.0
    results = experiment(rates, names=("baseline", "a"), loads=(16,))
    compiled = LogWarning(at=5.0, event="Triton kernel JIT compilation", kernel="k")
    results = (results[0], results[1].model_copy(update={"warnings": (compiled,)}))
    found = next(one for one in compare(results) if one.judge is Judge.THROUGHPUT)
    assert (found.rounds, found.raw_rounds, found.basis) == (2, 3, Basis.CLEAN)
    assert found.ratio == pytest.approx(1.0, abs=0.002)
    assert found.raw_ratio == pytest.approx(0.5 ** (1 / 3), abs=0.002)


def test_one_round_shows_nothing_and_says_why() -> None:
    found = compare(experiment(np.array([[[100.0]], [[200.0]]]), names=("baseline", "a"), loads=(16,)))
    assert {(one.word, one.p_value) for one in found} == {(Word.NO_DIFFERENCE, None)}
    assert all("two are needed" in one.reason for one in found)


def test_a_load_that_the_baseline_lacks_is_not_compared() -> None:
    results = experiment(np.full((2, 2, 2), 100.0), names=("baseline", "a"), loads=(1, 2))
    kept = tuple(one for one in results[0].windows if one.load == 1)
    found = compare((results[0].model_copy(update={"windows": kept}), results[1]))
    assert {one.load for one in found} == {1}


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_keeps_order_and_never_lowers(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(value <= one <= 1 for value, one in zip(values, adjusted, strict=True))
    order = sorted(range(len(values)), key=lambda at: values[at])
    assert [adjusted[at] for at in order] == sorted(adjusted)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@given(st.lists(st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=3), min_size=1, max_size=5))
def test_any_numbers_are_judged(rounds: list[list[float]]) -> None:
    rates = np.array(rounds).T[:, :, None]
    for one in compare(experiment(rates, names=NAMES[:3], loads=(8,))):
        assert one.ratio > 0
        assert one.p_value is None or 0 <= one.p_value <= 1
        assert one.word is Word.NO_DIFFERENCE or (one.p_value or 0) < 0.05
        low, high = one.interval or (one.ratio, one.ratio)
        assert low <= one.ratio <= high
        better = (one.ratio > 1) == (one.judge is Judge.THROUGHPUT)
        assert one.word is not (Word.WORSE if better else Word.BETTER)
