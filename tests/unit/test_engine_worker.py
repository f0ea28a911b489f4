"""The workers' half: what is asked for is what is verified, what was booted comes back bit for bit, nothing raises."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import Verification, VerificationPolicy
from paceline_engine.worker import Findings, Report, inspect, report, verify
from tests.unit.engine_workers import DRAFT_TABLE, LIMIT, REQUESTS, VERIFY_TABLE, Manager, asked, step, worker

ALL, ADAPTIVE, CAPPED = Verification.ALL, Verification.ADAPTIVE, Verification.CAPPED
ONES = st.sampled_from([None, asked(ALL), asked(ADAPTIVE), asked(ADAPTIVE, cheap=True), asked(ALL, cheap=True)])
POLICIES = ONES | st.builds(lambda cap, cheap: asked(CAPPED, cap, cheap), st.integers(0, 60), st.booleans())


def as_booted(one: Any) -> bool:
    manager = one.model_runner.adaptive_verification
    draft, verified = manager.cost_tables
    return draft is DRAFT_TABLE and verified is VERIFY_TABLE and manager._max_total_logits == LIMIT


def test_the_manager_chooses_until_something_is_asked() -> None:
    one, untouched = worker(Manager()), worker(Manager())
    assert inspect(one, (), 8).adaptive
    assert [step(one, n, 5) for n in range(1, 7)] == [step(untouched, n, 5) for n in range(1, 7)]
    assert 0 < step(untouched, 6, 5) < 30
    assert as_booted(one)


@pytest.mark.parametrize("survival", [0.9, 0.5, 1e-6, 0.0])
def test_all_is_every_draft_whatever_its_chance(survival: float) -> None:
    one = worker(Manager(survival))
    assert verify(one, asked(ALL)).mode is ALL
    assert [step(one, n, 5) for n in range(1, 7)] == [5 * n for n in range(1, 7)]


def test_all_is_no_more_than_the_sampler_can_hold() -> None:
    one = worker(Manager())
    verify(one, asked(ALL))
    assert step(one, 8, 7) == LIMIT - 8


@pytest.mark.parametrize("cap", [0, 1, 7, 30, 1000])
def test_a_cap_bounds_drafts_over_all_requests(cap: int) -> None:
    one = worker(Manager(0.99))
    free = [step(one, n, 5) for n in range(1, 7)]
    assert verify(one, asked(CAPPED, cap)).mode is CAPPED
    assert [step(one, n, 5) for n in range(1, 7)] == [min(cap, most) for most in free]


def test_new_costs_change_the_choice() -> None:
    one = worker(Manager())
    before = step(one, 6, 5)
    verify(one, asked(ADAPTIVE, cheap=True))
    assert before < step(one, 6, 5) == 30
    verify(one, None)
    assert step(one, 6, 5) == before


def test_counts_are_of_what_was_drafted_and_verified() -> None:
    one = worker(Manager())
    assert report(one) == Report(ADAPTIVE)
    verified = sum(step(one, n, 5) for n in range(1, 7))
    step(one, 3, 0)
    assert report(one) == Report(ADAPTIVE, drafted=5 * 21, verified=verified)
    verify(one, asked(ALL))
    step(one, 2, 5)
    assert report(one) == Report(ALL, drafted=5 * 21 + 10, verified=verified + 10)


@given(st.lists(st.tuples(POLICIES, st.integers(1, REQUESTS), st.integers(1, 7)), max_size=30))
def test_ranks_that_are_told_the_same_do_the_same_and_go_back_to_the_boot(changes: list[Any]) -> None:
    ranks = [worker(Manager(0.7)), worker(Manager(0.7))]
    for policy, requests, drafts in changes:
        assert len({verify(one, policy) for one in ranks}) == 1
        budgets = {step(one, requests, drafts) for one in ranks}
        assert len(budgets) == 1
        budget = budgets.pop()
        assert 0 <= budget <= min(requests * drafts, LIMIT - requests)
        if policy is not None and policy.cap is not None:
            assert budget <= policy.cap
        if policy is not None and policy.mode is ALL:
            assert budget == min(requests * drafts, LIMIT - requests)
        for one in ranks:
            assert one.model_runner.adaptive_verification._max_total_logits <= LIMIT
    assert len({report(one) for one in ranks}) == 1
    for one in ranks:
        verify(one, None)
        assert as_booted(one)


def test_the_same_again_is_not_broadcast_again() -> None:
    one = worker(Manager())
    for _ in range(3):
        verify(one, asked(ADAPTIVE, cheap=True))
    assert one.model_runner.adaptive_verification.broadcasts == 1


def test_a_change_that_fails_changes_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker(Manager())
    verify(one, asked(CAPPED, 3))
    before = step(one, 6, 5)
    monkeypatch.setattr(Manager, "set_cost_curves", lambda *_: 1 / 0)
    told = verify(one, asked(ALL, cheap=True))
    assert (told.mode, told.error) == (CAPPED, "ZeroDivisionError: division by zero")
    assert step(one, 6, 5) == before <= 3


@pytest.mark.parametrize("name", ["set_cost_curves", "num_bonus_tokens"])
def test_a_manager_of_another_shape_is_named_with_what_it_lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Manager, name)
    one = worker(Manager())
    found = inspect(one, (), 8)
    assert (found.adaptive, found.absent) == (True, f"AttributeError: Manager has no {name}")
    assert "has no" in verify(one, asked(ALL)).error
    assert as_booted(one)


def test_a_manager_without_costs_or_none_at_all() -> None:
    unprofiled = Manager()
    unprofiled.cost_tables = None
    assert "has not measured" in inspect(worker(unprofiled), (), 8).absent
    assert inspect(worker(), (), 8) == Findings()
    assert inspect(SimpleNamespace(), (), 8).absent.startswith("AttributeError")
    for told in (verify(worker(), None), report(SimpleNamespace())):
        assert told.error


def test_findings_and_changes_travel_between_processes() -> None:
    for sent in (Findings("FLASH_ATTN", {5: 2}), Report(ALL, 1, 2, "x"), asked(CAPPED, 4, cheap=True), verify):
        assert pickle.loads(pickle.dumps(sent)) == sent


def mode(name: str) -> Any:
    return SimpleNamespace(cg_mode=SimpleNamespace(name=name))


def test_graphs_and_backends_are_what_the_runner_says() -> None:
    def v2(requests: int, tokens: int, uniform: int, loras: int, *, max_query_len: int) -> Any:
        assert (tokens, max_query_len, loras) == (requests * uniform, uniform, 0)
        return mode("FULL" if uniform in {1, 6} and tokens <= 24 else "PIECEWISE")

    def v1(tokens: int, *, uniform_decode: bool) -> Any:
        return SimpleNamespace(name="FULL" if uniform_decode and tokens <= 30 else "NONE"), None

    group = SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"))
    other = SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "TRITON_ATTN"))
    new = worker(cudagraph_manager=SimpleNamespace(dispatch=v2), attn_groups=[[group, other], [group]])
    old = worker(cudagraph_dispatcher=SimpleNamespace(dispatch=v1, uniform_decode_query_len=6))
    assert inspect(new, (5, 3, 0), 16) == Findings("FLASH_ATTN, TRITON_ATTN", {5: 4, 0: 16})
    assert inspect(old, (5, 3, 0), 16) == Findings("", {5: 5})
    assert inspect(worker(cudagraph_manager=None), (5,), 16) == Findings()


def test_the_tables_that_are_put_in_are_of_the_sizes_that_were_there() -> None:
    one = worker(Manager())
    verify(one, asked(ALL))
    draft, falling = one.model_runner.adaptive_verification.cost_tables
    assert draft is DRAFT_TABLE
    assert falling.shape == VERIFY_TABLE.shape
    assert np.all(falling > 0)
    assert np.all(np.diff(falling) < 0)


def test_a_policy_is_told_from_one_that_only_looks_alike() -> None:
    assert VerificationPolicy(mode=ALL) == asked(ALL) != asked(ALL, cheap=True)
