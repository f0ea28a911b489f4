"""Warm start: what was learnt under the same key before, as a prior that counts for half of each minimum."""

from __future__ import annotations

from paceline_engine.protocol import CostCell
from paceline_operator.tuning import acceptance, correct, solve
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS
from paceline_operator.tuning.cost import MIN_STEPS, Cost
from paceline_operator.tuning.model import Profile, Settings
from paceline_operator.tuning.state import TunerState
from paceline_operator.tuning.values import amended

LENT_STEPS = int(MIN_STEPS // 2)


def warmed(settings: Settings, state: TunerState) -> TunerState:
    """`state` with what its settings' profile tells of whatever the engines have not measured themselves.

    Where nothing is decided and nothing was pushed, the table is the one with the best k that is known at each load.
    """
    profile = settings.profile
    if profile is None or profile == state.profile:
        return state
    beliefs = acceptance.lent(state.acceptance, profile.survival, MIN_REQUEST_STEPS / 2)
    costs = _costs(state.cost, profile, state.now)
    state = amended(state, profile=profile, acceptance=beliefs, cost=costs)
    if state.decided or state.policy is not None:
        return state
    base = _table(profile, state.base, costs)
    return amended(state, base=base, auto=base)


def _costs(costs: Cost, profile: Profile, now: float) -> Cost:
    """The belief corrected as by windows of the profile's; counts and loads stay those of the engines."""
    width = len(costs.ladder)
    lent, cells = costs.lent.copy(), list[CostCell]()
    for (load, k), seconds in profile.step_seconds.items():
        if load not in costs.loads or k not in costs.ladder or not seconds > 0:
            continue
        place = costs.loads.index(load) * width + costs.ladder.index(k)
        if costs.steps[place] or lent[place]:
            continue
        lent[place] = 1.0
        cells.append(
            CostCell(
                load=load,
                context=0,
                k_drafted=k,
                k_verified=k,
                probe=False,
                steps=LENT_STEPS,
                request_steps=LENT_STEPS * load,
                emitted=0,
                seconds=LENT_STEPS * seconds,
                seconds_squared=LENT_STEPS * seconds * seconds,
                histogram={},
            )
        )
    found = correct.learn(costs, {"profile": cells}, 0.0, now)
    return amended(costs, mean=found.mean, covariance=found.covariance, lent=lent)


def _table(profile: Profile, base: tuple[int, ...], costs: Cost) -> tuple[int, ...]:
    """`base` with the best k of the profile at each load where it knows several."""
    lengths = {0: 1.0} | {k: 1.0 + sum(shares) for k, shares in profile.survival.items()}
    best = dict[int, int]()
    for load in costs.loads:
        rates = {k: lengths[k] / seconds for k in costs.ladder
                 if k in lengths and (seconds := profile.step_seconds.get((load, k), 0.0)) > 0}  # fmt: skip
        if len(rates) > 1:
            best[load] = max(rates, key=rates.__getitem__)
    return solve.table(base, best, costs.loads)
