"""What a restart would bring: each proposal from numbers that ask for it, none from numbers that do not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import BucketStatus, GoodputRow, VerificationMode, VerificationRow
from paceline_operator.api.status_boots import BootLoad, BootRecord
from paceline_operator.clock import rfc3339
from paceline_operator.history.load import Distribution, Load, Source
from paceline_operator.preflight.legality import check
from paceline_operator.rollout import boots, tier
from paceline_operator.rollout.known import Gain, Known
from paceline_operator.rollout.proposal import Proposal, overlay
from paceline_operator.rollout.propose import LEAST_GAIN, propose
from tests.servings import serving

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def spec(**sections: Any) -> ServingSpec:
    return serving(**sections).spec


def row(
    k: int, goodput: float, *, step: int = 20_000, survival: tuple[int, ...] = (), spread: float = 0.01
) -> GoodputRow:
    """Tokens a second, one percent to both sides."""
    return GoodputRow(
        k=k,
        goodput_milli_tokens_per_second=round(1000 * goodput),
        low_milli_tokens_per_second=round(1000 * goodput * 0.99),
        high_milli_tokens_per_second=round(1000 * goodput * 1.01),
        step_microseconds=step,
        acceptance_length_milli=1000 + sum(survival),
        steps=1000,
        survival_permille=list(survival),
    )


def bucket(load: int, *rows: GoodputRow, k: int | None = None) -> BucketStatus:
    best = max(rows, key=lambda one: one.goodput_milli_tokens_per_second)
    return BucketStatus(from_requests=load, k=best.k if k is None else k, observed=True, candidates=list(rows))


def history(shares: dict[int, float], hours: float = 24.0) -> Load:
    held = Distribution(hours=hours, p50=8, p90=16, p99=32, largest=64, shares=shares)
    return Load(source=Source.PROMETHEUS, running=held, demand=held)


def known(**changes: Any) -> Known:
    """Nothing asks for a restart."""
    given = spec(tuning={"ladder": [5, 3, 1, 0]})
    base = Known(spec=given, live=True, load=history({8: 1.0}), restart_seconds=120.0, pods=2, tokens_per_second=500.0)
    return replace(base, **changes)


def reasons(found: tuple[Proposal, ...]) -> list[tuple[Reason, dict[str, Any]]]:
    return [(one.reason, dict(one.changes)) for one in found]


def test_nothing_is_proposed_without_a_cause_or_without_a_price() -> None:
    assert propose(known()) == ()
    without = Gain(0.1, 0.05, 0.15)
    assert propose(known(without_drafter=without, restart_seconds=None)) == ()


def test_an_engine_without_a_drafter_that_gives_more() -> None:
    (found,) = propose(known(without_drafter=Gain(0.1, 0.05, 0.15)))
    assert (found.reason, found.changes) == (Reason.NO_DRAFTER, {"speculation.enabled": False})
    assert (found.gain, found.gain_low, found.gain_high) == (0.1, 0.05, 0.15)
    assert (found.restart_seconds, found.tokens_at_risk) == (120.0, 60_000.0)
    assert "+10.0 % goodput (+5.0 to +15.0)" in found.evidence
    assert propose(known(without_drafter=Gain(0.05, 0.009, 0.1))) == (), "not above 1 % for sure"
    off = spec(speculation={"enabled": False})
    assert propose(known(spec=off, without_drafter=Gain(0.1, 0.05, 0.15), off_for_long=True)) == ()


def test_what_is_not_measured_is_told_last_and_has_no_gain() -> None:
    found = propose(known(off_for_long=True, ttft_lowered=2))
    assert reasons(found) == [
        (Reason.NO_DRAFTER, {"speculation.enabled": False}),
        (Reason.TTFT_LIMIT, {"replicas": 3}),
    ]
    assert [(one.gain, one.gain_low) for one in found] == [(None, 0.0)] * 2
    assert "not measured" in found[0].evidence


STEEP = (950, 900, 850, 800, 760)
"""Nearly every position is accepted, and each costs little."""


def test_a_larger_k_where_the_largest_is_the_best_and_its_last_position_still_pays() -> None:
    rows = row(3, 600, step=19_000, survival=STEEP[:3]), row(5, 900, step=20_000, survival=STEEP)
    (found,) = propose(known(buckets=[bucket(8, *rows)]))
    assert found.reason is Reason.MAX_TOKENS
    assert found.changes == {"speculation.maxTokens": 7, "tuning.ladder": [7, 5, 3, 1, 0]}
    assert found.gain is not None
    assert found.gain_high is not None
    assert LEAST_GAIN < found.gain_low < found.gain < found.gain_high
    rare = history({8: 0.02, 64: 0.98})
    at_64 = bucket(64, row(3, 900, survival=STEEP[:3]), row(5, 800, survival=STEEP))
    assert propose(known(buckets=[bucket(8, *rows), at_64], load=rare)) == (), "hardly ever at that load"
    weak = row(3, 600, step=15_000, survival=(500, 200, 80)), row(5, 610, step=20_000, survival=(500, 200, 80, 30, 10))
    assert propose(known(buckets=[bucket(8, *weak)])) == ()
    block = spec(speculation={"method": "dflash"}, tuning={"ladder": [5, 3, 1, 0]})
    assert propose(known(spec=block, buckets=[bucket(8, *rows)])) == (), "block drafters do not nest"
    assert propose(known(buckets=[bucket(8, *rows)], load=None)) == (), "the distribution of loads is not known"
    assert propose(known(buckets=[bucket(8, *rows)], load=history({8: 1.0}, hours=0.5))) == ()


def test_a_smaller_k_where_the_largest_is_never_the_best() -> None:
    rows = row(5, 500, survival=(500, 250, 100, 40, 20)), row(3, 700, survival=(500, 250, 100))
    free = spec()
    (found,) = propose(known(spec=free, buckets=[bucket(8, *rows)]))
    assert reasons((found,)) == [(Reason.MAX_TOKENS, {"speculation.maxTokens": 3})]
    assert found.gain is None
    somewhere = history({8: 0.9, 1: 0.1})
    assert propose(known(spec=free, buckets=[bucket(8, *rows)], load=somewhere)) == (), "not known at every load"


def left(given: ServingSpec, loads: list[BootLoad], hours: float = 30.0, visits: int = 1) -> BootRecord:
    """A boot that served until some hours ago."""
    at = rfc3339(NOW - timedelta(hours=hours))
    return BootRecord(fields=boots.fields_of(given), since=at, left_at=at, visits=visits, loads=loads)


def load_of(load: int, goodput: float, k: int = 3) -> BootLoad:
    return boots.load_of(load, row(k, goodput))


def boot(given: ServingSpec) -> BootRecord:
    return BootRecord(fields=boots.fields_of(given), since=rfc3339(NOW))


def test_the_way_back_from_no_drafter_when_the_load_is_one_where_drafts_paid() -> None:
    off, on = spec(speculation={"enabled": False}), spec()
    past = [boot(off), left(on, [load_of(8, 900), load_of(256, 2900)])]
    plain = {8: load_of(8, 500, 0), 256: load_of(256, 3000, 0)}
    asked = known(spec=off, live=False, past=past, plain=plain, now=NOW, load=history({0: 0.5, 8: 0.5}))
    (found,) = propose(asked)
    assert (found.reason, found.changes) == (Reason.DRAFTER_PAYS, {"speculation.enabled": True})
    assert found.gain == pytest.approx(0.8)
    assert found.gain_low < 0.8
    assert propose(replace(asked, load=history({256: 1.0}))) == (), "at this load it is no better"
    assert propose(replace(asked, load=history({64: 0.9, 8: 0.1}))) == (), "mostly at a load nobody knows"
    assert propose(replace(asked, held=True)) == (), "taken away for safety"
    assert propose(replace(asked, past=[past[0], left(on, past[1].loads, hours=0.5)])) == (), "just left"
    assert propose(replace(asked, past=[past[0], left(on, past[1].loads, hours=3, visits=3)])) == (), "left three times"
    assert propose(replace(asked, past=[past[0], left(on, past[1].loads, hours=25, visits=99)])) != ()


@pytest.mark.parametrize(
    ("before", "reason", "changes"),
    [
        ({"adaptiveVerification": "Disabled"}, Reason.VERIFICATION_AT_BOOT, {"adaptiveVerification": "Disabled"}),
        ({"maxTokens": 7}, Reason.MAX_TOKENS, {"maxTokens": 7}),
        ({"method": "eagle"}, Reason.METHOD_PAYS, {"method": "eagle"}),
    ],
)
def test_an_earlier_boot_that_gave_more_by_more_than_a_percent(
    before: dict[str, Any], reason: Reason, changes: dict[str, Any]
) -> None:
    """Its price for being tunable, or for adaptive verification booted, was more than it brought."""
    present = spec(speculation={"adaptiveVerification": "Enabled"} if reason is Reason.VERIFICATION_AT_BOOT else {})
    past = [boot(present), left(spec(speculation=before), [load_of(8, 1040)])]
    buckets = [bucket(8, row(5, 1000))]
    (found,) = propose(known(spec=present, past=past, now=NOW, buckets=buckets))
    assert (found.reason, found.changes) == (reason, {f"speculation.{name}": value for name, value in changes.items()})
    assert found.gain == pytest.approx(0.04)
    same = [past[0], past[1].model_copy(update={"loads": [load_of(8, 1005)]})]
    assert propose(known(spec=present, past=same, now=NOW, buckets=buckets)) == ()


def test_boots_are_remembered_with_what_they_gave() -> None:
    first, second = spec(), spec(speculation={"maxTokens": 7})
    buckets = [bucket(8, row(3, 900), row(5, 800))]
    one = boots.advanced([], first, buckets, {}, "2026-01-01T00:00:00Z")
    assert boots.advanced(one, first, [], {}, "2026-01-01T01:00:00Z") == one, "time alone changes nothing"
    two = boots.advanced(one, second, buckets, {}, "2026-01-01T02:00:00Z")
    assert [record.left_at for record in two] == [None, "2026-01-01T02:00:00Z"]
    assert [(load.from_requests, load.k) for load in two[1].loads] == [(8, 3)]
    back = boots.advanced(two, first, [], {}, "2026-01-01T03:00:00Z")
    assert [record.visits for record in back] == [2, 1]
    off = boots.advanced(back, spec(speculation={"enabled": False}), buckets, {}, "2026-01-01T04:00:00Z")
    assert off[1].loads[0].k == 3
    on = boots.advanced(off, first, [], {8: load_of(8, 500, 0)}, "2026-01-01T05:00:00Z")
    assert [(record.visits, len(record.loads)) for record in on] == [(3, 0), (1, 1), (1, 0)]
    assert on[1].loads[0].k == 0


def test_the_table_of_the_tuner_becomes_the_schedule_of_a_serving_without_the_plugin() -> None:
    bare = spec(engine={"plugin": {"injection": "None"}})
    buckets = [bucket(1, row(5, 300), row(1, 200), k=1), bucket(16, row(5, 900), row(1, 1500), k=5)]
    asked = known(spec=bare, live=False, buckets=buckets, load=history({1: 0.5, 16: 0.5}))
    (found,) = [one for one in propose(asked) if one.reason is Reason.BOOT_TABLE]
    assert found.changes["tuning.mode"] == "Manual"
    assert found.changes["tuning.table"] == [{"fromRequests": 1, "k": 5}, {"fromRequests": 16, "k": 1}]
    assert found.gain == pytest.approx((0.5 + 2 / 3) / 2)
    plugged = replace(asked, spec=spec())
    assert Reason.BOOT_TABLE not in [one.reason for one in propose(plugged)]


def test_one_k_for_all_loads_where_vllm_is_given_no_schedule() -> None:
    v1 = spec(engine={"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]})
    survival = (600, 200, 60, 20, 5)
    loads = {8: 20_000, 16: 38_000, 32: 74_000, 64: 146_000}
    buckets = [
        bucket(load, row(5, load * 1.885 / step * 1e6, step=step, survival=survival)) for load, step in loads.items()
    ]
    asked = known(spec=v1, live=False, buckets=buckets, load=history({32: 0.5, 64: 0.5}))
    (found,) = propose(asked)
    assert found.reason is Reason.MAX_TOKENS
    assert found.changes["speculation.maxTokens"] in (1, 2)
    assert "V1 model runner" in found.evidence
    assert found.gain_low > 0.1


def test_verification_that_never_pays_and_one_that_is_worth_a_try() -> None:
    booted = spec(speculation={"adaptiveVerification": "Enabled"})
    loses = VerificationRow(
        from_requests=8, mode=VerificationMode.ADAPTIVE, k=5, gain_permille=900, low_permille=880, high_permille=920
    )
    (found,) = propose(known(spec=booted, verified=[loses]))
    assert found.changes == {"speculation.adaptiveVerification": "Disabled"}
    wins = loses.model_copy(update={"high_permille": 1100})
    assert propose(known(spec=booted, verified=[wins])) == ()
    trained = spec(speculation={"method": "dspark", "maxTokens": 7})
    (found,) = propose(known(spec=trained, load=history({128: 1.0})))
    assert (found.reason, found.gain) == (Reason.VERIFICATION_AT_BOOT, None)
    assert propose(known(spec=trained, load=history({8: 1.0}))) == ()
    stages = spec(speculation={"method": "dspark", "maxTokens": 7}, engine={"pipelineParallelSize": 2})
    assert propose(known(spec=stages, load=history({128: 1.0}))) == (), "what cannot work is not proposed"


def test_graphs_that_were_given_up() -> None:
    piecewise = spec(engine={"cudagraphMode": "PIECEWISE"})
    (found,) = propose(known(spec=piecewise))
    assert reasons((found,)) == [(Reason.GRAPH_MODE, {"engine.cudagraphMode": None})]


tables = st.lists(st.integers(0, 9), min_size=2, max_size=300)


@given(tables)
def test_a_translated_table_descends_and_has_no_narrow_row(table: list[int]) -> None:
    rows = tier.translated(table)
    starts, ks = [start for start, _ in rows], [k for _, k in rows]
    assert starts[0] == 1
    assert starts == sorted(set(starts))
    assert ks == sorted(set(ks), reverse=True)
    assert all(after >= 2 * start for start, after in pairwise(starts))
    assert max(starts) < len(table)
    lowest = [min(table[1 : n + 1]) for n in range(1, len(table))]
    for n in range(1, len(table)):
        k = next(k for start, k in reversed(rows) if start <= n)
        assert k <= lowest[n - 1], "never more than the tuner asks for"
        assert k in table


rates = st.dictionaries(st.sampled_from([1, 8, 64]), st.dictionaries(st.integers(0, 5), st.floats(0, 1e6)), max_size=3)
weights = st.dictionaries(st.sampled_from([1, 8, 64, 256]), st.floats(0, 1), max_size=4)


@given(rates, weights)
def test_the_one_k_is_the_best_of_those_known_everywhere(
    goodput: dict[int, dict[int, float]], shares: dict[int, float]
) -> None:
    found = tier.fixed(goodput, shares)
    there = [load for load, share in shares.items() if share > 0]
    if found is None:
        assert (
            not there
            or any(load not in goodput for load in there)
            or not set.intersection(*(set(goodput[load]) for load in there))
        )
        return
    of = {k: sum(shares[load] * goodput[load][k] for load in there) for k in goodput[there[0]]
          if all(k in goodput[load] for load in there)}  # fmt: skip
    assert of[found] == max(of.values())


@given(st.integers(1, 50), st.floats(0, 100))
def test_the_way_back_waits_longer_each_time(visits: int, hours: float) -> None:
    record = left(spec(), [], hours=hours, visits=visits)
    wait = min(24.0, 2.0 ** (visits - 1))
    may = tier.may_return(record, NOW)
    assert may == (hours >= wait) or abs(hours - wait) < 0.001
    assert not tier.may_return(boot(spec()), NOW)


goodputs = st.floats(0.001, 1e6)
rows = st.builds(
    lambda k, goodput, step, survival: row(k, goodput, step=step, survival=tuple(sorted(survival, reverse=True)[:k])),
    st.integers(0, 7), goodputs, st.integers(0, 10**7), st.lists(st.integers(0, 1000), min_size=7, max_size=7),
)  # fmt: skip
measured = st.lists(
    st.builds(
        lambda load, found: bucket(load, *found), st.sampled_from([1, 8, 64]), st.lists(rows, min_size=1, max_size=5)
    ),
    max_size=3,
)
SPECS = [
    spec(),
    spec(speculation={"enabled": False}),
    spec(speculation={"adaptiveVerification": "Enabled"}),
    spec(engine={"plugin": {"injection": "None"}}),
    spec(engine={"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}),
    spec(engine={"cudagraphMode": "PIECEWISE"}),
]
records = st.builds(
    lambda given, at: left(given, [load_of(load, goodput) for load, goodput in at.items()]),
    st.sampled_from(SPECS), st.dictionaries(st.sampled_from([1, 8, 64]), goodputs, max_size=3),
)  # fmt: skip
knowns = st.builds(
    lambda given, live, found, past, shares, lowered, long: known(
        spec=given, live=live, buckets=found, past=[boot(given), *past], now=NOW,
        plain={one.from_requests: boots.load_of(one.from_requests, one.candidates[0]) for one in found},
        load=history(shares), ttft_lowered=lowered, off_for_long=long,
    ),
    st.sampled_from(SPECS), st.booleans(), measured, st.lists(records, max_size=3),
    st.dictionaries(st.sampled_from([0, 1, 8, 64]), st.floats(0, 1), max_size=4), st.none() | st.integers(1, 4),
    st.booleans(),
)  # fmt: skip


@given(knowns)
@settings(max_examples=60, deadline=None)
def test_every_proposal_can_work_has_its_price_and_no_gain_that_was_not_measured(given_known: Known) -> None:
    found = propose(given_known)
    assert len({one.key for one in found}) == len(found)
    for one in found:
        changed = overlay(given_known.spec.model_dump(mode="json", by_alias=True), one.changes)
        assert not check(ServingSpec.model_validate(changed))
        assert one.changes
        assert one.evidence
        assert one.restart_seconds == 120.0
        if one.gain is None:
            assert (one.gain_low, one.gain_high) == (0.0, None)
        else:
            assert one.gain_high is not None
            assert LEAST_GAIN < one.gain_low <= one.gain * 1.000001
            assert one.gain <= one.gain_high * 1.000001
    assert not [one for one in found if one.changes.get("speculation.enabled") is given_known.spec.speculation.enabled]
