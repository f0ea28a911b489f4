"""Profiles: the key and how two differ, what is learnt and comes back the same, never more than half of a minimum."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_engine.protocol import LOAD_EDGES, Identity
from paceline_operator.api.learned import AcceptanceRow, CostRow, LearnedStatus, ProfileKey
from paceline_operator.api.profiles import ProfileSpec, SpeculationProfile
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import BucketStatus, ServingStatus
from paceline_operator.cli import profiles
from paceline_operator.cli.app import app
from paceline_operator.local import document
from paceline_operator.preflight import evidence
from paceline_operator.profiling import learn
from paceline_operator.profiling.key import FIELDS, NO_ANSWER, differing, key_of
from paceline_operator.profiling.prior import prior, profile_of
from paceline_operator.proposing import Plain
from paceline_operator.tuning import acceptance, cost, decide, direct
from paceline_operator.tuning.goodput import board
from paceline_operator.tuning.model import Engine, Profile
from paceline_operator.tuning.state import TunerState, fresh
from paceline_operator.tuning.warm import warmed
from tests.unit.simulated import Loop, fixed, grid, spec, workload

DIGEST, OTHER = ("sha256:" + 64 * digit for digit in "01")
TOLD = Identity(
    gpu="NVIDIA H200",
    tensor_parallel_size=1,
    graph_mode="FULL",
    max_capture_size=512,
    model_digest=DIGEST,
    draft_digest=OTHER,
)
DENSE = grid("h200_dense32b_eagle.csv")
LATER = "2026-01-01T00:00:00Z"


def engine(told: Identity = TOLD, name: str = "pod-0", **state: Any) -> Engine:
    one = next(iter(Loop.of(DENSE, fixed((0.5,) * 7)).engines.values())).state()
    able = one.capabilities.model_copy(update={"identity": told})
    return Engine(name=name, state=one.model_copy(update={"capabilities": able, **state}))


def key() -> ProfileKey:
    found = key_of(spec(), [engine()])
    assert isinstance(found, ProfileKey), found
    return found


CHANGES: dict[str, Any] = {
    "gpu": "NVIDIA B200", "tensor_parallel_size": 2, "model_digest": OTHER, "method": "eagle3", "draft_digest": DIGEST,
    "max_tokens": 7, "engine_version": "0.99.0", "graph_mode": "NONE", "max_capture_size": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_key_counts_and_is_named(name: str) -> None:
    other = key().model_copy(update={name: CHANGES[name]})
    (said,) = differing(other, key())
    assert said.startswith(f"{FIELDS[name].alias} is {CHANGES[name]} in the profile and ")
    assert differing(key(), key()) == ()


@pytest.mark.parametrize(
    ("engines", "says"),
    [
        ([], NO_ANSWER),
        ([Engine(name="pod-0")], NO_ANSWER),
        ([engine(Identity())], "pod-0 does not tell its gpu, tensorParallelSize, modelDigest, graphMode, draftDigest"),
        ([engine(), engine(TOLD.model_copy(update={"gpu": "A100"}), "pod-1")], "pod-0 and pod-1 differ in their gpu"),
        ([engine(), engine(name="pod-1", engine_version="0.9")], "pod-0 and pod-1 differ in their engineVersion"),
        ([engine(TOLD.model_copy(update={"model_digest": "sha256:x"}))], "pod-0 tells what cannot be: modelDigest"),
    ],
)
def test_a_key_that_is_not_known_says_why(engines: list[Engine], says: str) -> None:
    assert key_of(spec(), engines) == says


@given(st.builds(Identity, **{name: st.text() for name in ("gpu", "graph_mode", "model_digest", "draft_digest")}))
def test_whatever_an_engine_tells_is_a_key_or_a_reason(told: Identity) -> None:
    assert isinstance(key_of(spec(), [engine(told)]), ProfileKey | str)


KEY = key()
COLUMNS = ("k", "fromRequests", "contextTokens", "stepMicroseconds", "deviationMicroseconds", "steps")


def rows() -> st.SearchStrategy[ProfileSpec]:
    """Valid profiles."""

    def fates(k: int) -> st.SearchStrategy[AcceptanceRow]:
        counts = st.lists(st.integers(0, 10**6), min_size=k + 2, max_size=k + 2)

        def row(found: list[int]) -> AcceptanceRow:
            steps, drafts, *accepted = sorted(found, reverse=True)
            return AcceptanceRow(k=k, request_steps=steps, drafts=drafts, drafted=[drafts] * k, accepted=accepted)

        return counts.map(row)

    micros = st.integers(1, 600_000_000)
    cells = st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([*LOAD_EDGES, 5]),
            st.sampled_from([0, 8192]),
            micros,
            micros,
            st.integers(1, 10**9),
        ).map(lambda row: CostRow.model_validate(dict(zip(COLUMNS, row, strict=True)))),
        min_size=1,
        max_size=40,
        unique_by=lambda one: (one.k, one.from_requests, one.context_tokens),
    )
    accepted = st.lists(st.integers(1, 5), unique=True).flatmap(lambda ks: st.tuples(*map(fates, ks)).map(list))
    words = st.text(min_size=1, max_size=20)
    return st.tuples(cells, accepted, words).map(
        lambda found: ProfileSpec(key=KEY, measured_at=LATER, cost=found[0], acceptance=found[1], workload=found[2])
    )


@given(rows())
def test_a_profile_comes_back_the_same_from_yaml(profile: ProfileSpec) -> None:
    status = ServingStatus(
        learned=LearnedStatus(
            key=profile.key, measured_at=LATER, cost=profile.cost, acceptance=profile.acceptance, message=""
        )
    )
    body = learn.profile_of("chat", status.learned, profile.workload)
    assert isinstance(body, dict), body
    back = SpeculationProfile.model_validate(yaml.safe_load(yaml.safe_dump(body, sort_keys=False)))
    assert back.spec == profile
    assert list(evidence.of_profile(back.spec)) == []


@settings(max_examples=30)
@given(rows())
def test_no_profile_is_enough_by_itself_and_each_is_a_table_of_the_ladder(profile: ProfileSpec) -> None:
    asked = dataclasses.replace(decide.settings_of(spec()), profile=profile_of(profile))
    state = warmed(asked, fresh(asked, [], 0.0))
    assert np.isfinite(state.cost.mean).all()
    known = board(
        acceptance.lengths(state.acceptance),
        state.cost,
        direct.empty(state.cost.loads, asked.ladder),
        state.cost.loads,
    ).known
    assert not known[:, :-1].any(), "half of a minimum is no minimum"
    assert not state.cost.steps.any(), "nothing was measured here"
    assert cost.measured(state.cost) == ()
    assert set(state.base) <= set(asked.ladder)
    assert len(state.base) == len(asked.boot_table)
    assert warmed(asked, state) is state, "once"


def test_what_was_measured_here_is_not_lent() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"))
    loop.run(20, 16)
    state = loop.memory.state
    assert isinstance(state, TunerState)
    state = dataclasses.replace(state, cost=cost.unfolded(state.cost))
    wrong = Profile({(16, 3): 9.0, (64, 3): 0.03}, {3: (0.0, 0.0, 0.0)})
    warm = warmed(dataclasses.replace(loop.settings, profile=wrong), state)
    at = [warm.cost.loads.index(load) * len(warm.cost.ladder) + warm.cost.ladder.index(3) for load in (16, 64)]
    assert warm.cost.lent[at].tolist() == [0.0, 1.0]
    assert warm.cost.mean[at[0]] == pytest.approx(state.cost.mean[at[0]], abs=0.1)
    assert warm.acceptance is state.acceptance
    assert warm.base == state.base, "a table that was decided stays"


def learnt(loop: Loop, previous: ServingStatus | None = None, **fields: Any) -> LearnedStatus | None:
    state = loop.memory.state
    assert isinstance(state, TunerState)
    status = (previous or ServingStatus()).model_copy(update=fields)
    plain = {16: Plain(1000, 16_000, 20.0, 0.4), 32: Plain(10, 320, 0.2, 0.004)}
    return learn.learned(state, key(), plain, previous or ServingStatus(), status, LATER)


def test_what_is_learnt_is_what_was_true() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"), noise=0.02)
    for load in (1, 16, 64):
        loop.run(20, load)
    found = learnt(loop)
    assert found is not None
    assert {row.from_requests for row in found.cost} == {1, 16, 64}
    for row in found.cost:
        assert row.step_microseconds == pytest.approx(1e6 * DENSE(row.from_requests, row.k), rel=0.05)
        assert row.steps >= 7
        assert row.deviation_microseconds < row.step_microseconds / 5
    for fate in found.acceptance:
        truth = workload("gsm8k")(fate.k)
        assert [one / fate.request_steps for one in fate.accepted] == pytest.approx(list(truth), abs=0.1)
    assert {fate.k for fate in found.acceptance} == set(loop.settings.ladder) - {0}
    assert [(row.from_requests, row.step_microseconds, row.steps) for row in found.no_drafter] == [(16, 20_000, 1000)]
    assert profile_of(ProfileSpec.model_validate(found.model_dump())).step_seconds.keys() >= {(64, 0), (64, 5)}


def test_status_changes_with_its_measured_numbers_alone() -> None:
    loop = Loop.of(DENSE, workload("gsm8k"))
    loop.run(20, 16)
    first = learnt(loop)
    before = ServingStatus(learned=first)
    loop.run(5, 16)
    assert learnt(loop, before) is first
    news = [BucketStatus(from_requests=16, k=3, observed=True)]
    assert learnt(loop, before, buckets=news) != first
    state = loop.memory.state
    assert isinstance(state, TunerState)
    assert learn.learned(state, NO_ANSWER, {}, before, ServingStatus(), LATER) is first
    silent = learn.learned(state, "pod-0 and pod-1 differ in their gpu", {}, before, before, LATER)
    assert silent is not None
    assert (silent.key, silent.message) == (None, "pod-0 and pod-1 differ in their gpu")
    anew = fresh(loop.settings, [], 0.0)
    assert learn.learned(anew, key(), {}, before, before.model_copy(update={"buckets": news}), LATER) is first


def test_what_a_profile_lent_is_not_told_again() -> None:
    asked = decide.settings_of(spec())
    lent = Profile({(load, k): DENSE(load, k) for load in (1, 16) for k in asked.ladder}, {5: (0.5,) * 5})
    state = warmed(dataclasses.replace(asked, profile=lent), fresh(asked, [], 0.0))
    assert learn.costs(state.cost) == []
    assert learn.fates(state.acceptance) == []


def profile(**changes: Any) -> ProfileSpec:
    rows = [
        CostRow(k=k, from_requests=16, step_microseconds=20_000, deviation_microseconds=1, steps=50) for k in (5, 0)
    ]
    return ProfileSpec(key=key(), measured_at=LATER, cost=rows).model_copy(update=changes)


def test_a_prior_says_what_it_is_and_why_it_is_not() -> None:
    used = prior("old", profile(), key())
    assert (used.verdict.status, used.verdict.reason) == (True, "KeyMatches")
    assert LATER in used.verdict.message
    assert used.profile is not None
    assert used.profile.step_seconds == {(16, 5): 0.02, (16, 0): 0.02}
    other = prior("old", profile(), key().model_copy(update={"engine_version": "0.99.0"}))
    assert (other.verdict.status, other.verdict.reason, other.profile) == (False, "KeyMismatch", None)
    assert "engineVersion is" in other.verdict.message
    waits = prior("old", profile(), NO_ANSWER)
    assert (waits.verdict.status, waits.verdict.reason, waits.profile) == (None, "KeyUnknown", None)


@pytest.mark.parametrize(
    ("learned", "says"),
    [
        (None, "nothing was learnt yet"),
        (LearnedStatus(message="pod-0 does not tell its gpu"), "its key is not known: pod-0 does not tell its gpu"),
        (LearnedStatus(key=key()), "no load has its minimum count yet"),
    ],
)
def test_without_numbers_or_key_there_is_no_profile(learned: LearnedStatus | None, says: str) -> None:
    assert learn.profile_of("x", learned, "unknown") == says


def test_the_smallest_spec_names_a_profile() -> None:
    named = ServingSpec.model_validate(
        {"model": {"source": "hf://a/b"}, "speculation": {"method": "ngram"}, "tuning": {"profileRef": {"name": "old"}}}
    )
    assert named.tuning.profile_ref is not None


def test_an_export_without_acceptance_is_told_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ngram that never fired: step times are known, and what would have been accepted is not."""
    learned = {
        "key": key().model_dump(mode="json", by_alias=True),
        "measuredAt": LATER,
        "cost": [
            {
                "k": 3,
                "fromRequests": 1,
                "contextTokens": 0,
                "stepMicroseconds": 7000,
                "deviationMicroseconds": 70,
                "steps": 900,
            }
        ],
    }
    raw = {"metadata": {"name": "chat"}, "status": {"learned": learned}}
    monkeypatch.setattr(profiles, "reach", lambda *_: raw)
    result = CliRunner().invoke(app, ["profile", "export", "chat", "-o", str(tmp_path / "p.yaml")])
    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'p.yaml'}: 1 step time, acceptance of 0 ks\n")
    assert document.profile(tmp_path / "p.yaml")[1].spec.cost[0].steps == 900
