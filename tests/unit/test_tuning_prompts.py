"""Steps with prompts: what they add is told from what k costs, and no k is held to account for the prompts it met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import LAUNCHED, PROMPT_EDGES, AcceptanceCell, CostCell, prompt_bucket
from paceline_operator.api.speculation import Method
from paceline_operator.tuning import acceptance, correct, cost, direct, prompts
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.goodput import Scores, board

LOADS, LADDER, LOAD = (64, 128, 256), (4, 2, 1, 0), 256
SURVIVAL = (0.7, 0.5, 0.35, 0.25)
BARE = {4: 0.012, 2: 0.009, 1: 0.0075, 0: 0.0065}
OFFSET, TOKEN = 0.003, 25e-6
"""Seconds that a step with prompts takes longer, and each of their tokens."""


def length(k: int) -> float:
    return 1 + sum(SURVIVAL[:k])


def cell(
    k: int,
    begun: int,
    steps: int,
    rng: np.random.Generator,
    noise: float = 0.01,
    tokens: int = 512,
    load: int = LOAD,
    price: float = TOKEN,
    launch: float = 0.0,
) -> CostCell:
    """Steps at `k` in each of which `begun` requests began, whose prompts have `tokens`; with any, at least `launch`
    seconds."""
    once = max(0.0, launch - BARE[k]) if launch else OFFSET
    added = once * (begun > 0) + price * begun * tokens
    seconds = steps * (BARE[k] + added) * math.exp(rng.normal(0, noise))
    return CostCell(
        load=load,
        context=0,
        k_drafted=k,
        k_verified=k,
        probe=False,
        steps=steps,
        request_steps=steps * load,
        emitted=round(steps * ((load - begun) * length(k) + begun)),
        seconds=seconds,
        seconds_squared=seconds**2 / steps * 1.0004,
        histogram={},
        prompt=prompt_bucket(begun * tokens),
        prompt_tokens=steps * begun * tokens,
        first_tokens=steps * begun,
    )


def learnt(
    begun: Mapping[int, Iterable[int]], windows: int = 12, seed: int = 0, steps: int = 16, launch: float = 0.0
) -> Cost:
    """What is known after windows in which each k had these kinds of steps."""
    rng = np.random.default_rng(seed)
    found = cost.empty(LOADS, LADDER)
    for number in range(windows):
        cells = [cell(k, count, steps, rng, launch=launch) for k, kinds in begun.items() for count in kinds]
        found = correct.learn(found, {"pod": cells}, 10.0, 10.0 * (number + 1))
    return found


def scores(costs: Cost) -> Scores:
    """With acceptance known as it is."""
    many = 10**6
    fates = [
        AcceptanceCell(
            k=k,
            load=LOAD,
            request_steps=many,
            drafts=many,
            drafted=(many,) * k,
            accepted=tuple(int(many * share) for share in SURVIVAL[:k]),
        )
        for k in LADDER
        if k
    ]
    lengths = acceptance.lengths(acceptance.learn(acceptance.empty(LADDER, Method.EAGLE), fates, 0.0))
    return board(lengths, costs, direct.empty(LOADS, LADDER), [LOAD]).at(LOAD)


def bare(costs: Cost, k: int) -> float:
    """Believed seconds of a step without prompts."""
    return math.exp(costs.mean[LOADS.index(LOAD) * len(LADDER) + LADDER.index(k)])


BOTH = dict.fromkeys(LADDER, (0, 1, 2, 4))


def test_what_prompts_add_is_told_from_what_k_costs() -> None:
    for seed in range(4):
        found = learnt(BOTH, seed=seed)
        for k in LADDER:
            assert bare(found, k) == pytest.approx(BARE[k], rel=0.03)


@pytest.mark.parametrize("launch", [0.0, 0.0085, 0.011, 0.02])
def test_what_launching_takes_is_hidden_by_the_longer_steps_of_larger_ks(launch: float) -> None:
    """What is believed of a usual step of each k."""
    for seed in range(4):
        found = learnt(dict.fromkeys(LADDER, (0, 1, 2)), seed=seed, launch=launch)
        told = scores(found)
        steps, carrying, tokens, emitted = found.mix[LOADS.index(LOAD)]
        per_token = -math.log1p(-carrying / steps) * steps / emitted
        for row, k in enumerate(LADDER):
            out = LOAD * length(k)
            once = max(0.0, launch - BARE[k]) if launch else OFFSET
            usual = BARE[k] + once * -math.expm1(-per_token * out) + TOKEN * tokens / emitted * out
            assert math.exp(told.log_step[row]) == pytest.approx(usual, rel=0.05)
            assert bare(found, k) == pytest.approx(BARE[k], rel=0.04)


@settings(deadline=None, max_examples=80)
@given(
    offset=st.floats(-1.0, 4.0),
    hidden=st.floats(-4.0, 4.0),
    level=st.floats(-3.0, 3.0),
    longer=st.floats(0.02, 3.0),
    tokens=st.floats(0.0, 2000.0),
)
def test_slopes_are_those_of_what_is_expected(
    offset: float, hidden: float, level: float, longer: float, tokens: float
) -> None:
    """Each of the belief's entries moved a little, in a step that has prompts and in a usual one."""
    known, place = cost.empty(LOADS, LADDER), np.asarray([2 * len(LADDER) + 1])
    mean = known.mean.copy()
    mean[8:12] = math.log(0.008) + longer * np.asarray([1.0, 0.6, 0.3, 0.0])
    mean[-6:] = [offset, offset, hidden, level, 0.1, 0.02]
    known = replace(known, mean=mean, mix=np.asarray([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [100.0, 60.0, 60.0 * 500, 3e4]]))

    def expected(at: Cost) -> float:
        return float(prompts.sight(at, place, np.zeros(1, np.intp), np.asarray([tokens]), np.ones(1)).log[0])

    def usual(at: Cost) -> float:
        return float(scores(at).log_step[1])

    slope = prompts.sight(known, place, np.zeros(1, np.intp), np.asarray([tokens]), np.ones(1)).slope
    apart = 1e-5
    for entry in (9, 11, *range(mean.size - 5, mean.size)):
        moved = mean.copy()
        moved[entry] += apart
        found = (expected(replace(known, mean=moved)) - expected(known)) / apart
        assert found == pytest.approx(float(slope[0, entry]) if slope is not None else float(entry == 9), abs=1e-3)
    at = np.arange(8, 12)
    came = prompts.traffic(known)
    assert came is not None
    found_usual = prompts.usual(known, came, at, LOAD * np.asarray([length(k) for k in LADDER]))
    assert found_usual is not None
    places, slopes = prompts.effects(known, at, found_usual)
    for entry, by in zip(places.tolist(), slopes[1].tolist(), strict=True):
        moved = mean.copy()
        moved[entry] += apart
        seconds = (math.exp(usual(replace(known, mean=moved))) - math.exp(usual(known))) / apart
        assert seconds == pytest.approx(by, rel=1e-2, abs=1e-6)


def test_a_k_seen_with_prompts_alone_is_known_by_what_the_others_tell_of_them() -> None:
    for seed in range(4):
        found = learnt({**BOTH, 4: (1, 2, 4)}, seed=seed)
        assert cost.own(found)[LOADS.index(LOAD)].all()
        assert bare(found, 4) == pytest.approx(BARE[4], rel=0.15)


def test_no_k_is_judged_by_its_prompts_against_anothers_steps_without() -> None:
    """k=4 always meets prompts, k=2 never does, and nothing tells what prompts cost: nor does anybody know."""
    for seed in range(4):
        found = scores(learnt({4: (4,), 2: (0,)}, seed=seed))
        gain, error = found.gain(2, 4)
        true = math.log(length(2) / BARE[2]) - math.log(length(4) / BARE[4])
        assert error > 0.1
        assert abs(gain - true) < 3 * error
    alike = [scores(learnt({4: kinds, 2: kinds})).gain(2, 4)[1] for kinds in ((0,), (1, 2, 4))]
    assert max(alike) < 0.05, "steps of one kind compare, whichever it is"


def test_gains_are_diluted_by_the_prompts_that_come_with_the_tokens() -> None:
    found = learnt(BOTH)
    steps, carrying, tokens, emitted = found.mix[LOADS.index(LOAD)]
    per_token = -math.log1p(-carrying / steps) * steps / emitted

    def step(k: int) -> float:
        out = LOAD * length(k)
        return BARE[k] + OFFSET * -math.expm1(-per_token * out) + TOKEN * tokens / emitted * out

    told = scores(found)
    for k in LADDER[1:]:
        gain, error = told.gain(k, 4)
        true = math.log(length(k) / step(k)) - math.log(length(4) / step(4))
        assert gain == pytest.approx(true, abs=0.02)
        assert abs(gain - true) < 3 * error
        assert abs(true) < abs(math.log(length(k) / BARE[k]) - math.log(length(4) / BARE[4]))
    assert math.exp(told.log_step[0]) == pytest.approx(step(4), rel=0.03)


def test_a_mean_over_few_windows_is_right_within_its_own_interval() -> None:
    misses = []
    for seed in range(12):
        found = learnt(BOTH, windows=2, seed=seed, steps=8)
        block = found.covariance[2 * len(LADDER) : 3 * len(LADDER), 2 * len(LADDER) : 3 * len(LADDER)]
        for row, k in enumerate(LADDER[:-1]):
            off = math.log(bare(found, k) / bare(found, 0)) - math.log(BARE[k] / BARE[0])
            misses.append(off / math.sqrt(block[row, row] + block[-1, -1] - 2 * block[row, -1]))
    assert np.std(misses) < 1.5


def test_prompts_that_come_in_steps_of_fewer_requests_are_held_to_the_load_whose_k_brought_them() -> None:
    """Whoever ended is followed a step later: steps with prompts are of one request less, and of the bucket below."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        found = cost.empty(LOADS, LADDER)
        for number in range(12):
            cells = [cell(k, 0, 16, rng, launch=0.012) for k in LADDER]
            fewer = [cell(k, begun, 16, rng, load=LOAD - 1, launch=0.012) for k in LADDER for begun in (1, 2)]
            cells += [one.model_copy(update={"load": LOADS[1]}) for one in fewer]
            found = correct.learn(found, {"pod": cells}, 10.0, 10.0 * (number + 1))
        assert not found.mix[LOADS.index(LOAD), 1]
        came = prompts.traffic(found)
        assert came is not None
        told = scores(found)
        for row, k in enumerate(LADDER):
            out = LOAD * length(k)
            once = max(0.0, 0.012 - BARE[k]) * -math.expm1(-came.begun * out)
            usual = BARE[k] + once + TOKEN * came.prompt_tokens * out
            assert math.exp(told.log_step[row]) == pytest.approx(usual, rel=0.15), (
                "usual steps, known by another load's"
            )
            assert usual > 1.5 * BARE[k]


def test_where_launching_shows_in_the_step_before_a_k_costs_what_all_its_steps_took() -> None:
    """The step with the prompts takes as long as any at k = 0 and 1, and longer at 2 and 4, which hide launching."""
    launching, own = {4: 0.0, 2: 0.0, 1: 0.004, 0: 0.006}, {4: 0.004, 2: 0.004, 1: 0.0, 0: 0.0}
    shares = {k: 1 - math.exp(-length(k) / 2) for k in LADDER}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        found = cost.empty(LOADS, LADDER)
        for number in range(12):
            cells = []
            for k, share in shares.items():
                mixed = round(20 * share)
                bare = cell(k, 0, 40 - 2 * mixed, rng)
                met, carrying = (cell(k, 0, mixed, rng) for _ in range(2))
                cells += [
                    bare,
                    _longer(met, launching[k]).model_copy(update={"prompt": LAUNCHED}),
                    _longer(carrying, own[k]).model_copy(
                        update={"prompt": 256, "prompt_tokens": 512 * mixed, "first_tokens": mixed}
                    ),
                ]
            found = correct.learn(found, {"pod": cells}, 10.0, 10.0 * (number + 1))
        told = scores(found)
        for row, (k, share) in enumerate(shares.items()):
            usual = BARE[k] + share * (launching[k] + own[k]) / 2
            assert math.exp(told.log_step[row]) == pytest.approx(usual, rel=0.04), k


def _longer(one: CostCell, seconds: float) -> CostCell:
    """Each step longer by `seconds`."""
    total = one.seconds + one.steps * seconds
    return one.model_copy(update={"seconds": total, "seconds_squared": total**2 / one.steps * 1.0004})


rows = st.tuples(st.floats(0.1, 1e4), st.floats(1.0, 1e3))
"""Steps, and tokens of each."""


@given(st.lists(rows, min_size=1, max_size=len(LOADS)), st.floats(1e-6, 5.0))
def test_what_comes_with_a_token_is_told_by_the_steps_of_all_loads(
    seen: list[tuple[float, float]], begun: float
) -> None:
    mix = np.zeros((len(LOADS), 4))
    shares = [-math.expm1(-begun * out) for _, out in seen]
    for row, ((steps, out), share) in enumerate(zip(seen, shares, strict=True)):
        mix[row] = steps, steps * share, steps * 100.0 * begun * out, steps * out
    came = prompts.traffic(replace(cost.empty(LOADS, LADDER), mix=mix))
    assert came is not None
    assert came.prompt_tokens == pytest.approx(100.0 * begun)
    carrying, told = (sum(steps * -math.expm1(-rate * out) for steps, out in seen) for rate in (begun, came.begun))
    assert told == pytest.approx(min(carrying, prompts.MOST_SHARE * sum(steps for steps, _ in seen)), rel=0.02)


counted = st.tuples(st.floats(0.0, 1e12), st.floats(0.0, 1.0), st.floats(0.0, 1e6), st.floats(1e-6, 1e6))
"""Steps; the share that carries prompts; of each step prompt tokens and tokens emitted."""


@given(st.lists(counted, min_size=len(LOADS), max_size=len(LOADS)))
def test_whatever_was_counted_what_comes_with_a_token_is_a_number(
    seen: list[tuple[float, float, float, float]],
) -> None:
    mix = [(steps, steps * share, steps * prompt, steps * out) for steps, share, prompt, out in seen]
    came = prompts.traffic(replace(cost.empty(LOADS, LADDER), mix=np.asarray(mix)))
    assert came is None or (math.isfinite(came.begun) and came.begun >= 0 and math.isfinite(came.prompt_tokens))


def test_without_prompts_nothing_is_added() -> None:
    found = learnt(dict.fromkeys(LADDER, (0,)))
    assert prompts.traffic(found) is None
    rng = np.random.default_rng(1)
    plain = cell(4, 0, 16, rng)
    assert prompts.leveled(found, [plain]) == [plain]


def test_windows_compare_as_if_all_had_met_the_usual_prompts() -> None:
    found, rng = learnt(BOTH, windows=30), np.random.default_rng(7)
    rates = []
    for begun in (0, 1, 4):
        (level,) = prompts.leveled(found, [cell(2, begun, 400, rng, noise=0.0)])
        rates.append(level.emitted / level.seconds)
        assert level.emitted / level.request_steps == pytest.approx(length(2), rel=1e-3)
    assert max(rates) / min(rates) < 1.05
    raw = [one.emitted / one.seconds for one in (cell(2, begun, 400, rng, noise=0.0) for begun in (0, 4))]
    assert raw[0] / raw[1] > 3, "they did not"


def test_another_price_of_prompts_is_learnt_and_changes_no_k() -> None:
    found, rng = learnt(BOTH), np.random.default_rng(3)
    for number in range(12):
        cells = [cell(k, begun, 16, rng, tokens=1024 if begun else 0) for k in LADDER for begun in (0, 1, 2)]
        slower = [
            one.model_copy(update={"seconds": 1.5 * one.seconds, "seconds_squared": 2.25 * one.seconds_squared})
            if one.prompt
            else one
            for one in cells
        ]
        found = correct.learn(found, {"pod": slower}, 10.0, 130.0 + 10.0 * number)
    assert found.changed == -math.inf
    for k in LADDER:
        assert bare(found, k) == pytest.approx(BARE[k], rel=0.04)


@pytest.mark.parametrize("factor", [0.02, 0.2, 5.0, 50.0])
def test_prompts_far_from_the_first_guess_do_not_shake_what_is_known_of_k(factor: float) -> None:
    found, rng = learnt(dict.fromkeys(LADDER, (0,))), np.random.default_rng(3)
    for number in range(12):
        cells = [
            cell(k, begun, 16, rng, price=factor * TOKEN) for k in LADDER[number % 2 :: 2] for begun in (0, 1, 2, 4)
        ]
        found = correct.learn(found, {"pod": cells}, 10.0, 130.0 + 10.0 * number)
        for k in LADDER:
            assert bare(found, k) == pytest.approx(BARE[k], rel=0.08), number
        assert found.changed == -math.inf
        assert math.sqrt(found.noise) < 0.06, "nor is it taken for noise"
    level = found.mean[-3:] @ found.features[LOADS.index(LOAD) * len(LADDER)]
    assert math.exp(level) / 300 * BARE[0] == pytest.approx(factor * TOKEN, rel=0.2, abs=2e-6)


counts = st.integers(0, 10**9)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(LADDER),
            st.sampled_from((*PROMPT_EDGES, LAUNCHED, 77)),
            counts,
            st.integers(1, 1000),
            st.floats(1e-6, 1e4),
            counts,
        ),
        max_size=12,
    )
)
def test_no_counts_break_it(rows: list[tuple[int, int, int, int, float, int]]) -> None:
    found = cost.empty(LOADS, LADDER)
    for number, (k, prompt, tokens, steps, seconds, emitted) in enumerate(rows):
        one = CostCell(
            load=LOAD,
            context=0,
            k_drafted=k,
            k_verified=k,
            probe=bool(number % 2),
            steps=steps,
            request_steps=steps * LOAD,
            emitted=emitted,
            seconds=seconds * steps,
            seconds_squared=seconds**2 * steps,
            histogram={},
            prompt=prompt,
            prompt_tokens=tokens,
            first_tokens=min(steps, tokens),
        )
        found = correct.learn(found, {"pod": [one]}, 10.0, 10.0 * number)
        (level,) = prompts.leveled(found, [one])
        assert level.seconds >= 0
        assert math.isfinite(level.seconds)
        told = scores(found)
        assert np.isfinite(told.log_goodput).all()
        assert np.isfinite(told.covariance).all()
        assert np.linalg.eigvalsh(told.covariance).min() > -1e-6
