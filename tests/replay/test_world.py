"""The simulated engine: what it answers is what its table says, with the noise that was asked for and no other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import Policy, Probe, Samples, State
from paceline_operator.replay.contest import Setup, Tuner
from paceline_operator.replay.courses import geometric
from paceline_operator.replay.engine import run
from paceline_operator.replay.world import Arm, Run, Scenario, Visit

SETUP = Setup((3, 1, 0), 16)


@dataclass
class Watching:
    """Pushes one policy at its first pass, and keeps what it is shown."""

    boot: tuple[int, ...] = (1,) * 17
    policy: Policy | None = None
    states: list[State] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        self.states.append(state)
        self.samples.append(samples)
        return self.policy if len(self.states) == 1 else None


def arms(step: float, lengths: Mapping[int, float | None]) -> dict[int, Arm]:
    return {
        k: Arm(step * (1 + 0.1 * k), length, geometric(length, k) if length and k else ())
        for k, length in lengths.items()
    }


KNOWN = {0: 1.0, 1: 1.7, 3: 2.4}


def watched(
    visit: Visit, noise: float = 0.0, policy: Policy | None = None, setup: Setup = SETUP
) -> tuple[Watching, Run]:
    pacer = Watching(policy=policy)
    return pacer, run(Scenario(setup, (visit,), noise), pacer, np.random.default_rng(0))


def test_without_noise_the_samples_are_the_table() -> None:
    pacer, _ = watched(Visit(8, 600.0, arms(0.01, KNOWN)))
    assert len(pacer.samples) == 60
    (cell,) = pacer.samples[5].cells
    assert (cell.load, cell.k_drafted, cell.probe) == (8, 1, False)
    assert cell.seconds / cell.steps == pytest.approx(0.011)
    assert cell.steps == pytest.approx(10 / 0.011, abs=2)
    assert cell.emitted / cell.seconds == pytest.approx(8 * 1.7 / 0.011, rel=1e-3)
    (fate,) = pacer.samples[5].acceptance
    assert fate.request_steps == 8 * cell.steps
    assert fate.accepted[0] / fate.request_steps == pytest.approx(0.7, abs=0.03)
    assert pacer.samples[5].from_seconds == pytest.approx(50)
    assert pacer.samples[5].to_seconds == pytest.approx(60)


def test_an_unknown_acceptance_is_not_told_and_goodput_is_seen_all_the_same() -> None:
    pacer, _ = watched(Visit(8, 60.0, arms(0.01, {0: 1.0, 1: None, 3: None})))
    assert not pacer.samples[0].acceptance
    (cell,) = pacer.samples[0].cells
    assert cell.emitted == cell.request_steps
    assert cell.emitted / cell.seconds == pytest.approx(8 / 0.011)


def test_noise_is_that_of_the_mean_of_each_window() -> None:
    """Passes of 10 s see two windows of 5 s: the deviation of their mean is that of one over the root of two."""
    pacer, _ = watched(Visit(8, 20_000.0, arms(0.001, KNOWN)), noise=0.05)
    logs = [math.log(cell.seconds / cell.steps / 0.0011) for one in pacer.samples for cell in one.cells]
    assert np.std(logs) == pytest.approx(0.05 / math.sqrt(2), rel=0.06)
    assert np.mean(logs) == pytest.approx(0.0, abs=0.003)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.0, abs=0.07), "each window by itself"


def test_each_burst_has_noise_of_its_own() -> None:
    probe = Probe(ks=(3,), settle_steps=2, burst_steps=8, interval_steps=1000)
    policy = Policy(generation=1, table=(1,) * 17, probe=probe)
    pacer, _ = watched(Visit(8, 20_000.0, arms(0.009, KNOWN)), noise=0.05, policy=policy)
    cells = [cell for one in pacer.samples for cell in one.cells if cell.probe]
    assert {cell.k_drafted for cell in cells} == {3}
    logs = [math.log(cell.seconds / cell.steps / 0.0117) for cell in cells if cell.steps == 8]
    assert len(logs) > 1500
    assert np.std(logs) == pytest.approx(0.05, rel=0.05)


def test_bursts_take_their_share_of_steps_and_time_and_settling_is_not_counted() -> None:
    probe = Probe(ks=(3, 0), settle_steps=2, burst_steps=8, interval_steps=40)
    policy = Policy(generation=1, table=(1,) * 17, probe=probe)
    pacer, windows = watched(Visit(8, 6000.0, arms(0.01, KNOWN)), policy=policy)
    later = windows[2:]
    time = {k: sum(window.seconds.get(k, 0.0) for window in later) for k in (0, 1, 3)}
    # In 80 steps: 60 of k=1, 10 of each other.
    wanted = {0: 10 * 0.010, 1: 60 * 0.011, 3: 10 * 0.013}
    for k in wanted:
        assert time[k] / sum(time.values()) == pytest.approx(wanted[k] / sum(wanted.values()), rel=0.01)
    counted = sum(cell.steps for one in pacer.samples[1:] for cell in one.cells if cell.probe)
    settled = sum(one.excluded_steps["settling"] for one in pacer.samples[1:])
    assert settled / counted == pytest.approx(2 / 8, rel=0.02)
    assert pacer.states[-1].probe == probe
    assert pacer.states[-1].probe_steps_by_k.keys() == {0, 3}


def test_windows_longer_than_a_step_lose_no_time() -> None:
    """A step of 7 s in windows of 5 s: what is left of a window is carried into the next."""
    pacer, windows = watched(
        Visit(1, 7000.0, {k: Arm(7.0, 1.0 + 0.5 * (k > 0), (0.5,) + (0.0,) * (k - 1) if k else ()) for k in (0, 1, 3)})
    )
    assert sum(cell.steps for one in pacer.samples for cell in one.cells) == pytest.approx(1000, abs=1)
    assert sum(sum(window.seconds.values()) for window in windows) == pytest.approx(7000)


def test_a_k_that_the_engine_has_no_graphs_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k \[2\]"):
        watched(Visit(8, 60.0, arms(0.01, KNOWN)), policy=Policy(generation=1, table=(2,) * 17))


def test_an_older_policy_changes_nothing() -> None:
    class Stubborn(Watching):
        def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
            super().pass_(state, samples, now)
            return Policy(generation=1, table=((3,) if len(self.states) == 1 else (0,)) * 17)

    pacer = Stubborn()
    run(Scenario(SETUP, (Visit(8, 60.0, arms(0.01, KNOWN)),), 0.0), pacer, np.random.default_rng(0))
    assert pacer.states[-1].table == (3,) * 17


@settings(max_examples=30)
@given(
    rates=st.lists(st.floats(1e-3, 2e4), min_size=2, max_size=4),
    load=st.integers(1, 4096),
    known=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_tuner_bears_any_table(rates: list[float], load: int, known: bool, seed: int) -> None:
    truth = {
        k: Arm(
            load * (1 + 0.5 * k if known else 1) / (rate * load), 1 + 0.5 * k if known or not k else None, (0.5,) * k
        )
        for k, rate in enumerate(rates)
    }
    setup = Setup(tuple(range(len(rates) - 1, -1, -1)), max(256, load))
    windows = run(Scenario(setup, (Visit(load, 60.0, truth),), 0.05), Tuner.of(setup), np.random.default_rng(seed))
    assert len(windows) == 12
