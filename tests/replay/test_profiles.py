"""What a profile is worth: a good one shortens exploration, a wrong one costs little and is corrected.

Step times of an H200 (dense 32B, EAGLE), acceptance of public traces, an engine's noise of 5 %, a pass every 2 s. The
figures in docs/profiles.md are those that `figures` gives with seeds 0 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import pytest

from paceline_engine.protocol import LOAD_EDGES
from paceline_operator.tuning.model import Profile, Settings
from tests.unit.simulated import Loop, goodput, grid, workload

DENSE, GSM8K = grid("h200_dense32b_eagle.csv"), workload("gsm8k")
INTERVAL = 2
LOADS = (1, 16, 64, 256)
Factor = Callable[[int], float]
"""k -> what the profile's step time is over the true one."""
GOOD: Factor = lambda _: 1.0  # noqa: E731
WRONG: Mapping[str, Factor] = {
    "drafting takes twice as long": lambda k: 2.0 if k else 1.0,
    "drafting takes half": lambda k: 0.5 if k else 1.0,
    "all takes twice as long": lambda _: 2.0,
}


def profile(settings: Settings, factor: Factor) -> Profile:
    loads = [load for load in LOAD_EDGES if load <= settings.max_num_seqs]
    costs = {(load, k): factor(k) * DENSE(load, k) for load in loads for k in settings.ladder}
    return Profile(costs, {k: tuple(GSM8K(k)) for k in settings.ladder if k})


@dataclass(frozen=True)
class Found:
    """Of one load, over all seeds."""

    observed: float
    """Seconds until every k had its minimum count."""
    kept: float
    """Tokens of the first minute over what the best k gives."""
    later: float
    """Of the fifth."""


def figures(factor: Factor | None, load: int, seeds: Sequence[int]) -> Found:
    """`factor` None: without a profile."""
    observed, kept, later = [], [], []
    for seed in seeds:
        loop = Loop.of(DENSE, GSM8K, seed=seed, fields={"tuning": {"intervalSeconds": INTERVAL}})
        if factor is not None:
            loop.settings = replace(loop.settings, profile=profile(loop.settings, factor))
        engine = loop.engines["pod-0"]
        best = 60 * max(goodput(DENSE, GSM8K, load, k) for k in loop.settings.ladder)
        seconds, tokens = None, [0.0]
        for at in range(INTERVAL, 301, INTERVAL):
            step = loop.run(1, load)
            if seconds is None and any(view.observed for view in step.buckets if view.load == load):
                seconds = at
            if at % 60 == 0:
                tokens.append(engine.tokens)
        assert seconds is not None
        observed.append(seconds)
        kept.append(tokens[1] / best)
        later.append((tokens[5] - tokens[4]) / best)
    return Found(mean(observed), mean(kept), mean(later))


@pytest.mark.parametrize("load", LOADS)
def test_a_good_profile_shortens_exploration(load: int) -> None:
    without, good = figures(None, load, (0, 1)), figures(GOOD, load, (0, 1))
    assert good.observed <= 0.75 * without.observed
    assert good.kept >= without.kept - 0.002
    assert good.later >= without.later - 0.005


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_profile_is_corrected(name: str) -> None:
    for load in (1, 64):
        without, wrong = figures(None, load, (0, 1)), figures(WRONG[name], load, (0, 1))
        assert wrong.observed <= without.observed + 3 * INTERVAL, "hardly later than without one"
        assert wrong.kept >= 0.9, "a wrong k in force for seconds"
        assert wrong.later >= without.later - 0.005, "and nothing is left of it"
