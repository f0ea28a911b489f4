"""What status says, and when it may change."""

from __future__ import annotations

from itertools import pairwise

import pytest

from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status import ServingStatus, Tier
from paceline_operator.tuning.explain import status_fields
from paceline_operator.tuning.model import Engine, Step
from tests.unit.simulated import GOOD, Loop, fixed, grid, workload

DENSE = grid("h200_dense32b_eagle.csv")


def tell(step: Step, previous: ServingStatus, minute: int = 0) -> ServingStatus:
    fields = status_fields(step, previous, f"2026-01-01T00:{minute:02}:00Z")
    told = previous.model_copy(update={name: value for name, value in fields.items() if name != "conditions"})
    return ServingStatus.model_validate(told.model_dump())


def follow(loop: Loop, passes: int, requests: int, status: ServingStatus) -> list[ServingStatus]:
    """Status after each of `passes` passes."""
    told = []
    for number in range(passes):
        status = tell(loop.run(1, requests), status, number % 60)
        told.append(status)
    return told


def test_the_fields_of_a_tuned_serving() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    status = follow(loop, 20, 8, ServingStatus())[-1]
    status = follow(loop, 20, 64, status)[-1]
    assert (status.tier, status.k, status.acknowledged_pods) == (Tier.LIVE, "1", 1)
    assert status.policy_generation == loop.steps[-1].generation
    assert status.table[0].from_requests == 1
    assert status.load_requests == 64
    assert status.ratio_to_k0_permille is not None
    assert status.ratio_to_k0_permille > 1500
    assert [bucket.from_requests for bucket in status.buckets] == [8, 64]
    assert all(bucket.observed for bucket in status.buckets)
    row = status.buckets[1].candidates[0]
    assert row.low_milli_tokens_per_second < row.goodput_milli_tokens_per_second < row.high_milli_tokens_per_second
    assert (status.decisions[0].reason, status.decisions[0].from_k, status.decisions[0].to_k) == ("Load", 5, 1)
    assert [(pod.name, pod.tier, pod.generation) for pod in status.pods] == [
        ("pod-0", Tier.LIVE, status.policy_generation)
    ]


def test_nothing_changes_with_time_alone() -> None:
    """Each push of other bursts is told twice, with its generation and when it is acknowledged: some a ten minutes, and
    fewer once all ks are known."""
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    told, status = follow(loop, 60, 16, ServingStatus())[-1:], ServingStatus()
    for most in (12, 8):
        status = told[-1]
        told = follow(loop, 60, 16, status)
        written = sum(a != b for a, b in pairwise([status, *told]))
        assert written <= most, "ten minutes of steady load"
    idle = follow(loop, 30, 0, told[-1])
    assert sum(a != b for a, b in pairwise(idle)) <= 1
    assert idle[-1].load_requests is None
    assert idle[-1].k == status.k
    assert idle[-1].buckets == told[-1].buckets


def test_measured_numbers_change_at_most_once_a_minute_without_a_decision() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.3)
    status = follow(loop, 6, 16, ServingStatus())[-1]
    told = [status, *follow(loop, 60, 16, status)]
    changed = [number for number, (a, b) in enumerate(pairwise(told)) if a.buckets != b.buckets]
    decided = [number for number, (a, b) in enumerate(pairwise(told)) if a.decisions != b.decisions]
    quiet = [number for number in changed if number not in decided]
    assert changed
    assert all(b - a >= 6 for a, b in pairwise(quiet))


def test_holding_keeps_what_was_measured() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    before = follow(loop, 20, 64, ServingStatus())[-1]
    loop.now += 600
    step = loop.take([Engine("pod-0", failure=Reason.POD_NOT_ANSWERING, failure_message="down")])
    held = tell(step, before)
    assert held.buckets == before.buckets
    assert held.table == before.table
    assert held.policy_generation == before.policy_generation
    assert held.decisions == before.decisions
    assert (held.tier, held.acknowledged_pods) == (Tier.UNKNOWN, 0)
    verdicts = {
        verdict[0]: verdict[1:] for verdict in status_fields(step, before, "2026-01-01T00:00:00Z")["conditions"]
    }
    assert verdicts[ConditionType.METRICS_AVAILABLE][:2] == (False, Reason.POD_NOT_ANSWERING)
    assert verdicts[ConditionType.TUNED][:2] == (None, Reason.HOLDING)


def test_a_new_operator_without_an_answer_keeps_status() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    before = follow(loop, 20, 64, ServingStatus())[-1]
    fresh = Loop.of(DENSE, workload("gsm8k"))
    step = fresh.take([Engine("pod-0", failure=Reason.ENGINE_WARMING_UP, failure_message="boots")])
    after = tell(step, before)
    assert (after.buckets, after.k, after.table) == (before.buckets, before.k, before.table)


def test_decisions_are_newest_first_and_bounded() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    status = ServingStatus()
    for _ in range(14):
        status = follow(loop, 8, 4, status)[-1]
        status = follow(loop, 8, 128, status)[-1]
    assert len(status.decisions) == 20
    assert (status.decisions[0].from_k, status.decisions[0].to_k) == (5, 1)
    assert (status.decisions[1].from_k, status.decisions[1].to_k) == (1, 5)


def test_k_is_a_range_while_a_pod_lags() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02, count=2)
    status = follow(loop, 30, 256, ServingStatus())[-1]
    assert status.k == "1"
    loop.engines["pod-1"].policy = None
    lagging = tell(loop.run(1), status)
    assert lagging.k == "0-1"


def test_an_engine_that_has_not_decoded_yet() -> None:
    step = Loop.of(DENSE, fixed(GOOD)).run(1, 0)
    assert step.reason is Reason.OBSERVING
    assert step.recommended_table is None
    status = tell(step, ServingStatus())
    assert (status.k, status.buckets, status.load_requests) == ("", [], None)


def test_survival_adds_up_to_the_length() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    loop.engines["pod-0"].fires = 0.5
    found = loop.run(20, 16).buckets[0].candidates[0]
    assert len(found.survival) == found.k == 5
    assert 1 + sum(found.survival) == pytest.approx(found.acceptance_length.value, rel=0.03)
    assert found.firing_rate == pytest.approx(0.5, abs=0.05)
