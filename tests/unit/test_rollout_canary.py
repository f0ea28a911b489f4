"""Judging a canary: what is surely worse is found, what is alike is promoted, and what is not known is not decided."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import CostCell, Samples, State
from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Canary, OutputContract
from paceline_operator.rollout.canary import LEAST_PAIRS, goodput_ratio, judge, wilson
from paceline_operator.rollout.contract import ASKED, Answers, keeps, request
from paceline_operator.rollout.evidence import KEPT_PAIRS, LEAST_STEPS, PATIENCE, SPAN, Pair, Side, Watch, seen
from paceline_operator.rollout.page import Page, between, parse, total
from paceline_operator.tuning.model import Engine
from tests.fakes import FakeEngines

LIMITS = Canary()
BUSY = Side(steps=1000, load_steps=4000)
EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, math.inf)


def pairs(
    ratio: float, count: int = 24, noise: float = 0.02, seed: int = 1, *, order: int = 0, sticky: float = 0.0
) -> list[Pair]:
    """Of a canary with `ratio` times the goodput; `sticky`: how alike the noise of neighbours is."""
    source, found, last = random.Random(seed), [], 0.0
    for _ in range(count):
        last = sticky * last + math.sqrt(1 - sticky**2) * source.gauss(0, noise)
        found.append(Pair(math.log(ratio) + last, 100, order))
    return found


def times(each: float, requests: int) -> dict[float, float]:
    return {edge: float(requests if each <= edge else 0) for edge in EDGES}


def page(first: float = 0.015, token: float = 0.015, requests: int = 200, failed: int = 0) -> Page:
    return Page(times(first, requests), times(token, requests), float(requests), float(failed))


def busy(found: Page | None = None) -> Side:
    return replace(BUSY, requests=page() if found is None else found)


def test_a_canary_with_less_goodput_at_the_same_load_is_bad_with_its_numbers() -> None:
    found = judge(LIMITS, BUSY, BUSY, pairs(0.8))
    assert (found.good, found.reason) == (False, Reason.GOODPUT_LOST)
    assert "at the same loads and times is 0.8" in found.message


@pytest.mark.parametrize("ratio", [0.99, 1.0, 1.3])
def test_a_canary_that_is_alike_or_better_is_good(ratio: float) -> None:
    found = judge(LIMITS, Side(100, 400, page()), Side(100, 400, page()), pairs(ratio))
    assert (found.good, found.reason) == (True, Reason.CANARY_GOOD)


def test_a_loss_about_the_limit_is_not_sure_either_way() -> None:
    found = judge(LIMITS, BUSY, BUSY, pairs(0.95, noise=0.2))
    assert (found.good, found.reason) == (None, Reason.CANARY_UNJUDGED)


def test_too_few_pairs_tell_nothing() -> None:
    assert goodput_ratio(pairs(0.1, LEAST_PAIRS - 1)) is None
    assert judge(LIMITS, BUSY, BUSY, pairs(0.1, LEAST_PAIRS - 1)).good is None


def test_where_loads_differ_a_canary_is_judged_by_what_it_is_at_most_or_at_least() -> None:
    slow = judge(LIMITS, BUSY, BUSY, pairs(0.6, order=-1))
    assert (slow.good, slow.reason) == (False, Reason.GOODPUT_LOST)
    assert "is at most 0.6" in slow.message
    fast = judge(LIMITS, BUSY, BUSY, pairs(1.1, order=1))
    assert (fast.good, "is at least 1.1" in fast.message) == (True, True)
    assert judge(LIMITS, BUSY, BUSY, pairs(1.1, order=-1)).good is None, "at most 1.1 may be bad"
    assert judge(LIMITS, BUSY, BUSY, pairs(0.6, order=1)).good is None, "at least 0.6 may be good"
    few = [*pairs(0.6, 4), *pairs(0.6, 4, order=-1)]
    assert judge(LIMITS, BUSY, BUSY, few).good is False, "what is known at the same loads counts with it"
    assert judge(LIMITS, BUSY, BUSY, [*pairs(1.0), *pairs(1.2, order=-1)]).good is True, "and alone"


def test_requests_that_fail_are_bad_unless_they_fail_everywhere() -> None:
    same = pairs(1.0)
    found = judge(LIMITS, busy(), busy(page(failed=30)), same)
    assert (found.good, found.reason) == (False, Reason.REQUESTS_FAILED)
    assert judge(LIMITS, busy(page(failed=30)), busy(page(failed=30)), same).good is True
    assert judge(LIMITS, busy(), busy(page(failed=1)), same).good is True
    nothing_else = judge(LIMITS, busy(Page()), busy(Page(failed=30.0)), same)
    assert nothing_else.reason is Reason.REQUESTS_FAILED, "a canary that answers nothing"


def test_longer_times_are_bad_only_where_they_are_surely_longer() -> None:
    same = pairs(1.0)
    slow = judge(LIMITS, busy(), busy(page(first=0.1)), same)
    assert (slow.good, slow.reason) == (False, Reason.TTFT_INCREASED)
    tokens = judge(LIMITS, busy(), busy(page(token=0.1)), same)
    assert (tokens.good, tokens.reason) == (False, Reason.TPOT_INCREASED)
    assert judge(LIMITS, busy(), busy(page(first=0.1, requests=10)), same).good is True
    busier = Side(1000, 64_000, page(token=0.1))
    assert judge(LIMITS, busy(), busier, same).good is True, "at another load it takes longer, as it should"


def test_without_a_plugin_the_times_of_requests_stand_in() -> None:
    assert judge(LIMITS, Side(0, 0, page()), Side(0, 0, page())).good is True
    assert judge(LIMITS, Side(0, 0, page()), Side(0, 0, page(requests=50))).good is None
    assert judge(LIMITS, Side(0, 0, page()), Side(0, 0, page(token=0.1))).reason is Reason.TPOT_INCREASED
    assert judge(LIMITS, Side(), Side()).good is None


@given(st.integers(0, 2**32), st.floats(0.9, 1.15), st.floats(0.01, 0.1), st.integers(LEAST_PAIRS, 80))
def test_the_interval_holds_the_estimate_and_decides_alone(seed: int, ratio: float, noise: float, count: int) -> None:
    told = pairs(ratio, count, noise, seed)
    found = goodput_ratio(told)
    assert found is not None
    assert 0 < found.low <= found.value <= found.high
    assert judge(LIMITS, BUSY, BUSY, told).good is (True if found.low >= 0.95 else False if found.high < 0.95 else None)


def misses(sticky: float, watches: int = 120, readings: int = 120) -> int:
    """Of so many watches of a canary that is the same, those in which the interval ever misses 1."""
    missed = 0
    for seed in range(watches):
        told = pairs(1.0, readings, 0.1, seed, sticky=sticky)
        looks = (goodput_ratio(told[:count]) for count in range(LEAST_PAIRS, readings + 1))
        missed += any(found is not None and not found.low <= 1 <= found.high for found in looks)
    return missed


def test_two_that_are_the_same_are_rarely_told_apart_however_often_one_looks() -> None:
    assert misses(0.0) <= 12, "the interval holds in 95 of 100 watches"
    assert misses(0.3) <= 24, "noise that lasts is found, though not in the shortest sequences"


def test_noise_that_lasts_widens_the_interval() -> None:
    alternating = [Pair(0.1 * (-1) ** each, 100) for each in range(32)]
    lasting = [Pair(0.1 * (-1) ** (each // 16), 100) for each in range(32)]
    one, other = goodput_ratio(alternating), goodput_ratio(lasting)
    assert one is not None
    assert other is not None
    assert one.value == pytest.approx(other.value)
    assert other.high > one.high


@given(st.integers(0, 500), st.integers(1, 500))
def test_a_share_lies_in_its_interval(hits: int, more: int) -> None:
    found = wilson(hits, hits + more)
    assert 0 <= found.low <= found.value <= found.high <= 1


TEXT = """# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 3
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1"} 2
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 2
# TYPE vllm:request_success counter
vllm:request_success_total{finished_reason="stop"} 5
vllm:request_success_total{finished_reason="error"} 1
"""
ANSWERS = """# TYPE http_requests counter
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 40
http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 2
"""


def test_a_page_is_summed_over_engines_and_answers_count_before_reasons() -> None:
    found = parse(TEXT.splitlines())
    assert found is not None
    assert (dict(found.first_token), found.answered, found.failed) == ({0.1: 5.0, math.inf: 6.0}, 6.0, 1.0)
    both = parse((TEXT + ANSWERS).splitlines())
    assert both is not None
    assert (both.answered, both.failed) == (42.0, 2.0)
    assert parse([]) is None


@given(st.lists(st.sampled_from([*TEXT.splitlines(), *ANSWERS.splitlines(), "x{", "vllm:request_success_total -1"])))
def test_nonsense_on_a_page_is_a_value_error_and_nothing_else(lines: list[str]) -> None:
    try:
        found = parse(lines)
    except ValueError:
        return
    assert found is None or (found.answered >= 0 and found.failed >= 0)


COUNTS = st.builds(
    lambda requests, failed: page(requests=requests, failed=failed), st.integers(0, 99), st.integers(0, 9)
)


@given(COUNTS, COUNTS)
def test_what_comes_between_two_pages_is_what_the_second_has_more(one: Page, more: Page) -> None:
    risen = between(one, total([one, more]))
    assert risen is not None
    assert (risen.answered, risen.failed, risen.first_token) == (more.answered, more.failed, more.first_token)
    if more.answered:
        assert between(total([one, more]), one) is None, "counters that fall are of another process"


def cell(load: int, steps: int, emitted: int, *, probe: bool = False) -> CostCell:
    return CostCell(
        load=load, context=0, k_drafted=1, k_verified=1, probe=probe, steps=steps, request_steps=steps * load,
        emitted=emitted, seconds=steps * 0.01, seconds_squared=0.0, histogram={},
    )  # fmt: skip


async def engine(name: str, *cells: CostCell, boot: str = "boot", reset: bool = False) -> Engine:
    found = await FakeEngines().observe_engine(name, "", "", "", None if reset else "cursor")
    assert isinstance(found.samples, Samples)
    assert isinstance(found.state, State)
    return Engine(
        name,
        state=found.state.model_copy(update={"boot_id": boot}),
        samples=found.samples.model_copy(update={"boot_id": boot, "cells": cells}),
    )


class Reading(NamedTuple):
    stable: Sequence[CostCell]
    canary: Sequence[CostCell]


async def watched(*readings: Reading) -> Watch:
    """What is seen of pod a and of the canary b in one reading after another."""
    watch = seen(Watch(), "new", [await engine("a", reset=True), await engine("b", reset=True)], {}, ["b"], 0.0)
    for each in readings:
        both = [await engine("a", *each.stable), await engine("b", *each.canary)]
        watch = seen(watch, "new", both, {}, ["b"], 0.0)
    return watch


async def test_only_what_both_did_since_they_are_watched_counts() -> None:
    old = [await engine("a", cell(4, 50, 999), reset=True), await engine("b", cell(4, 50, 999), reset=True)]
    watch = seen(Watch(), "new", old, {"a": page(), "b": page()}, ["b"], 0.0)
    assert watch.sides(["b"])[0].steps == 0
    later = [
        await engine("a", cell(4, 10, 40), cell(4, 9, 1, probe=True)),
        await engine("b", cell(4, LEAST_STEPS - 1, 9), cell(64, 20, 100)),
    ]
    pages: Mapping[str, Page] = {"a": page(requests=260, failed=3), "b": page(requests=230)}
    watch = seen(watch, "new", later, pages, ["b"], 0.0)
    stable, canary, found = watch.sides(["b"])
    assert (stable.steps, stable.load_steps, canary.steps) == (10, 40, LEAST_STEPS + 19)
    assert found == ()
    assert (stable.requests.answered, stable.requests.failed, canary.requests.answered) == (60.0, 3.0, 30.0)
    few = [await engine("b", cell(4, 1, 3))]
    (pair,) = seen(watch, "new", few, {}, ["b"], 0.0).pairs
    assert tuple(pair) == pytest.approx((math.log(12 / (0.01 * LEAST_STEPS) / 400), LEAST_STEPS, 0)), (
        "with those of before"
    )
    assert seen(watch, "other", later, pages, ["b"], 0.0).sides(["b"])[1].steps == 0, "another canary"


async def test_steps_of_several_loads_make_one_pair_of_a_reading() -> None:
    watch = await watched(Reading([cell(4, 10, 40), cell(8, 30, 240)], [cell(4, 30, 60), cell(8, 30, 480)]))
    (pair,) = watch.pairs
    assert tuple(pair) == pytest.approx(((10 * math.log(0.5) + 30 * math.log(2)) / 40, 40, 0))


async def test_steps_of_another_time_are_not_compared() -> None:
    quiet, first, last = Reading([], []), Reading([cell(4, 10, 40)], []), Reading([], [cell(4, 10, 20)])
    assert len((await watched(first, *[quiet] * (SPAN - 2), last)).pairs) == 1
    assert (await watched(first, *[quiet] * SPAN, last)).pairs == ()


async def test_steps_of_the_nearest_other_loads_do_after_a_while() -> None:
    reading = Reading([cell(3, 10, 30), cell(1, 10, 10), cell(12, 10, 120), cell(24, 10, 999)], [cell(6, 10, 30)])
    far = Reading([cell(1, 10, 10), cell(24, 10, 240)], [cell(6, 10, 30)])
    assert (await watched(reading)).pairs == (), "the same load may come"
    watch = await watched(*[reading] * (PATIENCE + 1))
    assert (await watched(*[far] * 9)).pairs == (), "too far away"
    below, above = sorted(watch.pairs, key=lambda pair: pair.order)
    assert tuple(below) == pytest.approx((0.0, 10 * (PATIENCE + 1), -1))
    assert tuple(above) == pytest.approx((math.log(1 / 4), 10 * (PATIENCE + 1), 1))


async def test_a_canary_so_slow_that_it_never_has_the_load_of_the_others_is_taken_back() -> None:
    watch = await watched(*[Reading([cell(32, 20, 640 + each)], [cell(64, 9, 150)]) for each in range(60)])
    found = judge(LIMITS, *watch.sides(["b"]))
    assert (found.good, found.reason) == (False, Reason.GOODPUT_LOST)


async def test_an_engine_that_started_anew_and_a_pod_that_is_gone_are_counted_from_there() -> None:
    watch = seen(Watch(), "new", [await engine("a", reset=True)], {"a": page()}, [], 0.0)
    watch = seen(
        watch, "new", [await engine("a", cell(4, 10, 40), boot="2", reset=True)], {"a": page(requests=3)}, [], 0.0
    )
    assert watch.sides([])[0] == Side()
    watch = await watched(*[Reading([cell(4, 10, 40)], [cell(4, 10, 40)])] * (KEPT_PAIRS + 9))
    assert len(watch.pairs) == KEPT_PAIRS
    assert watch.last == {}


CONTRACT = OutputContract.model_validate({"prompt": "name and age as JSON", "jsonFields": ["name", "age"]})


def answer(text: str, reason: str = "stop") -> bytes:
    return json.dumps({"choices": [{"text": text, "finish_reason": reason}]}).encode()


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (answer('{"name": "a", "age": 1, "more": 2}'), True),
        (answer(' {"name": "a", "age": null} '), True),
        (answer('{"name": "a"}'), False),
        (answer('["name", "age"]'), False),
        (answer('{"name": "a", "age'), False),
        (b"{}", False),
        (b"\xff", False),
    ],
)
def test_an_answer_keeps_the_contract_by_its_form_alone(body: bytes, kept: bool) -> None:
    assert keeps(CONTRACT, body) is kept


def test_an_answer_may_have_to_end_for_a_reason() -> None:
    ends = OutputContract(prompt="x", finish_reason="stop")
    assert keeps(ends, answer("anything"))
    assert not keeps(ends, answer("anything", "length"))
    assert request(ends, "chat") == {"model": "chat", "prompt": "x", "max_tokens": 64, "temperature": 0}


TOOL = CONTRACT.model_copy(update={"tool": "note", "finish_reason": "stop"})


def called(name: str, arguments: object, reason: str = "tool_calls", times: int = 1) -> bytes:
    calls = [{"function": {"name": name, "arguments": arguments}}] * times
    return json.dumps({"choices": [{"message": {"tool_calls": calls}, "finish_reason": reason}]}).encode()


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (called("note", '{"name": "a", "age": 1}'), True),
        (called("note", '{"name": "a"}'), False),
        (called("note", '{"name": "a", "ag'), False),
        (called("note", {"name": "a", "age": 1}), False),
        (called("other", '{"name": "a", "age": 1}'), False),
        (called("note", '{"name": "a", "age": 1}', times=2), False),
        (called("note", '{"name": "a", "age": 1}', "stop"), False),
        (answer('{"name": "a", "age": 1}'), False),
    ],
)
def test_a_tool_must_be_called_by_its_name_with_its_arguments(body: bytes, kept: bool) -> None:
    assert keeps(TOOL, body) is kept
    asked = request(TOOL, "chat")
    assert asked["messages"] == [{"role": "user", "content": CONTRACT.prompt}]
    assert asked["tools"][0]["function"]["parameters"]["required"] == ["name", "age"]


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: answer(text)))
def test_no_answer_makes_the_judge_stumble(body: bytes) -> None:
    assert keeps(CONTRACT, body) in (True, False)
    assert keeps(TOOL, body) in (True, False)


def test_a_canary_that_breaks_the_contract_where_others_keep_it_is_bad() -> None:
    limits, same = Canary(output_contract=CONTRACT), pairs(1.0)
    whole, broken, few = Answers(ASKED, 0), Answers(ASKED, ASKED), Answers(ASKED - 1, 0)
    found = judge(limits, replace(BUSY, answers=whole), replace(BUSY, answers=broken), same)
    assert (found.good, found.reason) == (False, Reason.OUTPUT_CONTRACT)
    assert judge(limits, replace(BUSY, answers=broken), replace(BUSY, answers=broken), same).good is True, (
        "so do the others"
    )
    assert judge(limits, replace(BUSY, answers=whole), replace(BUSY, answers=whole), same).good is True
    assert judge(limits, replace(BUSY, answers=whole), replace(BUSY, answers=few), same).good is None
    assert judge(LIMITS, BUSY, replace(BUSY, answers=broken), same).good is True, "nobody asked"
