"""Scores against tables whose answers are worked out by hand, and against pacers whose score is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.api.speculation import Method
from paceline_operator.replay.contest import Constant, PacerFactory, Setup
from paceline_operator.replay.courses import TABLE_SWEEPS, Course, geometric, of_table
from paceline_operator.replay.engine import run
from paceline_operator.replay.report import Report, replay
from paceline_operator.replay.score import Case, overall, tallies
from paceline_operator.replay.tables import Point, Table
from paceline_operator.replay.world import Arm, Scenario, Visit, Window

RATES = {1: {0: 100.0, 2: 200.0, 4: 190.0}, 8: {0: 900.0, 2: 1000.0, 4: 800.0}, 64: {0: 2000.0, 2: 1500.0, 4: 1000.0}}


def table(rates: dict[int, dict[int, float]]) -> Table:
    points = {load: {k: Point(rate, None, k == 0) for k, rate in ks.items()} for load, ks in rates.items()}
    return Table("t.csv", "X", "w", Method.EAGLE, points)


def course(rates: dict[int, dict[int, float]] = RATES, sweeps: tuple[str, ...] = TABLE_SWEEPS) -> Course:
    (only,) = of_table(table(rates), 10.0)
    return replace(only, sweeps=sweeps)


@dataclass
class Known:
    """A table that is known in advance."""

    boot: tuple[int, ...]

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        return None


def oracle(setup: Setup) -> Known:
    best = {load: max(ks, key=ks.__getitem__) for load, ks in RATES.items()}
    return Known(tuple(best.get(n, 0) for n in range(setup.max_num_seqs + 1)))


def constant(k: int) -> PacerFactory:
    return lambda setup: Constant.of(setup, k)


def played(pacer: PacerFactory) -> Report:
    return replay([course()], pacer=pacer, seeds=(0, 1))


def test_the_oracle_has_no_regret() -> None:
    report = played(oracle)
    assert [case.load for case in report.cases] == [1, 8, 64]
    for case in report.cases:
        assert case.regret_pct == case.steady_regret_pct == case.time_below_off_pct == case.changes_per_hour == 0
        assert case.oracle_ratio == 1
    assert overall(report.cases) == {
        "cases": 3,
        "steady_mean_regret_pct": 0,
        "steady_worst_regret_pct": 0,
        "mean_regret_pct": 0,
        "worst_regret_pct": 0,
        "within_2pct": 3,
    }


def test_a_constant_k_has_the_regret_that_the_table_says() -> None:
    by_load = {case.load: case for case in played(constant(2)).cases}
    assert by_load[1].regret_pct == by_load[8].regret_pct == 0
    assert by_load[64].regret_pct == by_load[64].steady_regret_pct == 25
    assert by_load[64].oracle_ratio == 0.75
    assert by_load[64].time_below_off_pct == 100
    by_load = {case.load: case for case in played(constant(4)).cases}
    assert [by_load[load].regret_pct for load in (1, 8, 64)] == [5, 20, 50]
    assert [by_load[load].time_below_off_pct for load in (1, 8, 64)] == [0, 100, 100]
    summed = overall(played(constant(4)).cases)
    assert (summed["mean_regret_pct"], summed["worst_regret_pct"], summed["within_2pct"]) == (25, 50, 0)


def test_the_best_fixed_k_is_that_of_the_whole_run() -> None:
    """Up and down: k=0 gives 100 + 900 + 2000, k=2 gives 200 + 1000 + 1500: k=0, though it is the best at 64 alone."""
    cases = {case.load: case for case in replay([course(sweeps=("up", "down"))], pacer=oracle, seeds=(0,)).cases}
    assert {case.best_fixed_k for case in cases.values()} == {0}
    assert cases[1].ratio_to_best_fixed == 2
    assert cases[1].oracle_gain_pct == 100
    assert cases[1].gain_kept_pct == 100
    assert cases[64].ratio_to_best_fixed == 1
    assert cases[64].gain_kept_pct is None, "there is nothing to gain"
    whole = replace(course(sweeps=("steps",)), by_load=False)
    (case,) = replay([whole], pacer=constant(2), seeds=(0,)).cases
    assert case.load is None
    assert case.best_fixed_k == 0
    # Twice each load; without the first minute, at load 1: k=0 has 2990 - 5, k=2 2700*2*10 ... in units of a minute.
    fixed, got, best = (
        10 * 2 * sum(rates) - rates[0] for rates in ((100, 900, 2000), (200, 1000, 1500), (200, 1000, 2000))
    )
    assert case.ratio_to_best_fixed == pytest.approx(got / fixed, abs=1e-6)
    assert case.oracle_gain_pct == pytest.approx(100 * (best / fixed - 1), abs=1e-3)
    assert case.gain_kept_pct == pytest.approx(100 * (got - fixed) / (best - fixed), abs=1e-3)
    assert case.time_below_off_pct == pytest.approx(100 * 20 / 59, abs=1e-3)


def test_bursts_are_paid_at_their_own_rate() -> None:
    """Nine windows of k=2 and one of k=4 that never was in the table: time decides, not steps."""
    arms = {k: Arm(8 / rate) for k, rate in RATES[8].items()}
    visit = Visit(8, 600.0, arms)
    windows = tuple(Window(5.0 * i, 0, 2, {2: 4.5, 4: 0.5}) for i in range(120))
    tally = tallies(Scenario(course().setup, (visit,), 0.0), windows)[8]
    assert tally.got == pytest.approx(120 * (4.5 * 1000 + 0.5 * 800))
    assert tally.oracle == pytest.approx(600 * 1000)
    assert tally.bursts_below_off == pytest.approx(108 * 0.5), "k=4 makes less than k=0; without the first minute"
    assert tally.below_off == 0
    assert tally.seconds == pytest.approx(600)


def test_changes_are_counted_at_steady_state_and_within_a_visit() -> None:
    visit = Visit(8, 600.0, {k: Arm(8 / rate) for k, rate in RATES[8].items()})
    ks = [0] * 30 + [2] * 60 + [4] * 30
    windows = tuple(Window(5.0 * i, i // 120, k, {k: 5.0}) for i, k in enumerate([*ks, *[0] * 120]))
    tally = tallies(Scenario(course().setup, (visit, visit), 0.0), windows)[8]
    assert tally.changes == 1, "the change in the first half, and that with the next visit, do not count"
    assert tally.steady_seconds == 600


def test_the_minute_after_a_switch_is_left_out() -> None:
    arms = {k: Arm(8 / rate) for k, rate in RATES[8].items()}
    visits = (Visit(8, 600.0, arms, "a"), Visit(8, 600.0, arms, "b"))
    windows = tuple(Window(5.0 * i, i // 120, 2, {2: 5.0}) for i in range(240))
    assert tallies(Scenario(course().setup, visits, 0.0), windows)[8].later_seconds == 1200 - 2 * 60


def test_loads_with_other_ks_are_another_course() -> None:
    """An engine has one ladder: nothing is made up for a k that was not measured at a load."""
    rates = {1: {0: 1.0, 2: 2.0}, 4: {0: 4.0, 2: 5.0}, 8: {0: 8.0, 1: 9.0, 2: 7.0}}
    found = list(of_table(table(rates), 10.0))
    assert [(one.setup.ladder, one.loads) for one in found] == [((2, 0), (1, 4)), ((2, 1, 0), (8,))]
    cases = replay(found, pacer=constant(2), seeds=(0,)).cases
    assert {case.load: case.regret_pct for case in cases} == {1: 0, 4: 0, 8: pytest.approx(100 * 2 / 9, abs=1e-3)}


@pytest.mark.parametrize(("length", "k"), [(1.0, 3), (2.4, 5), (4.0, 3), (1.84, 1)])
def test_made_up_positions_give_the_published_length(length: float, k: int) -> None:
    shares = geometric(length, k)
    assert len(shares) == k
    assert 1 + sum(shares) == pytest.approx(length)
    assert list(shares) == sorted(shares, reverse=True)


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    short = course(sweeps=("up",))
    one, same, other = (replay([short], seeds=(seed,)).json(decisions=True) for seed in (3, 3, 4))
    assert one == same
    assert one != other


def test_the_result_does_not_depend_on_the_processes() -> None:
    short = course({load: RATES[load] for load in (1, 8)}, ("up", "down"))
    alone, two = (replay([short], seeds=(0,), processes=count).json(decisions=True) for count in (1, 2))
    assert alone == two


def test_every_load_is_there_for_ten_minutes_at_a_time() -> None:
    for sweep in ("up", "down", "steps", "walk"):
        scenario = course().scenario(sweep, np.random.default_rng(0))
        windows = run(scenario, oracle(scenario.setup), np.random.default_rng(0))
        assert {visit.seconds for visit in scenario.visits} == {600.0}
        assert len(windows) == 120 * len(scenario.visits)
        assert windows[-1].start == pytest.approx(600 * len(scenario.visits) - 5)
    loads = [visit.load for visit in course().scenario("walk", np.random.default_rng(0)).visits]
    places = [(1, 8, 64).index(load) for load in loads]
    assert all(abs(a - b) == 1 for a, b in pairwise(places))


def test_a_case_of_a_table_has_the_fields_of_the_interface() -> None:
    names = {
        "table_id", "workload", "load", "steady_regret_pct", "regret_pct", "oracle_ratio", "best_fixed_k",
        "ratio_to_best_fixed", "gain_kept_pct", "time_below_off_pct", "changes_per_hour",
    }  # fmt: skip
    case: Case = played(oracle).cases[0]
    assert names <= case.json().keys()
    assert case.json()["workload"] == "w"
