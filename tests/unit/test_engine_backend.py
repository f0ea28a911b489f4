"""What a pushed body does: in force, or refused with a text that names what is wrong, and then nothing has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine import backend
from paceline_engine.backend import Refusal
from paceline_engine.protocol import MAX_BODY_BYTES, Policy, Verification, VerificationFeature
from tests.unit.engine_parts import BOOT, MAX_K, MAX_NUM_SEQS, Parts
from tests.unit.engine_workers import UniProcExecutor

GOOD: dict[str, Any] = {"generation": 5, "table": [0, 5, 3, 1, 0], "dwellSteps": 2}


def body(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


def refusal(parts: Parts, sent: bytes) -> Refusal:
    before = parts.policy.plan
    with pytest.raises(Refusal) as caught:
        parts.backend.push(sent)
    assert parts.policy.plan is before
    assert caught.value.body.message == str(caught.value)
    return caught.value


def test_a_policy_is_in_force_at_once_and_applied_when_a_step_has_read_it() -> None:
    parts = Parts()
    ack = parts.backend.push(body())
    assert (ack.generation, ack.applied) == (5, False)
    state = parts.backend.state()
    assert (state.generation, state.table, state.k_in_force) == (5, (0, 5, 3, 1, 0), None)
    parts.policy.choose(1, 1)
    assert parts.backend.push(body()).applied
    state = parts.backend.state()
    assert (state.k_in_force, state.steps_by_k, state.probe_steps_by_k) == (5, {5: 1}, {})


def test_state_tells_the_probe_that_was_pushed() -> None:
    parts = Parts()
    parts.backend.push(body(probe={"ks": [1]}))
    probe = parts.backend.state().probe
    assert probe is not None
    assert probe.ks == (1,)


@pytest.mark.parametrize(
    ("sent", "status", "reason", "says"),
    [
        (b"{", 400, "Malformed", "not JSON"),
        (b"", 400, "Malformed", "not JSON"),
        (b"\xff\xfe", 400, "Malformed", "not JSON"),
        (b"[" * 10_000, 400, "Malformed", "recursion"),
        (b"[]", 422, "Invalid", "the body: Input should be an object"),
        (b"{}", 422, "Invalid", "generation: Field required; table: Field required"),
        (body(table=[0, 5, 3]), 422, "Invalid", "table: has 3 entries, this engine needs 5 (max_num_seqs 4"),
        (body(table=[0] * 6), 422, "Invalid", "table: has 6 entries"),
        (body(table=[0, 5, 6, 7, 0]), 422, "Invalid", "table[2]: is 6, this engine takes 0..5"),
        (body(table=[0, 5, -1, 0, 0]), 422, "Invalid", "table[2]: Input should be greater than or equal to 0, got -1"),
        (body(table=[0, 5, 1000, 0, 0]), 422, "Invalid", "table[2]: Input should be less than or equal to 64"),
        (body(table=[0, 5, float("nan"), 0, 0]), 422, "Invalid", "table[2]: Input should be a valid integer, got nan"),
        (body(table=[0, 5, float("inf"), 0, 0]), 422, "Invalid", "table[2]: Input should be a valid integer, got inf"),
        (body(table=[0, 5, 1.0, 0, 0]), 422, "Invalid", "table[2]: Input should be a valid integer"),
        (body(table=[0, 5, True, 0, 0]), 422, "Invalid", "table[2]: Input should be a valid integer"),
        (body(table=[0, 5, "3", 0, 0]), 422, "Invalid", "table[2]: Input should be a valid integer, got '3'"),
        (body(table=None), 422, "Invalid", "table: Input should be a valid array, got None"),
        (body(generation=0), 422, "Invalid", "generation: Input should be greater than or equal to 1"),
        (body(generation=2**80), 422, "Invalid", "generation: Input should be less than or equal to"),
        (body(dwellSteps=0), 422, "Invalid", "dwellSteps: Input should be greater than or equal to 1"),
        (body(probe={"ks": []}), 422, "Invalid", "probe.ks: Tuple should have at least 1 item"),
        (body(probe={"ks": [9]}), 422, "Invalid", "probe.ks[0]: is 9, this engine takes 0..5"),
        (
            body(probe={"ks": [1], "settleSteps": 3, "burstSteps": 8, "intervalSteps": 20}),
            422,
            "Invalid",
            "is a share of 0.55, the limit is 0.5",
        ),
    ],
)
def test_a_refused_body_names_what_is_wrong(sent: bytes, status: int, reason: str, says: str) -> None:
    refused = refusal(Parts(), sent)
    assert (refused.status, refused.body.reason) == (status, reason)
    assert says in refused.body.message


def test_the_texts_stay_short_however_much_is_wrong() -> None:
    huge = body(table=["x" * 50_000] * 4 + [[[]] * 1000], probe={"ks": [-1] * 64}, generation={"a": ["b"] * 5000})
    assert len(huge) < MAX_BODY_BYTES
    message = refusal(Parts(), huge).body.message
    assert len(message) < 1000
    assert "more" in message


def test_generations_only_grow() -> None:
    parts = Parts()
    parts.backend.push(body())
    older = refusal(parts, body(generation=4))
    assert (older.status, older.body.reason) == (409, "OlderGeneration")
    assert "4 is older than 5" in older.body.message
    for change in ({"table": [0, 5, 3, 1, 1]}, {"dwellSteps": 3}, {"probe": {"ks": [0]}}):
        other = refusal(parts, body(**change))
        assert (other.status, other.body.reason) == (409, "GenerationConflict")
    assert parts.backend.push(body(somethingNewer=1)).generation == 5
    assert parts.backend.push(body(generation=6, table=list(BOOT))).generation == 6


def test_an_engine_without_live_k_says_why_it_takes_no_policy() -> None:
    refused = refusal(Parts(live_k=False), body())
    assert (refused.status, refused.body.message) == (422, "this engine takes no policy: no schedule")


def test_a_failure_in_the_step_loop_is_told_and_takes_the_policy_out(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()
    parts.backend.push(body())
    parts.backend.fail(RuntimeError("boom"))
    state = parts.backend.state()
    assert (state.generation, state.table, state.policy_errors) == (0, BOOT, 1)
    assert not state.capabilities.live_k.supported
    assert "RuntimeError: boom" in state.capabilities.live_k.reason
    assert refusal(parts, body(generation=9)).status == 422
    assert len(caplog.records) == 1


def test_an_engine_that_shuts_down_is_not_ready_for_anything() -> None:
    parts = Parts()
    parts.backend.close()
    assert refusal(parts, body()).status == 503
    for ask in (parts.backend.state, lambda: parts.backend.samples(None)):
        with pytest.raises(Refusal, match="shutting down"):
            ask()


def test_a_plugin_without_its_metadata_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise backend.PackageNotFoundError

    monkeypatch.setattr(backend, "version", absent)
    assert Parts().backend.state().plugin_version == "unknown"


ALL, CAPPED = {"mode": "All"}, {"mode": "Capped", "cap": 4}
CURVES = {"draftCosts": [{"at": 1, "microseconds": 900}], "verifyCosts": [{"at": 1, "microseconds": 9000}]}
UNCHANGEABLE = VerificationFeature(supported=False, reason="why", present=True, modes=(Verification.ADAPTIVE,))


def test_verification_goes_out_with_its_generation_and_is_applied_when_the_ranks_say_so() -> None:
    parts = Parts(executor=UniProcExecutor())
    assert not parts.backend.push(body(adaptiveVerification=CAPPED | CURVES)).applied
    parts.policy.choose(1, 1)
    assert not parts.backend.push(body(adaptiveVerification=CAPPED | CURVES)).applied
    assert parts.verification is not None
    parts.verification.act()
    assert parts.backend.push(body(adaptiveVerification=CAPPED | CURVES)).applied
    shown = parts.backend.state().adaptive_verification
    assert shown is not None
    assert (shown.mode, shown.cap, shown.generation, shown.ranks) == (Verification.CAPPED, 4, 5, 1)
    assert refusal(parts, body(adaptiveVerification=ALL)).status == 409


def test_an_engine_that_verifies_all_takes_just_that_and_shows_that_av_is_absent() -> None:
    parts = Parts()
    assert parts.backend.push(body(adaptiveVerification=ALL)).generation == 5
    assert parts.backend.state().adaptive_verification is None


def test_an_engine_whose_verification_cannot_be_changed_shows_what_it_does() -> None:
    shown = Parts(adaptive=UNCHANGEABLE).backend.state().adaptive_verification
    assert shown is not None
    assert (shown.mode, shown.ranks) == (Verification.ADAPTIVE, 0)


@pytest.mark.parametrize(
    ("adaptive", "asked", "says"),
    [
        (None, {"mode": "Adaptive"}, "adaptiveVerification.mode: is Adaptive, this engine takes All: V1"),
        (None, CAPPED, "adaptiveVerification.mode: is Capped, this engine takes All: V1"),
        (None, ALL | CURVES, "adaptiveVerification.draftCosts: this engine takes no other costs"),
        (UNCHANGEABLE, ALL, "adaptiveVerification.mode: is All, this engine takes Adaptive: why"),
        (None, {"mode": "Capped"}, "adaptiveVerification: Value error, cap goes with mode Capped"),
        (None, {"mode": "Off"}, "adaptiveVerification.mode: Input should be"),
        (None, CAPPED | {"cap": -1}, "adaptiveVerification.cap: Input should be greater than or equal to 0"),
        (None, ALL | {"draftCosts": CURVES["draftCosts"]}, "draftCosts and verifyCosts go together"),
        (None, ALL | CURVES | {"verifyCosts": [{"at": 1, "microseconds": 0}]}, "verifyCosts[0].microseconds: Input"),
    ],
)
def test_verification_that_cannot_be_is_refused_with_the_reason(
    adaptive: VerificationFeature | None, asked: dict[str, Any], says: str
) -> None:
    refused = refusal(Parts(adaptive=adaptive), body(adaptiveVerification=asked))
    assert refused.status == 422
    assert says in refused.body.message


def test_an_engine_with_one_k_takes_verification_with_the_table_it_booted_with() -> None:
    parts = Parts(live_k=False, executor=UniProcExecutor())
    for change in ({"table": [0, 5, 3, 1, 1]}, {"probe": {"ks": [1]}}):
        message = refusal(parts, body(adaptiveVerification=ALL, **change)).body.message
        assert "no table but the one it booted with, and no probe: no schedule" in message
    assert not parts.backend.push(body(table=list(BOOT), adaptiveVerification=ALL)).applied
    assert parts.verification is not None
    parts.verification.act()
    assert parts.backend.push(body(table=list(BOOT), adaptiveVerification=ALL)).applied


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = scalars | st.lists(st.integers(-2, MAX_K + 2), min_size=3, max_size=7) | st.dictionaries(st.text(), scalars)
documents = st.fixed_dictionaries(
    {},
    optional={
        "generation": st.integers(-1, 8) | values,
        "table": st.lists(st.integers(-1, MAX_K + 1), min_size=4, max_size=6) | values,
        "dwellSteps": st.integers(0, 300) | values,
        "adaptiveVerification": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(["All", "Adaptive", "Capped"]) | values,
                "cap": st.integers(-1, 9) | values,
                "draftCosts": st.sampled_from([CURVES["draftCosts"], []]) | values,
                "verifyCosts": st.sampled_from([CURVES["verifyCosts"], []]) | values,
            },
        )
        | values,
        "probe": st.fixed_dictionaries(
            {},
            optional={
                "ks": st.lists(st.integers(-1, MAX_K + 1), max_size=3) | values,
                "settleSteps": values,
                "burstSteps": st.integers(0, 300),
                "intervalSteps": st.integers(0, 300) | values,
            },
        )
        | values,
    },
)


@given(st.lists(documents.map(json.dumps).map(str.encode) | st.binary(max_size=40), max_size=10))
def test_whatever_is_pushed_what_is_in_force_is_legal_and_its_generation_never_falls(sent: list[bytes]) -> None:
    parts = Parts(executor=UniProcExecutor())
    assert parts.verification is not None
    for number, one in enumerate(sent):
        before = parts.policy.plan
        refused: Refusal | None = None
        try:
            ack = parts.backend.push(one)
        except Refusal as caught:
            refused = caught
        plan = parts.policy.plan
        if refused:
            assert refused.status in {400, 409, 422}
            assert 0 < len(refused.body.message) < 2000
            assert plan is before
            continue
        assert ack.generation == plan.generation >= before.generation
        assert Policy.model_validate_json(one) == plan.policy
        assert len(plan.table) == MAX_NUM_SEQS + 1
        assert all(0 <= k <= MAX_K for k in plan.table)
        k, _ = parts.policy.choose(1 + number % MAX_NUM_SEQS, 1)
        assert 0 <= k <= MAX_K
        parts.verification.act()
        shown = parts.verification.state
        asked = plan.policy.adaptive_verification if plan.policy else None
        assert (shown.mode, shown.error) == (asked.mode if asked else Verification.ADAPTIVE, "")
