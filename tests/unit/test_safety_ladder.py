"""The remedy ladder: one change at a time, in order, each as long as it must be watched; never called a fix."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.status_safety import Phase
from paceline_operator.safety.ladder import (
    STABLE_AT_LEAST,
    Climb,
    Rung,
    begin,
    failed,
    rungs,
    stable_after,
    supported_k,
    watched,
    words,
)
from paceline_operator.safety.signatures import UNKNOWN_REMEDIES, Death, Named, Remedy, name

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACCEPTANCE = (0.437, 0.220, 0.119, 0.068, 0.043, 0.027, 0.016)
FAULT = name(Death("CUDA error: an illegal memory access was encountered", adaptive_verification=True))


def spec(**changes: Any) -> dict[str, Any]:
    speculation = {"method": "eagle3", "maxTokens": 7, "adaptiveVerification": "Enabled"}
    engine = {"device": "GPU", "cudagraphMode": "FULL_AND_PIECEWISE"}
    return {"speculation": {**speculation, **changes}, "engine": engine}


def overlaid(rung: Rung) -> dict[str, Any]:
    """What an engine boots with under a rung."""
    booted = {"av": True, "k": 7, "graphs": "FULL_AND_PIECEWISE", "speculates": True}
    for path, value in rung.changes.items():
        if path == "speculation.adaptiveVerification":
            booted["av"] = False
        elif path == "speculation.maxTokens":
            booted["k"] = value
        elif path == "engine.cudagraphMode":
            booted["graphs"] = value
    if rung.remedy is Remedy.WITHOUT_SPECULATION:
        booted |= {"speculates": False, "av": False}
    return booted


def climb(stable_under: Any, minutes_to_failure: float = 1.0) -> list[Climb]:
    """A scripted engine: it dies after `minutes_to_failure` unless `stable_under` says that it stays up."""
    choices = rungs(spec(), ACCEPTANCE, FAULT)
    history = [begin(spec(), ACCEPTANCE, FAULT, "0.32.0")]
    now = NOW
    for _ in range(500):
        last = history[-1]
        if last.phase is not Phase.TRIAL:
            return history
        rung = next(rung for rung in choices if rung.remedy is last.rung)
        now += timedelta(minutes=1)
        dies = (
            not stable_under(overlaid(rung))
            and last.since
            and now - last.since >= timedelta(minutes=minutes_to_failure)
        )
        after = failed(last, choices) if dies else watched(last, True, now, [60 * minutes_to_failure])
        if after != last:
            history.append(after)
    raise AssertionError("it never ended")


def rungs_of(history: list[Climb]) -> list[Remedy]:
    return list(dict.fromkeys(one.rung for one in history))


def test_the_published_grid_ends_on_the_rung_without_adaptive_verification() -> None:
    """vllm#59970: with adaptive verification and full mixed graphs it dies within a minute; without either not."""
    history = climb(lambda booted: not booted["av"] or booted["graphs"] == "FULL_DECODE_ONLY")
    assert rungs_of(history) == [Remedy.WITHOUT_ADAPTIVE_VERIFICATION]
    last = history[-1]
    assert last.phase is Phase.STABLE
    said = words(last, rungs(spec(), ACCEPTANCE, FAULT))
    assert said.startswith("stable under this change: adaptive verification absent")
    assert "not proven" in said
    assert "fixed" not in said


@pytest.mark.parametrize(
    ("stable_under", "order"),
    [
        (lambda b: b["k"] <= 3, [Remedy.WITHOUT_ADAPTIVE_VERIFICATION, Remedy.FEWER_TOKENS]),
        (
            lambda b: b["graphs"] == "FULL_DECODE_ONLY" and b["av"],
            [Remedy.WITHOUT_ADAPTIVE_VERIFICATION, Remedy.FEWER_TOKENS, Remedy.DECODE_ONLY_GRAPHS],
        ),
        (lambda b: not b["speculates"], list(UNKNOWN_REMEDIES)),
    ],
)
def test_each_rung_is_tried_in_its_order(stable_under: Any, order: list[Remedy]) -> None:
    history = climb(stable_under)
    assert rungs_of(history) == order
    assert history[-1].phase is Phase.STABLE
    assert list(history[-1].tried) == order[:-1]


def test_where_nothing_helps_it_ends_spent() -> None:
    last = climb(lambda _: False)[-1]
    assert (last.phase, last.tried) == (Phase.SPENT, UNKNOWN_REMEDIES)
    assert "explicit retry or a new engine version" in words(last, [])


def test_rung_three_starts_from_what_was_and_keeps_adaptive_verification() -> None:
    by_remedy = {rung.remedy: rung.changes for rung in rungs(spec(), ACCEPTANCE, FAULT)}
    assert by_remedy[Remedy.DECODE_ONLY_GRAPHS] == {"engine.cudagraphMode": "FULL_DECODE_ONLY"}
    assert by_remedy[Remedy.FEWER_TOKENS]["speculation.adaptiveVerification"] == "Disabled"
    assert by_remedy[Remedy.WITHOUT_ADAPTIVE_VERIFICATION] == {"speculation.adaptiveVerification": "Disabled"}


def test_rungs_that_change_nothing_are_left_out() -> None:
    plain = {"speculation": {"method": "ngram", "maxTokens": 1}, "engine": {"device": "CPU"}}
    assert [rung.remedy for rung in rungs(plain, (), FAULT)] == [Remedy.WITHOUT_SPECULATION]
    hopeless = Named("x", "x", "x", "", "", ())
    assert begin(plain, (), hopeless, "").phase is Phase.SPENT


def test_k_comes_down_to_what_the_acceptance_supports() -> None:
    assert supported_k(ACCEPTANCE, 7) == 1
    assert supported_k((0.9, 0.8, 0.7, 0.6), 7) == 3
    assert supported_k((), 7) == 3
    assert supported_k((), 2) == 2


def test_a_rung_must_outlive_the_usual_time_to_failure_ten_times() -> None:
    assert stable_after([60.0, 50.0]) == STABLE_AT_LEAST
    assert stable_after([600.0]) == timedelta(minutes=100)
    at = begin(spec(), ACCEPTANCE, FAULT, "1")
    at = watched(at, True, NOW, [600.0])
    at = watched(at, True, NOW + timedelta(minutes=99), [600.0])
    assert at.phase is Phase.TRIAL
    assert watched(at, True, NOW + timedelta(minutes=100), [600.0]).phase is Phase.STABLE


def test_the_clock_of_a_rung_runs_only_while_its_engine_is_ready_and_not_backwards() -> None:
    at = watched(begin(spec(), ACCEPTANCE, FAULT, "1"), True, NOW, [])
    assert watched(at, False, NOW + timedelta(hours=1), []).since is None
    back = watched(at, True, NOW - timedelta(hours=1), [])
    assert (back.phase, back.since) == (Phase.TRIAL, NOW - timedelta(hours=1))


@given(st.lists(st.sampled_from(["dies", "ready", "booting"]), max_size=60), st.integers(1, 40))
def test_no_rung_is_tried_twice_and_nothing_is_stable_that_was_not_up_long_enough(
    course: list[str], minutes: int
) -> None:
    choices = rungs(spec(), ACCEPTANCE, FAULT)
    at, now, up = begin(spec(), ACCEPTANCE, FAULT, "1"), NOW, timedelta()
    for what in course:
        now += timedelta(minutes=minutes)
        before = at
        if at.phase in (Phase.TRIAL, Phase.STABLE) and what == "dies":
            at, up = failed(at, choices), timedelta()
        else:
            up = up + timedelta(minutes=minutes) if what == "ready" and before.since else timedelta()
            at = watched(at, what != "booting", now, [])
        assert len(set(at.tried)) == len(at.tried)
        assert at.phase is Phase.SPENT or at.rung not in at.tried
        if at.phase is Phase.STABLE and before.phase is Phase.TRIAL:
            assert up >= STABLE_AT_LEAST
