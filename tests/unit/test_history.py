"""Hours of load: from Prometheus' answers, from our own readings, in status."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import Gauges, load_bucket
from paceline_operator.api.conditions import Reason
from paceline_operator.history import Absence, Load, Source, answer, distribution, own, told
from paceline_operator.history.question import POINTS, Question, matchers, question
from tests.servings import serving

NOW = 1_800_000_000.0
ASKED = Question("http://p", "running", "demand", 86_400, 120, 10.0, '{namespace="a"}')
ABSENCES = {Reason.HISTORY_EMPTY, Reason.HISTORY_NAN, Reason.HISTORY_STALE, Reason.HISTORY_ERROR}


def series(*values: str, until: float = NOW) -> dict[str, Any]:
    times = [until - 120 * back for back in range(len(values) - 1, -1, -1)]
    return {"metric": {"pod": "a"}, "values": [[at, value] for at, value in zip(times, values, strict=True)]}


def loaded(*answers: dict[str, Any]) -> Load | Absence:
    return load(list(answers), list(answers))


def load(running: object, demand: object) -> Load | Absence:
    return answer.load(ASKED, answer.seconds(ASKED, running, NOW), answer.seconds(ASKED, demand, NOW))


def test_quantiles_are_weighted_by_time_over_all_pods() -> None:
    found = loaded(series(*["0"] * 40, *["5"] * 40, *["30"] * 18, "100", "100"), series(*["5"] * 100))
    assert isinstance(found, Load)
    running = found.running
    assert (running.p50, running.p90, running.p99, running.largest) == (5, 5, 30, 100)
    assert running.hours == pytest.approx(200 * 120 / 3600)
    assert running.shares == pytest.approx({0: 0.2, 4: 0.7, 24: 0.09, 96: 0.01})
    assert running.busy()[4] == pytest.approx(0.7 / 0.8)
    assert found.source is Source.PROMETHEUS


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([], Reason.HISTORY_EMPTY),
        ([series()], Reason.HISTORY_EMPTY),
        ([series("NaN", "+Inf", "-1")], Reason.HISTORY_NAN),
        ([series("3", until=NOW - 3600)], Reason.HISTORY_STALE),
        ([series("three")], Reason.HISTORY_ERROR),
        ([{"metric": {}}], Reason.HISTORY_ERROR),
    ],
)
def test_reasons_for_none(answers: list[Any], reason: Reason) -> None:
    found = load(answers, [series("1")])
    assert isinstance(found, Absence)
    assert found.reason is reason
    assert load([series("1")], answers) == found


def test_one_pod_that_is_gone_does_not_make_the_others_stale() -> None:
    assert isinstance(loaded(series("1", until=NOW - 7200), series("2")), Load)


def test_what_is_no_number_is_left_out() -> None:
    found = loaded(series("NaN", "4", "4"))
    assert isinstance(found, Load)
    assert found.running.hours == pytest.approx(240 / 3600)


numbers = st.one_of(st.floats(), st.integers(), st.text(max_size=6), st.sampled_from(["NaN", "+Inf", "1e999", "7"]))
anything = st.recursive(
    st.none() | st.booleans() | numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["metric", "values", "x"]), inner),
    max_leaves=20,
)
plausible = st.lists(
    st.fixed_dictionaries({"values": st.lists(st.tuples(st.floats(NOW - 90_000, NOW), numbers), max_size=20)}),
    max_size=4,
)


@given(anything | plausible, anything | plausible)
def test_whatever_a_server_answers(running: object, demand: object) -> None:
    found = load(running, demand)
    if isinstance(found, Absence):
        assert found.reason in ABSENCES
        return
    for one in (found.running, found.demand):
        assert 0 <= one.p50 <= one.p90 <= one.p99 <= one.largest <= answer.MAX_REQUESTS
        assert math.isclose(sum(one.shares.values()), 1.0, rel_tol=1e-9)


@given(st.dictionaries(st.integers(-3, 2000), st.floats(-10, 1e9), max_size=30))
def test_a_distribution_adds_up(seconds: dict[int, float]) -> None:
    found = distribution(seconds)
    held = {requests: weight for requests, weight in seconds.items() if requests >= 0 and weight > 0}
    if not held:
        assert found is None
        return
    assert found is not None
    assert found.largest == max(held)
    assert set(found.shares) == {load_bucket(requests) for requests in held}
    below = sum(weight for requests, weight in held.items() if requests < found.p90)
    assert below <= 0.9 * sum(held.values()) * (1 + 1e-9)


def test_the_question_names_the_serving_and_takes_its_labels() -> None:
    assert question(serving()) is None
    asked = question(serving(metrics={"prometheus": {"url": "http://p", "labels": {"namespace": "", "job": 'a"b\\'}}}))
    assert asked is not None
    assert asked.matchers == '{namespace="",model_name="demo",job="a\\"b\\\\"}'
    assert asked.running == f"sum without (engine, model_name) (vllm:num_requests_running{asked.matchers})"
    longest = question(serving(metrics={"prometheus": {"windowHours": 336}}))
    assert longest is not None
    assert longest.window_seconds / longest.step_seconds <= POINTS
    assert longest.url == ""


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=3))
def test_matchers_keep_values_inside_their_quotes(labels: dict[str, str]) -> None:
    text = matchers(labels)
    assert "\n" not in text
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    assert unescaped.count('"') == 2 * len(labels)


def gauges(running: int, waiting: int = 0) -> Gauges:
    return Gauges(running=running, waiting=waiting, kv_cache_usage=0.0, prompt_tokens=0, generation_tokens=0)


def test_own_readings_stand_for_the_time_since_the_one_before() -> None:
    kept = own.Own()
    for second in range(0, 1300, 5):
        kept = own.observed(kept, [gauges(2), gauges(4, 3)], float(second))
    found = own.load(kept)
    assert isinstance(found, Load)
    assert (found.source, found.running.p50, found.running.p90, found.demand.p50) == (Source.OWN_SAMPLES, 2, 4, 9)
    assert found.running.hours == pytest.approx(2 * found.demand.hours)


def test_at_first_own_readings_tell_nothing() -> None:
    found = own.load(own.observed(own.Own(), [gauges(1)], 0.0))
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_EMPTY


def test_a_gap_is_no_load_and_the_past_fades() -> None:
    kept = own.observed(own.observed(own.Own(), [gauges(8)], 0.0), [gauges(8)], 30.0)
    kept = own.observed(kept, [], 5_000.0)
    kept = own.observed(kept, [gauges(1)], 5_005.0)
    assert kept.running[1] == pytest.approx(5.0)
    later = own.observed(kept, [gauges(1)], 5_005.0 + 24 * 3600)
    assert later.running[8] == pytest.approx(15.0, rel=0.01)
    assert later.running[1] == pytest.approx(own.LONGEST_SECONDS + 2.5, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e6)), max_size=60))
def test_own_readings_are_bounded(readings: list[tuple[int, float]]) -> None:
    kept, now = own.Own(), 0.0
    for running, passed in readings:
        now += passed
        kept = own.observed(kept, [gauges(running)], now)
    assert len(kept.running) <= own.MAX_ENTRIES
    assert max(kept.running, default=0) <= own.MAX_REQUESTS


def test_status_is_rewritten_for_what_matters_alone() -> None:
    def half(p50: float) -> Load | Absence:
        return loaded(series(*["10"] * int(100 * p50), *["40"] * (100 - int(100 * p50))))

    first = told.status(half(0.70), Source.PROMETHEUS, None)
    assert (first.p50_requests, first.p90_requests, first.reason) == (10, 40, "")
    assert told.status(half(0.67), Source.PROMETHEUS, first) is first
    assert told.status(half(0.60), Source.PROMETHEUS, first) != first
    absent = told.status(Absence(Reason.HISTORY_STALE, "old"), Source.PROMETHEUS, first)
    assert (absent.reason, absent.message, absent.p50_requests) == ("HistoryStale", "old", None)
    assert told.status(Absence(Reason.HISTORY_STALE, "old"), Source.PROMETHEUS, absent) == absent
