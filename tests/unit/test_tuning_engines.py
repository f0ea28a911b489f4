"""Who answers, why k holds, which tier an engine has, and who is pushed what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from paceline_engine.protocol import Feature, Policy, Probe
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import ServingStatus, Tier
from paceline_operator.tuning import explain
from paceline_operator.tuning.model import Engine, Memory
from paceline_operator.tuning.state import TunerState
from tests.unit.simulated import Loop, grid, workload

DENSE, EAGLE = grid("h200_dense32b_eagle.csv"), workload("gsm8k")


def loop(count: int = 1, **fields: dict[str, Any]) -> Loop:
    return Loop.of(DENSE, EAGLE, count=count, fields=fields)


FAILURES = [
    Reason.POD_NOT_ANSWERING,
    Reason.PLUGIN_ABSENT,
    Reason.TOKEN_REFUSED,
    Reason.ENGINE_SERIES_MISSING,
    Reason.METRICS_STALE,
    Reason.MALFORMED_ANSWER,
    Reason.ENGINE_WARMING_UP,
]


@pytest.mark.parametrize("reason", FAILURES)
def test_every_failure_holds_with_its_own_reason(reason: Reason) -> None:
    running = loop()
    tuned = running.run(8, 64)
    held = running.take([Engine("pod-0", failure=reason, failure_message="as it was told")])
    assert held.holding
    assert held.reason is Reason.HOLDING
    assert held.metrics_reason is reason
    assert "as it was told" in held.metrics_message
    assert held.table == tuned.table
    assert held.policy is None
    assert held.push_to == ()
    assert held.decisions == ()
    assert held.tier is (
        Tier.RESTART if reason in (Reason.PLUGIN_ABSENT, Reason.ENGINE_SERIES_MISSING) else Tier.UNKNOWN
    )


def test_no_pod_at_all_holds_too() -> None:
    held = loop().take([])
    assert held.holding
    assert held.metrics_reason is Reason.NO_PODS
    assert held.generation == 0


def test_holding_loses_nothing() -> None:
    running = loop()
    before = running.run(10, 64)
    for _ in range(5):
        running.now += 10
        running.take([Engine("pod-0", failure=Reason.POD_NOT_ANSWERING, failure_message="down")])
    after = running.run(1, 64)
    assert not after.holding
    assert after.table == before.table
    assert after.generation == before.generation
    assert {view.load: view.observed for view in after.buckets}[64]


def test_the_most_frequent_failure_names_the_condition() -> None:
    held = loop().take(
        [
            Engine("a", failure=Reason.TOKEN_REFUSED, failure_message="401"),
            Engine("b", failure=Reason.POD_NOT_ANSWERING, failure_message="refused"),
            Engine("c", failure=Reason.POD_NOT_ANSWERING, failure_message="refused"),
        ]
    )
    assert held.metrics_reason is Reason.POD_NOT_ANSWERING
    assert "a: TokenRefused: 401" in held.metrics_message


def test_one_that_answers_is_enough_and_the_others_are_named() -> None:
    running = loop(2)
    for _ in range(10):
        running.now += 10
        running.engines["pod-0"].requests = 64
        step = running.take(
            [
                running.engines["pod-0"].answer(10.0, "pod-0"),
                Engine("pod-1", failure=Reason.POD_NOT_ANSWERING, failure_message="no route"),
            ]
        )
    assert not step.holding
    assert step.metrics_reason is Reason.METRICS_FOUND
    assert "1 of 2 engines answer" in step.metrics_message
    assert "pod-1: PodNotAnswering: no route" in step.metrics_message
    assert step.table[64] == 1
    assert step.tiers["pod-1"][0] is Tier.UNKNOWN
    assert step.tier is Tier.LIVE
    assert step.acknowledged == ("pod-0",)


def test_an_answer_without_samples_is_none() -> None:
    running = loop()
    running.engines["pod-0"].requests = 8
    answer = running.engines["pod-0"].answer(10.0)
    held = running.take([Engine("pod-0", state=answer.state)])
    assert held.metrics_reason is Reason.POD_NOT_ANSWERING


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cell: cell.model_copy(update={"histogram": {10**6: 1}}),
        lambda cell: cell.model_copy(update={"request_steps": 10**400}),
        lambda cell: cell.model_copy(update={"seconds": 1e300}),
    ],
)
def test_numbers_that_cannot_be_hold(spoil: Callable[[object], object]) -> None:
    running = loop()
    running.engines["pod-0"].requests = 8
    answer = running.engines["pod-0"].answer(10.0)
    assert answer.samples
    cells = tuple(spoil(cell) for cell in answer.samples.cells)
    spoilt = answer.samples.model_copy(update={"cells": cells})
    held = running.take([Engine("pod-0", state=answer.state, samples=spoilt)])
    assert held.metrics_reason is Reason.MALFORMED_ANSWER


def test_requests_that_run_without_a_step_are_stale_after_half_a_minute() -> None:
    running = loop()
    running.run(2, 8)
    engine = running.engines["pod-0"]
    reasons = []
    for _ in range(5):
        running.now += 10
        engine.requests = 0
        idle = engine.answer(10.0)
        assert idle.samples
        gauges = idle.samples.gauges.model_copy(update={"running": 3})
        stuck = idle.samples.model_copy(update={"gauges": gauges})
        reasons.append(running.take([Engine("pod-0", state=idle.state, samples=stuck)]).metrics_reason)
    assert reasons == [Reason.METRICS_FOUND] * 2 + [Reason.METRICS_STALE] * 3
    assert not running.run(1, 8).holding


def test_an_idle_engine_is_not_stale() -> None:
    running = loop()
    running.run(3, 8)
    for _ in range(20):
        step = running.run(1, 0)
    assert not step.holding
    assert step.load is None
    assert step.k is None


def test_an_engine_that_cannot_change_k_is_of_the_restart_tier_and_gets_nothing() -> None:
    running = loop()
    running.engines["pod-0"].live = False
    step = running.run(10, 64)
    assert step.tier is Tier.RESTART
    assert step.reason is Reason.RESTART_TIER
    assert "suffix needs a constant k" in step.message
    assert running.pushes == 0
    assert step.table == running.settings.boot_table


def test_an_engine_of_another_boot_configuration_waits_for_its_replacement() -> None:
    running = loop()
    old = running.engines["pod-0"]
    old.boot, old.requests = (1,) * 65, 8
    step = running.take([old.answer(10.0)])
    assert step.tier is Tier.RESTART
    assert "waits to be replaced" in step.tiers["pod-0"][1]
    assert step.push_to == ()


def test_an_engine_that_captured_other_ks_waits_too() -> None:
    running = loop()
    old = running.engines["pod-0"]
    old.ladder, old.requests = (5, 4, 0), 8
    step = running.take([old.answer(10.0)])
    assert step.tier is Tier.RESTART
    assert "5 4 0" in step.tiers["pod-0"][1]
    assert step.push_to == ()


def test_a_late_engine_gets_the_same_policy_again() -> None:
    running = loop(2, tuning={"mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]})
    step = running.run(3, 64)
    late = running.engines["pod-1"]
    assert step.generation == 1
    late.policy = None
    again = running.run(1, 64)
    assert again.generation == step.generation
    assert again.push_to == ("pod-1",)
    assert again.policy is not None
    assert again.policy.table == step.table
    assert running.run(1).acknowledged == ("pod-0", "pod-1")


def test_an_engine_that_restarted_gets_the_policy_again_and_is_not_counted_twice() -> None:
    running = loop()
    before = running.run(12, 64)
    counted = {c.k: c.steps for view in before.buckets for c in view.candidates}
    running.engines["pod-0"].restart("boot-2")
    after = running.run(1, 64)
    assert after.generation == before.generation
    assert after.push_to == ("pod-0",)
    grown = {c.k: c.steps for view in after.buckets for c in view.candidates}
    assert sum(grown.values()) < sum(counted.values()) + 600, "one window more"


def test_everything_since_boot_again_teaches_nothing_new() -> None:
    running = loop()
    before = running.run(12, 64)
    engine = running.engines["pod-0"]
    answer = engine.answer(10.0)
    assert answer.samples
    again = engine.since_boot(answer.samples)
    running.now += 10
    after = running.take([Engine("pod-0", state=engine.state(), samples=again)])
    assert [c.steps for v in after.buckets for c in v.candidates] == [
        c.steps for v in before.buckets for c in v.candidates
    ]


def test_a_window_read_twice_counts_once() -> None:
    running = loop()
    running.run(5, 64)
    answer = running.engines["pod-0"].answer(10.0)
    running.now += 10
    once = running.take([answer])
    running.now += 10
    twice = running.take([answer])
    assert [c.steps for v in twice.buckets for c in v.candidates] == [
        c.steps for v in once.buckets for c in v.candidates
    ]


def test_an_engine_gone_for_an_hour_is_forgotten() -> None:
    """Every pod of a serving that scales has a name of its own."""
    running = loop(2)
    running.run(3, 64)
    engines = dict(running.engines)
    running.engines = {"pod-0": engines["pod-0"], "pod-2": engines["pod-1"]}
    running.run(3)
    running.now += 3600.0
    running.run(2)
    state = running.memory.state
    assert isinstance(state, TunerState)
    assert set(state.read) == set(state.cost.speeds) == set(running.memory.cursors) == {"pod-0", "pod-2"}


def test_a_foreign_newer_generation_is_overtaken() -> None:
    running = loop()
    running.run(12, 64)
    foreign = Policy(generation=500, table=(2,) * 257)
    running.engines["pod-0"].push(foreign)
    step = running.run(1, 64)
    assert step.generation == 501
    assert step.push_to == ("pod-0",)
    assert running.run(1).acknowledged == ("pod-0",)


def test_another_body_under_the_same_generation_gets_a_new_one() -> None:
    running = loop()
    before = running.run(12, 64)
    running.engines["pod-0"].policy = Policy(generation=before.generation, table=(2,) * 257)
    step = running.run(1, 64)
    assert step.generation == before.generation + 1


def test_the_next_generation_is_above_what_status_knows() -> None:
    running = loop()
    running.known = 41
    assert running.run(1, 8).generation == 42


def test_a_generation_changes_only_with_what_is_pushed() -> None:
    running = loop()
    seen: dict[int, tuple[tuple[int, ...], Probe | None]] = {}
    for load in (8, 64, 8, 128):
        for _ in range(15):
            step = running.run(1, load)
            policy = running.engines["pod-0"].policy
            if policy:
                assert seen.setdefault(policy.generation, (policy.table, policy.probe)) == (policy.table, policy.probe)
                assert policy.generation == step.generation
    bodies = list(seen.values())
    assert all(a != b for a, b in pairwise(bodies))


def test_a_new_operator_takes_over_without_a_push() -> None:
    running = loop()
    before = running.run(30, 64)
    engine = running.engines["pod-0"]
    running.memory = Memory()
    running.now += 10
    answer = engine.answer(10.0)
    assert answer.samples
    everything = engine.since_boot(answer.samples)
    step = running.take([Engine("pod-0", state=answer.state, samples=everything)])
    assert step.table == before.table
    assert step.generation == before.generation
    assert step.push_to == ()
    assert step.acknowledged == ("pod-0",)
    assert {view.load: view.observed for view in step.buckets} == {64: True}


def test_an_engine_that_never_acknowledges_is_told() -> None:
    running = loop()
    running.run(12, 64)
    engine = running.engines["pod-0"]
    old = Policy(generation=1, table=running.settings.boot_table)
    for _ in range(4):
        engine.policy = old
        step = running.run(1, 64)
    assert step.reason is Reason.NOT_ACKNOWLEDGED
    assert step.acknowledged == ()


def changed(engine: Engine, cell: dict[str, Any] | None = None, **state: Any) -> Engine:
    assert engine.state
    assert engine.samples
    cells = tuple(one.model_copy(update=cell or {}) for one in engine.samples.cells)
    samples = engine.samples.model_copy(update={"cells": cells})
    return Engine(engine.name, state=engine.state.model_copy(update=state), samples=samples)


def test_an_engine_that_booted_for_more_requests_than_the_spec_says_now_breaks_nothing() -> None:
    before = loop(engine={"maxNumSeqs": 256})
    before.run(5, 128)
    running = loop(engine={"maxNumSeqs": 64})
    running.memory, running.now = before.memory, before.now + 10
    step = running.take([before.engines["pod-0"].answer(10.0)])
    assert step.reason is Reason.RESTART_TIER
    assert (step.load, len(step.table)) == (64, 65)


@pytest.mark.parametrize("told", [{"generation": 2**53}, {"generation": 10**30}, {"cell": {"seconds": 1e-170}}])
def test_numbers_that_no_engine_reaches_are_refused_and_the_others_tuned_on(told: dict[str, Any]) -> None:
    running = loop(2)
    running.run(3, 8)
    answers = [engine.answer(10.0, name) for name, engine in running.engines.items()]
    step = running.take([changed(answers[0], **told), answers[1]])
    assert step.metrics_reason is Reason.METRICS_FOUND
    assert "pod-0: MalformedAnswer" in step.metrics_message
    assert step.load == 8


def test_a_generation_in_status_that_was_never_pushed_is_not_followed() -> None:
    running = loop()
    running.known = 2**63 - 1
    step = running.run(3, 8)
    assert step.acknowledged == ("pod-0",)
    assert step.generation < 10


@pytest.mark.parametrize("count", [1, 300])
def test_what_is_told_of_many_or_wordy_engines_fits_a_condition(count: int) -> None:
    running = loop()
    engine = running.engines["pod-0"]
    engine.live = False
    answer = engine.answer(10.0)
    assert answer.state
    wordy = Feature(supported=False, reason="x" * 40_000)
    answer = changed(answer, capabilities=answer.state.capabilities.model_copy(update={"live_k": wordy}))
    step = running.take([Engine(f"pod-{i}", state=answer.state, samples=answer.samples) for i in range(count)])
    assert step.reason is Reason.RESTART_TIER
    assert max(map(len, (step.message, *(why for _, why in step.tiers.values())))) < 3000


def test_numbers_that_add_up_to_too_much_for_status_are_cut() -> None:
    running = loop()
    running.run(6, 8)
    for _ in range(4):
        answer = running.engines["pod-0"].answer(10.0)
        running.now += 10
        cell = {"steps": 1000, "request_steps": 10**15, "seconds": 0.001, "seconds_squared": 0.0, "histogram": {}}
        step = running.take([changed(answer, cell=cell)])
    running.now += 61
    told = explain.status_fields(running.take([running.engines["pod-0"].answer(10.0)]), ServingStatus(), "now")
    rows = [row for bucket in told["buckets"] for row in bucket.candidates]
    assert step.load == 8
    assert max(row.high_milli_tokens_per_second for row in rows) == 2**53


def test_a_load_never_seen_gets_no_k_without_a_graph() -> None:
    """Past the last graph cost jumps, which no borrowed cost tells."""

    def at_256(graphs: dict[int, int]) -> int:
        running = loop()
        for load in (8, 64, 16):
            for _ in range(8):
                running.engines["pod-0"].requests = load
                running.now += 10
                answer = running.engines["pod-0"].answer(10.0)
                assert answer.state
                able = answer.state.capabilities.model_copy(update={"graph_requests": graphs})
                step = running.take([changed(answer, capabilities=able)])
        return step.table[256]

    assert at_256({}) == 1
    assert at_256({5: 64, 3: 96, 2: 128, 1: 192, 0: 256}) == 0


def test_a_serving_that_is_given_no_schedule_says_why_its_pods_are_not_live() -> None:
    env = [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]
    running = Loop.of(DENSE, EAGLE, fields={"engine": {"env": env}})
    running.engines["pod-0"].live = False
    step = running.run(1, 8)
    assert step.tier is Tier.RESTART
    assert "V1 model runner" in step.tiers["pod-0"][1]
