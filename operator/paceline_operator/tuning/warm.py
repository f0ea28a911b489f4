"""Warm start: what was learnt under the same key before, as a prior that counts for half of each minimum."""

from __future__ import annotations

import numpy as np

from paceline_engine.protocol import AcceptanceCell, CostCell
from paceline_operator.tuning import acceptance, correct, cost, direct, solve
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS, Acceptance
from paceline_operator.tuning.cost import MIN_STEPS, Cost
from paceline_operator.tuning.goodput import board
from paceline_operator.tuning.model import Profile


def learnt(beliefs: Acceptance, costs: Cost, adaptive_loads: tuple[int, ...] = ()) -> Profile:
    """What is measured, to be kept: only cells and ks with their minimum count."""
    own = cost.own(costs)
    means = np.exp(costs.mean[: own.size]).reshape(own.shape)
    lengths = acceptance.lengths(beliefs)
    return Profile(
        step_seconds={
            (load, k): float(means[row, column])
            for row, load in enumerate(costs.loads)
            for column, k in enumerate(costs.ladder)
            if own[row, column]
        },
        survival={
            k: tuple(lengths.survival[row][:k].tolist())
            for row, k in enumerate(costs.ladder)
            if k > 0 and lengths.known[row]
        },
        adaptive_loads=adaptive_loads,
    )


def warmed(
    beliefs: Acceptance, costs: Cost, profile: Profile, base: tuple[int, ...], now: float
) -> tuple[Acceptance, Cost, tuple[int, ...]]:
    """Beliefs that start from `profile`, and the table with the best k it knows of at each load (`base` elsewhere)."""
    steps, drafts = int(MIN_STEPS // 2), int(MIN_REQUEST_STEPS // 2)
    cells = [
        CostCell(
            load=load,
            context=0,
            k_drafted=k,
            k_verified=k,
            probe=False,
            steps=steps,
            request_steps=steps * load,
            emitted=0,
            seconds=steps * seconds,
            seconds_squared=steps * seconds * seconds,
            histogram={},
        )
        for (load, k), seconds in profile.step_seconds.items()
        if seconds > 0 and load > 0
    ]
    fates = [
        AcceptanceCell(
            k=k,
            load=1,
            request_steps=drafts,
            drafts=drafts,
            drafted=(drafts,) * k,
            accepted=tuple(round(drafts * share) for share in survival[:k]),
        )
        for k, survival in profile.survival.items()
        if k > 0
    ]
    costs = correct.learn(costs, {"profile": cells}, 0.0, now)
    beliefs = acceptance.learn(beliefs, fates, 0.0)
    loads = [load for load in costs.loads if any((load, k) in profile.step_seconds for k in costs.ladder)]
    if not loads or not fates:
        return beliefs, costs, base
    scores = board(acceptance.lengths(beliefs), costs, direct.empty(costs.loads, costs.ladder), loads)
    best = {load: costs.ladder[row] for load, row in zip(loads, scores.log_goodput.argmax(axis=1), strict=True)}
    return beliefs, costs, solve.table(base, best, costs.loads)
