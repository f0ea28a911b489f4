"""Engines that say less, or whose adaptive verification fails them."""

from __future__ import annotations

import pytest

from paceline_engine.protocol import Verification
from tests.replay.adversity import DENSE, Silent, Trial, Verifying, below_off, replaced, settled_after
from tests.replay.test_adversarial import MINUTE, tenant


@pytest.mark.parametrize("load", [1, 16, 64, 256])
def test_an_engine_without_acceptance(load: int) -> None:
    trial = replaced(Trial.of(seed=load), Silent)
    assert settled_after(trial.run(10 * MINUTE, load)) <= 3 * MINUTE
    trial.set(cost=tenant(DENSE, 2 * load))
    cliff = trial.run(10 * MINUTE, load)
    assert settled_after(cliff) <= 2 * MINUTE
    assert below_off(cliff) <= 2 * MINUTE
    assert trial.flapping(15 * MINUTE) == {}


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
