"""Engines that say less, or whose adaptive verification fails them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from paceline_engine.protocol import Verification
from tests.replay.adversity import DENSE, GSM8K, Silent, Trial, Unclean, Verifying, below_off, replaced, settled_after
from tests.replay.test_adversarial import MINUTE, tenant
from tests.unit.simulated import StepSeconds


@pytest.mark.parametrize("load", [1, 16, 64, 256])
def test_an_engine_without_acceptance(load: int) -> None:
    trial = replaced(Trial.of(seed=load), Silent)
    assert settled_after(trial.run(10 * MINUTE, load)) <= 3 * MINUTE
    trial.set(cost=tenant(DENSE, 2 * load))
    cliff = trial.run(10 * MINUTE, load)
    assert settled_after(cliff) <= 2 * MINUTE
    assert below_off(cliff) <= 2 * MINUTE
    assert trial.flapping(15 * MINUTE) == {}


def worth(rates: Mapping[int, float]) -> StepSeconds:
    """Steps of 10 ms at k=3, and such at other ks that their goodput is that share of its."""
    return lambda _, k: 0.01 * (1 + sum(GSM8K(k))) / (1 + sum(GSM8K(3))) / rates[k]


@pytest.mark.parametrize("minutes", [10, 20])
def test_a_k_that_never_gets_clean_steps_keeps_no_other_waiting(minutes: int) -> None:
    """The nearest bad k is due soonest; where it never comes to be measured, a farther one that became good is still
    found once it has rested for as long as it had been bad."""
    rates = {3: 1.0, 2: 0.7, 5: 0.6, 1: 0.5, 0: 0.45}
    trial = replaced(Trial.of(cost=worth(rates), noise=0.02), Unclean)
    engine = trial.loop.engines["pod-0"]
    assert isinstance(engine, Unclean)
    assert trial.run(minutes * MINUTE, 16)[-1].k == 3
    engine.lost.add(2)
    trial.run(11 * MINUTE, 16)
    trial.set(cost=worth(rates | {5: 1.3}))
    assert settled_after(trial.run(2 * minutes * MINUTE, 16)) < (minutes + 11) * MINUTE
    # Bursts that come to nothing become fewer.
    before = engine.total_steps, engine.probe_steps
    trial.run(30 * MINUTE, 16)
    assert (engine.probe_steps - before[1]) / (engine.total_steps - before[0]) < 0.01


@pytest.mark.parametrize(("method", "load"), [("dspark", 64), ("eagle", 192)])
def test_verification_that_pays_is_switched_on_and_stays(method: str, load: int) -> None:
    speculation = {"method": method, "draft": {"source": "hf://a/c"}, "maxTokens": 5}
    trial = replaced(Trial.of(seed=load, fields={"speculation": speculation}), Verifying)
    engine = trial.loop.engines["pod-0"]
    assert isinstance(engine, Verifying)
    trial.run(15 * MINUTE, load)
    start = engine.on
    trial.run(15 * MINUTE, load)
    assert engine.mode is Verification.ADAPTIVE
    assert engine.on - start >= 0.95 * 15 * MINUTE


@pytest.mark.parametrize(("method", "load"), [("dspark", 64), ("eagle", 192)])
def test_verification_whose_estimate_starves_is_left_for_good(method: str, load: int) -> None:
    speculation = {"method": method, "draft": {"source": "hf://a/c"}, "maxTokens": 5}
    trial = replaced(Trial.of(seed=load, fields={"speculation": speculation}), Verifying)
    engine = trial.loop.engines["pod-0"]
    assert isinstance(engine, Verifying)
    trial.run(15 * MINUTE, load)
    start, on, k = len(trial.passes), engine.on, trial.passes[-1].k
    engine.starving = True
    trial.run(30 * MINUTE, load)
    assert engine.on - on <= 4
    assert trial.decided(start) == 1
    assert engine.mode is Verification.ALL
    assert trial.passes[-1].k == k, "what starved says nothing of the drafts"
