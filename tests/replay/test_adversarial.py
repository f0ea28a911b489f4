"""What may go wrong around a tuner: it neither flaps, nor stays where it is wrong, nor fails (`Loop` looks)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from paceline_engine.protocol import Samples
from paceline_operator.tuning.model import Engine
from tests.replay.adversity import (
    DENSE,
    GSM8K,
    PASSES_PER_HOUR,
    SHAREGPT,
    SMALL,
    Trial,
    below_off,
    nothing,
    settled_after,
)
from tests.unit.simulated import POOR, StepSeconds, fixed

MINUTE = 6
"""Passes of it, at the default interval of 10 s."""


@pytest.mark.parametrize(("load", "seed"), [(4, 0), (16, 1), (64, 2), (192, 3)])
def test_acceptance_falls_to_nothing_and_returns(load: int, seed: int) -> None:
    trial = Trial.of(seed=seed)
    trial.run(6 * MINUTE, load)
    for _ in range(3):
        trial.set(survival=nothing)
        fallen = trial.run(6 * MINUTE, load)
        assert settled_after(fallen) <= 1 * MINUTE
        assert below_off(fallen) <= 1 * MINUTE
        trial.set(survival=GSM8K)
        assert settled_after(trial.run(10 * MINUTE, load)) <= 1 * MINUTE
    assert trial.decided() <= 2 * 3 + 1, "one change for each"


def tenant(cost: StepSeconds, tokens: int) -> StepSeconds:
    """Another tenant: from `tokens` in a step on, everything takes four times as long."""
    return lambda n, k: cost(n, k) * (4 if n * (k + 1) > tokens else 1)


@pytest.mark.parametrize(("load", "tokens", "seed"), [(8, 16, 0), (16, 48, 1), (32, 64, 2)])
def test_a_cost_cliff_appears(load: int, tokens: int, seed: int) -> None:
    trial = Trial.of(seed=seed)
    trial.run(6 * MINUTE, load)
    trial.set(cost=tenant(DENSE, tokens))
    cliff = trial.run(20 * MINUTE, load)
    assert settled_after(cliff) <= 2 * MINUTE
    assert below_off(cliff) <= 2 * MINUTE
    assert trial.flapping(10 * MINUTE) == {}


@pytest.mark.parametrize(
    ("load", "tokens", "seed", "minutes"), [(8, 16, 0, 10), (8, 16, 1, 10), (16, 48, 1, 10), (8, 16, 1, 60)]
)
def test_a_cost_cliff_goes_again(load: int, tokens: int, seed: int, minutes: int) -> None:
    """The k in force does not feel that it is gone: only a burst of a k that was bad can tell, however long it was."""
    trial = Trial.of(seed=seed)
    trial.run(6 * MINUTE, load)
    trial.set(cost=tenant(DENSE, tokens))
    trial.run(minutes * MINUTE, load)
    trial.set(cost=DENSE)
    assert settled_after(trial.run(30 * MINUTE, load)) <= 15 * MINUTE


@pytest.mark.parametrize(("one", "other"), [(4, 128), (1, 256), (47, 48)])
def test_a_load_that_alternates_with_the_loop(one: int, other: int) -> None:
    trial = Trial.of(seed=one)
    trial.run(10 * MINUTE, lambda number: (one, other)[number % 2])
    start = len(trial.passes)
    later = trial.run(PASSES_PER_HOUR, lambda number: (one, other)[number % 2])
    assert trial.flapping(start) == {}
    assert below_off(later) == 0
    assert sum(each.ratio for each in later) / len(later) > 0.975


@pytest.mark.parametrize("load", [16, 64])
def test_traffic_that_alternates_with_the_loop(load: int) -> None:
    trial = Trial.of(seed=load)
    trial.run(10 * MINUTE, load)
    start = len(trial.passes)
    for number in range(PASSES_PER_HOUR):
        trial.set(survival=(GSM8K, fixed(POOR))[number % 2])
        trial.run(1, load)
    assert trial.flapping(start) == {}
    assert below_off(trial.passes[start:]) == 0


@pytest.mark.parametrize(("load", "seed"), [(1, 0), (48, 2), (128, 3)])
def test_noise_of_a_fifth(load: int, seed: int) -> None:
    trial = Trial.of(seed=seed, noise=0.2)
    trial.run(10 * MINUTE, load)
    start = len(trial.passes)
    later = trial.run(PASSES_PER_HOUR, load)
    assert trial.flapping(start) == {}
    assert sum(each.ratio for each in later) / len(later) > 0.93


@pytest.mark.parametrize(("load", "seed"), [(8, 8), (8, 0), (64, 64), (192, 192)])
def test_one_pod_becomes_three_times_slower_and_recovers(load: int, seed: int) -> None:
    trial = Trial.of(seed=seed, count=3)
    trial.run(10 * MINUTE, load)
    start = len(trial.passes)
    for slow in (3.0, 1.0, 3.0):
        trial.loop.engines["pod-2"].slow = slow
        assert settled_after(trial.run(10 * MINUTE, load)) <= 1 * MINUTE
    assert trial.flapping(start) == {}
    assert trial.decided(start) <= 1


def test_a_slow_pod_beside_a_change_of_traffic() -> None:
    trial = Trial.of(seed=5, count=3)
    trial.loop.engines["pod-0"].slow = 3.0
    trial.run(10 * MINUTE, 16)
    trial.set(survival=nothing)
    assert settled_after(trial.run(10 * MINUTE, 16)) <= 2 * MINUTE


@pytest.mark.parametrize("load", [16, 128])
def test_counters_that_start_anew_every_minute(load: int) -> None:
    """A crash loop of one of two engines: its counters, uptime, table and cursor are gone each time."""
    trial = Trial.of(seed=load, count=2)
    for number in range(20):
        trial.loop.engines["pod-1"].restart(f"boot-{number}")
        trial.run(1 * MINUTE, load)
    assert settled_after(trial.passes) <= 5 * MINUTE
    assert trial.flapping(10 * MINUTE) == {}
    generations = [step.generation for step in trial.loop.steps]
    assert all(a <= b for a, b in pairwise(generations))
    trial.set(survival=nothing)
    assert settled_after(trial.run(5 * MINUTE, load)) <= 2 * MINUTE


def test_an_engine_that_tells_everything_since_boot_again_is_not_counted_twice() -> None:
    """As a plugin does that lost its cursor: half an hour of old traffic must not hold the new one up."""
    trial = Trial.of(seed=7)
    trial.run(30 * MINUTE, 16)
    trial.set(survival=nothing)
    engine = trial.loop.engines["pod-0"]
    for _ in range(2 * MINUTE):
        trial.loop.now += trial.loop.interval
        samples: Samples = engine.since_boot(engine.run(trial.loop.interval))
        trial.loop.take([Engine("pod-0", engine.state(), samples)])
    trial.run(1, 16)
    assert settled_after(trial.run(5 * MINUTE, 16)) <= 2 * MINUTE


@pytest.mark.parametrize("jump", [3600.0, 1e7, -60.0, -3600.0, -1e7])
def test_a_clock_that_jumps(jump: float) -> None:
    trial = Trial.of(seed=3)
    trial.run(10 * MINUTE, 64)
    table = trial.tables[-1]
    trial.loop.now += jump
    assert settled_after(trial.run(5 * MINUTE, 64)) == 0
    assert trial.tables[-1][64] == table[64]
    trial.set(survival=nothing, cost=tenant(DENSE, 64))
    assert settled_after(trial.run(10 * MINUTE, 64)) <= 2 * MINUTE, "it learns on"
    trial.set(survival=GSM8K, cost=DENSE)
    assert settled_after(trial.run(10 * MINUTE, 64), 6.0) <= 3 * MINUTE


def test_a_clock_that_stands() -> None:
    """No time passes between passes: nothing is divided by it, and what is seen is still learnt."""
    trial = Trial.of(seed=4)
    trial.run(10 * MINUTE, 16)
    for _ in range(2 * MINUTE):
        trial.loop.now -= trial.loop.interval
        trial.run(1, 16)
    trial.set(survival=nothing)
    for _ in range(2 * MINUTE):
        trial.loop.now -= trial.loop.interval
        trial.run(1, 16)
    assert settled_after(trial.run(3 * MINUTE, 16)) <= 1


def test_all_at_once() -> None:
    """Noise, a slow pod, restarts, changing traffic and cost, within an hour, on the small grid."""
    load = 24
    trial = Trial.of(SMALL, SHAREGPT, seed=8, noise=0.1, count=2, fields={"engine": {"maxNumSeqs": 64}})
    trial.loop.engines["pod-1"].slow = 3.0
    trial.run(10 * MINUTE, load)
    for number in range(4):
        trial.set(
            survival=(nothing, SHAREGPT, fixed(POOR))[number % 3], cost=(SMALL, tenant(SMALL, 96))[number // 2 % 2]
        )
        trial.loop.engines["pod-0"].restart(f"boot-{number}")
        trial.loop.now += (-500.0, 500.0)[number % 2]
        assert below_off(trial.run(8 * MINUTE, load), 3.0) <= 3 * MINUTE
    trial.set(survival=SHAREGPT, cost=SMALL)
    assert settled_after(trial.run(30 * MINUTE, load), 5.0) <= 25 * MINUTE
