"""The closed loop of an H200 (benchmarks/h200/closed_loop.py) with a simulated engine: the same ladder, loads, visits
and interval, the real tuner, and what fixed ks cost and gave there."""

from __future__ import annotations

import numpy as np
import pytest

from paceline_operator.replay.contest import Setup, Tuner
from paceline_operator.replay.courses import geometric
from paceline_operator.replay.engine import run
from paceline_operator.replay.world import Arm, Prompts, Run, Scenario, Visit

LENGTHS = {7: 3.81, 5: 3.43, 4: 3.16, 3: 2.81, 2: 2.355, 1: 1.769, 0: 1.0}
STEP_MS = {
    1: (8.05, 7.12, 6.69, 6.21, 5.73, 5.28, 5.22),
    8: (8.52, 7.60, 7.20, 6.62, 6.08, 5.50, 5.38),
    32: (12.10, 11.05, 10.21, 9.60, 7.40, 6.72, 6.04),
    64: (19.29, 16.90, 14.58, 11.34, 10.74, 9.20, 6.92),
    128: (35.77, 29.04, 25.50, 20.80, 17.75, 13.60, 11.20),
    256: (63.84, 55.37, 45.32, 37.76, 30.47, 24.60, 17.55),
}
"""Means of the two windows of every fixed k, and over loads of the acceptance lengths, of
benchmarks/results/h200/2026-11-30-loops/closed_loop_raw.json: a step with the prompts that came meanwhile."""
BARE_MS = {
    1: (8.05, 7.12, 6.69, 6.21, 5.73, 5.28, 5.22),
    8: (8.50, 7.58, 7.18, 6.60, 6.05, 5.46, 5.35),
    32: (12.05, 11.0, 10.1, 9.5, 7.3, 6.6, 5.95),
    64: (19.2, 16.8, 14.5, 11.2, 10.5, 8.6, 6.5),
    128: (35.0, 28.4, 25.0, 19.5, 16.8, 12.5, 8.0),
    256: (63.5, 55.0, 44.8, 37.2, 28.9, 19.3, 12.6),
}
LAUNCH_MS = {1: 8.5, 8: 9.5, 32: 12.5, 64: 16.5, 128: 20.0, 256: 30.0}
"""Of the same means, what steps without prompts and the launching of one with a prompt may take, so that with 96 tokens
of prompt to 512 of reply they come to about those means: at 128 and 256 requests by what the tuner believed of steps
without in that run and the one of 2026-12-01; below, where few steps have prompts, a guess."""
PROMPT_TOKENS, REPLY_TOKENS, PROMPT_TOKEN_SECONDS = 96, 512, 8e-6
VISIT_SECONDS, SCORED_SECONDS, INTERVAL_SECONDS, NOISE = 30.0, 15.0, 2.0, 0.02


def course(prompts: bool) -> Scenario:
    """Up and down once."""
    visits = [
        Visit(load, VISIT_SECONDS, _arms(ms), prompts=_prompts(load) if prompts else None)
        for load, ms in (BARE_MS if prompts else STEP_MS).items()
    ]
    return Scenario(Setup(tuple(LENGTHS), 256, interval_seconds=INTERVAL_SECONDS), (*visits, *visits[::-1]), NOISE)


def _prompts(load: int) -> Prompts:
    return Prompts(
        tokens=PROMPT_TOKENS,
        reply_tokens=REPLY_TOKENS,
        step_seconds=0.0,
        token_seconds=PROMPT_TOKEN_SECONDS,
        least_seconds=LAUNCH_MS[load] / 1000,
    )


def _arms(step_ms: tuple[float, ...]) -> dict[int, Arm]:
    return {
        k: Arm(ms / 1000, length, geometric(length, k) if k else ())
        for (k, length), ms in zip(LENGTHS.items(), step_ms, strict=True)
    }


def ratio(scenario: Scenario, played: Run, visit: int, seconds: float) -> float:
    """Tokens in the last `seconds` of a visit over those of the best k there."""
    end = (visit + 1) * VISIT_SECONDS
    windows = [one for one in played if one.visit == visit and one.start >= end - seconds]
    rates = scenario.visits[visit].rates
    got = sum(rates[k] * spent for one in windows for k, spent in one.seconds.items())
    return got / sum(sum(one.seconds.values()) for one in windows) / max(rates.values())


@pytest.mark.parametrize("prompts", [False, True], ids=["decode only", "with prompts"])
@pytest.mark.parametrize("seed", range(4))
def test_visits_of_half_a_minute(seed: int, prompts: bool) -> None:
    scenario = course(prompts)
    tuner = Tuner.of(scenario.setup)
    played = run(scenario, tuner, np.random.default_rng(seed))
    down = range(len(STEP_MS), 2 * len(STEP_MS))
    scored = {scenario.visits[at].load: ratio(scenario, played, at, SCORED_SECONDS) for at in down}
    whole = {scenario.visits[at].load: ratio(scenario, played, at, VISIT_SECONDS) for at in down}
    assert min(scored.values()) >= 0.97, scored
    assert min(whole.values()) >= 0.96, whole
    # It demonstrates something: no fixed k does as well everywhere.
    fixed = {k: min(visit.rates[k] / max(visit.rates.values()) for visit in scenario.visits) for k in LENGTHS}
    assert max(fixed.values()) < min(scored.values())
    # On the way up, which is the first time at every load, it is off the best k for part of a visit at most.
    for at in range(len(STEP_MS)):
        assert ratio(scenario, played, at, VISIT_SECONDS) >= 0.9
