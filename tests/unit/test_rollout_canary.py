"""Judging a canary: what is surely worse is found, what is alike is promoted, and what is not known is not decided."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import CostCell, Samples, State
from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Canary, OutputContract
from paceline_operator.rollout.canary import LEAST_WINDOWS, goodput_ratio, judge, wilson
from paceline_operator.rollout.contract import ASKED, Answers, keeps, request
from paceline_operator.rollout.evidence import KEPT_WINDOWS, LEAST_STEPS, Kind, Side, Watch, Window, Windows, seen
from paceline_operator.rollout.page import Page, between, parse, total
from paceline_operator.tuning.model import Engine
from tests.fakes import FakeEngines

LIMITS = Canary()
KIND = Kind(4, 0, 0)
EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, math.inf)


def windows(goodput: float, count: int = 12, noise: float = 0.02, seed: int = 1, kind: Kind = KIND) -> Windows:
    source = random.Random(seed)
    return {kind: tuple(Window(goodput * math.exp(source.gauss(0, noise)), 100) for _ in range(count))}


def times(each: float, requests: int) -> dict[float, float]:
    return {edge: float(requests if each <= edge else 0) for edge in EDGES}


def page(first: float = 0.015, token: float = 0.015, requests: int = 200, failed: int = 0) -> Page:
    return Page(times(first, requests), times(token, requests), float(requests), float(failed))


def test_a_canary_with_less_goodput_at_the_same_load_is_bad_with_its_numbers() -> None:
    found = judge(LIMITS, Side(windows(100)), Side(windows(80, seed=2)))
    assert (found.good, found.reason) == (False, Reason.GOODPUT_LOST)
    assert "0.799 (0.785-0.813)" in found.message


@pytest.mark.parametrize("goodput", [99.0, 100.0, 130.0])
def test_a_canary_that_is_alike_or_better_is_good(goodput: float) -> None:
    found = judge(LIMITS, Side(windows(100), page()), Side(windows(goodput, seed=2), page()))
    assert (found.good, found.reason) == (True, Reason.CANARY_GOOD)


def test_a_loss_about_the_limit_is_not_sure_either_way() -> None:
    found = judge(LIMITS, Side(windows(100, noise=0.2)), Side(windows(95, noise=0.2, seed=2)))
    assert (found.good, found.reason) == (None, Reason.CANARY_UNJUDGED)


def test_other_loads_are_not_compared() -> None:
    other = windows(10, kind=Kind(64, 0, 0))
    assert goodput_ratio(windows(100), other) is None
    assert judge(LIMITS, Side(windows(100)), Side(other)).good is None
    few = {KIND: windows(10)[KIND][: LEAST_WINDOWS - 1]}
    assert goodput_ratio(windows(100), few) is None


def test_requests_that_fail_are_bad_unless_they_fail_everywhere() -> None:
    same = windows(100)
    found = judge(LIMITS, Side(same, page()), Side(same, page(failed=20)))
    assert (found.good, found.reason) == (False, Reason.REQUESTS_FAILED)
    assert judge(LIMITS, Side(same, page(failed=20)), Side(same, page(failed=20))).good is True
    assert judge(LIMITS, Side(same, page()), Side(same, page(failed=1))).good is True
    nothing_else = judge(LIMITS, Side(same), Side(same, Page(failed=30.0)))
    assert nothing_else.reason is Reason.REQUESTS_FAILED, "a canary that answers nothing"


def test_longer_times_are_bad_only_where_they_are_surely_longer() -> None:
    same = windows(100)
    slow = judge(LIMITS, Side(same, page()), Side(same, page(first=0.1)))
    assert (slow.good, slow.reason) == (False, Reason.TTFT_INCREASED)
    tokens = judge(LIMITS, Side(same, page()), Side(same, page(token=0.1)))
    assert (tokens.good, tokens.reason) == (False, Reason.TPOT_INCREASED)
    assert judge(LIMITS, Side(same, page()), Side(same, page(first=0.1, requests=10))).good is True
    busier = Side({KIND: windows(100)[KIND], Kind(64, 0, 0): windows(900, 40)[KIND]}, page(token=0.1))
    assert judge(LIMITS, Side(same, page()), busier).good is True, "at another load it takes longer, as it should"


def test_without_a_plugin_the_times_of_requests_stand_in() -> None:
    assert judge(LIMITS, Side({}, page()), Side({}, page())).good is True
    assert judge(LIMITS, Side({}, page()), Side({}, page(requests=50))).good is None
    assert judge(LIMITS, Side({}, page()), Side({}, page(token=0.1))).reason is Reason.TPOT_INCREASED
    assert judge(LIMITS, Side(), Side()).good is None


@given(st.integers(0, 2**32), st.floats(0.9, 1.15), st.floats(0.01, 0.1), st.integers(LEAST_WINDOWS, 40))
def test_the_interval_holds_the_estimate_and_shrinks_with_nothing_but_evidence(
    seed: int, ratio: float, noise: float, count: int
) -> None:
    found = goodput_ratio(windows(100, count, noise, seed), windows(100 * ratio, count, noise, seed + 1))
    assert found is not None
    assert 0 < found.low <= found.value <= found.high
    verdict = judge(LIMITS, Side(windows(100, count, noise, seed)), Side(windows(100 * ratio, count, noise, seed + 1)))
    assert verdict.good is (True if found.low >= 0.95 else False if found.high < 0.95 else None)


def test_two_that_are_the_same_are_rarely_told_apart() -> None:
    """The 95 % interval, tried: of 400 pairs with the same true goodput, those whose interval misses 1."""
    missed = 0
    for seed in range(400):
        found = goodput_ratio(windows(100, 6, 0.05, 2 * seed), windows(100, 6, 0.05, 2 * seed + 1))
        assert found is not None
        missed += not found.low <= 1 <= found.high
    assert missed <= 36, missed


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


async def test_only_what_both_did_since_they_are_watched_counts() -> None:
    old = [await engine("a", cell(4, 50, 999), reset=True), await engine("b", cell(4, 50, 999), reset=True)]
    watch = seen(Watch(), "new", old, {"a": page(), "b": page()}, ["b"], 0.0)
    assert watch.sides(["b"])[0].windows == {}
    later = [
        await engine("a", cell(4, 10, 40), cell(4, 9, 1, probe=True)),
        await engine("b", cell(4, LEAST_STEPS - 1, 9), cell(8, 20, 100)),
    ]
    pages: Mapping[str, Page] = {"a": page(requests=260, failed=3), "b": page(requests=230)}
    watch = seen(watch, "new", later, pages, ["b"], 0.0)
    stable, canary = watch.sides(["b"])
    assert stable.windows == {KIND: (Window(400.0, 10),)}
    assert canary.windows == {Kind(8, 0, 0): (Window(500.0, 20),)}
    assert (stable.requests.answered, stable.requests.failed, canary.requests.answered) == (60.0, 3.0, 30.0)
    few = [await engine("b", cell(4, 1, 3))]
    assert seen(watch, "new", few, {}, ["b"], 0.0).canary[KIND] == (Window(150.0, LEAST_STEPS),), "with those of before"
    assert seen(watch, "other", later, pages, ["b"], 0.0).sides(["b"])[1].windows == {}, "another canary"


async def test_an_engine_that_started_anew_and_a_pod_that_is_gone_are_counted_from_there() -> None:
    watch = seen(Watch(), "new", [await engine("a", reset=True)], {"a": page()}, [], 0.0)
    watch = seen(
        watch, "new", [await engine("a", cell(4, 10, 40), boot="2", reset=True)], {"a": page(requests=3)}, [], 0.0
    )
    assert watch.sides([])[0] == Side({}, Page())
    for _ in range(KEPT_WINDOWS + 9):
        watch = seen(watch, "new", [await engine("a", cell(4, 10, 40), boot="2")], {}, [], 0.0)
    assert len(watch.sides([])[0].windows[KIND]) == KEPT_WINDOWS
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


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: answer(text)))
def test_no_answer_makes_the_judge_stumble(body: bytes) -> None:
    assert keeps(CONTRACT, body) in (True, False)


def test_a_canary_that_breaks_the_contract_where_others_keep_it_is_bad() -> None:
    limits, same = Canary(output_contract=CONTRACT), windows(100)
    whole, broken, few = Answers(ASKED, 0), Answers(ASKED, ASKED), Answers(ASKED - 1, 0)
    found = judge(limits, Side(same, answers=whole), Side(same, answers=broken))
    assert (found.good, found.reason) == (False, Reason.OUTPUT_CONTRACT)
    assert judge(limits, Side(same, answers=broken), Side(same, answers=broken)).good is True, "so do the others"
    assert judge(limits, Side(same, answers=whole), Side(same, answers=whole)).good is True
    assert judge(limits, Side(same, answers=whole), Side(same, answers=few)).good is None
    assert judge(LIMITS, Side(same), Side(same, answers=broken)).good is True, "nobody asked"
