"""What a pushed body does: in force, or refused with a text that names what is wrong, and then nothing has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine import backend
from paceline_engine.backend import Refusal
from paceline_engine.protocol import MAX_BODY_BYTES, Policy
from tests.unit.engine_parts import BOOT, MAX_K, MAX_NUM_SEQS, Parts

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


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = scalars | st.lists(st.integers(-2, MAX_K + 2), min_size=3, max_size=7) | st.dictionaries(st.text(), scalars)
documents = st.fixed_dictionaries(
    {},
    optional={
        "generation": st.integers(-1, 8) | values,
        "table": st.lists(st.integers(-1, MAX_K + 1), min_size=4, max_size=6) | values,
        "dwellSteps": st.integers(0, 300) | values,
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
    parts = Parts()
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
