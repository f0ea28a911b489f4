"""Declared against effective: what is read of a command line, what evidence it takes, and what is never an alarm."""

from __future__ import annotations

import json
from dataclasses import astuple
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import (
    AcceptanceCell,
    CostCell,
    Feature,
    Samples,
    State,
    Verification,
    VerificationFeature,
    VerificationState,
)
from paceline_operator.api.conditions import Reason
from paceline_operator.effective import seen as counts
from paceline_operator.effective.declared import Declared, last_words, of_arguments, of_pod
from paceline_operator.effective.fleet import GRAVEST, Known, Outcome, Pod, look
from paceline_operator.effective.seen import Seen
from paceline_operator.resources import argv
from tests.servings import serving, table_of
from tests.unit.engine_answers import SAMPLES, STATE

SCHEDULE = Declared("eagle3", 5, ((1, 5), (9, 3), (33, 0)), full_graphs=True)
AV = Declared("eagle3", 5, ((1, 5), (9, 3), (33, 0)), verification=True, full_graphs=True)
PLAIN = Declared()


def engine(**capabilities: Any) -> State:
    """An engine with an EAGLE-3 drafter whose every k has its graphs up to 64 requests."""
    able = STATE.capabilities.model_copy(
        update={"method": "eagle3", "runner": "V2", "graph_requests": {5: 64, 3: 64, 0: 64}, **capabilities}
    )
    return STATE.model_copy(update={"capabilities": able})


def samples(
    k: int = 3,
    *,
    steps: int = 1000,
    requests: int = 8,
    drafts: float = 1.0,
    accepted: float = 0.6,
    verified: int | None = None,
    verification: Verification = Verification.ALL,
    prompt: int = 0,
    reset: bool = False,
) -> Samples:
    """Steps at k > 0: `accepted` of first draft tokens, `drafts` of request-steps had one."""
    made = int(drafts * steps * requests)
    cell = CostCell(
        load=requests, context=0, k_drafted=k, k_verified=k if verified is None else verified, probe=False,
        steps=steps, request_steps=steps * requests, emitted=steps * requests, seconds=1.0, seconds_squared=0.1,
        histogram={}, prompt=prompt,
    )  # fmt: skip
    fate = AcceptanceCell(
        k=k, load=requests, verification=verification, request_steps=steps * requests, drafts=made,
        drafted=(made,) * k, accepted=(int(accepted * made),) + (0,) * (k - 1) if k else (),
    )  # fmt: skip
    return SAMPLES.model_copy(
        update={"cells": (cell,), "acceptance": (fate,), "steps_by_k": {k: steps}, "reset": reset}
    )


NOTHING = SAMPLES.model_copy(update={"cells": (), "acceptance": (), "steps_by_k": {}})


def once(declared: Declared | None, state: State, read: Samples, before: Outcome | None = None) -> Outcome:
    return look(before.known if before else {}, [Pod("a", declared, state, read)])


@pytest.mark.parametrize(
    ("declared", "state", "read", "status", "reason", "says"),
    [
        (SCHEDULE, engine(), samples(), True, Reason.EFFECTIVE, "accepted"),
        (None, engine(), samples(), True, Reason.EFFECTIVE, "accepted"),
        (SCHEDULE, engine(), NOTHING, None, Reason.NO_DRAFTS_YET, "tell"),
        (SCHEDULE, engine(), samples(0), True, Reason.OFF_BY_DECISION, "k is 0"),
        (PLAIN, engine(max_k=0, ladder=(0,), method=""), samples(0), True, Reason.OFF_BY_DECISION, "as asked"),
        (None, engine(max_k=0, ladder=(0,), method=""), samples(0), True, Reason.OFF_BY_DECISION, "as asked"),
        (SCHEDULE, engine(max_k=0, ladder=(0,), method=""), NOTHING, False, Reason.NOT_SPECULATING, "no drafter"),
        (SCHEDULE, engine(), samples(drafts=0.0), False, Reason.NOT_SPECULATING, "no request has a draft"),
        (SCHEDULE, engine(method="ngram"), NOTHING, False, Reason.METHOD_FELL_BACK, "method ngram"),
        (AV, engine(), NOTHING, False, Reason.VERIFICATION_REFUSED, "V1 runner"),
        (
            SCHEDULE,
            engine(ladder=(5,), live_k=Feature(supported=False, reason="data_parallel_size is 2")),
            NOTHING,
            False,
            Reason.SCHEDULE_DROPPED,
            "k 5 at every load: data_parallel_size is 2",
        ),
        (SCHEDULE, engine(), samples(3, verified=5), False, Reason.K_IGNORED, "up to k 5"),
        (SCHEDULE, engine(), samples(accepted=0.0), False, Reason.DRAFTER_COLLAPSED, "tokenizer"),
        (SCHEDULE, engine(), samples(requests=96), False, Reason.GRAPHS_MISSED, "k 3 up to 64 requests"),
        (SCHEDULE, engine(graph_requests={}), samples(), False, Reason.GRAPHS_MISSED, "no decode step replays"),
        (SCHEDULE, engine(graph_requests={}), samples(prompt=1), True, Reason.EFFECTIVE, "accepted"),
        (Declared("eagle3", 5), engine(graph_requests={}), samples(), True, Reason.EFFECTIVE, "accepted"),
        (Declared("ngram", 5), engine(method="ngram"), samples(drafts=0.0), None, Reason.NO_DRAFTS_YET, "texts"),
        (Declared("ngram", 5), engine(method="ngram"), samples(accepted=0.0), False, Reason.DRAFTER_COLLAPSED, "copy"),
    ],
)
def test_each_finding(
    declared: Declared | None, state: State, read: Samples, status: bool | None, reason: Reason, says: str
) -> None:
    found = once(declared, state, read)
    assert (found.status, found.reason) == (status, reason)
    assert says in found.message
    if status is False:
        assert found.message.startswith("a: ")
        assert "; effective: " in found.message
        assert found.message.count("; ") >= 2, "the remedy"


def test_verification_that_starved_is_told_apart_from_a_bad_draft() -> None:
    feature = VerificationFeature(supported=True, present=True, modes=(Verification.ADAPTIVE, Verification.ALL))
    state = engine(adaptive_verification=feature).model_copy(
        update={"adaptive_verification": VerificationState(mode=Verification.ADAPTIVE, starved=True)}
    )
    found = once(AV, state, samples(accepted=0.0))
    assert found.reason is Reason.DRAFTER_COLLAPSED
    assert "adaptive verification admits almost none" in found.message


def test_a_few_bad_drafts_are_no_collapse_and_a_few_good_ones_no_recovery() -> None:
    state = engine()
    few = once(SCHEDULE, state, samples(steps=10, requests=8, accepted=0.0))
    assert few.reason is not Reason.DRAFTER_COLLAPSED
    bad = once(SCHEDULE, state, samples(accepted=0.0), few)
    assert bad.reason is Reason.DRAFTER_COLLAPSED
    still = once(SCHEDULE, state, samples(accepted=0.03), bad)
    assert still.reason is Reason.DRAFTER_COLLAPSED, "between the two limits"
    assert still.message == bad.message
    assert once(SCHEDULE, state, NOTHING, still).reason is Reason.DRAFTER_COLLAPSED, "time alone changes nothing"
    well = once(SCHEDULE, state, samples(accepted=0.5), still)
    assert well.reason is Reason.EFFECTIVE


def test_a_drafter_that_stops_working_shows_within_some_thousand_drafts() -> None:
    found = once(SCHEDULE, engine(), samples(steps=100_000, accepted=0.8, reset=True))
    passes = 0
    while found.reason is not Reason.DRAFTER_COLLAPSED and passes < 20:
        found = once(SCHEDULE, engine(), samples(steps=500, accepted=0.0), found)
        passes += 1
    assert passes <= 8


def test_another_process_starts_anew() -> None:
    bad = once(SCHEDULE, engine(), samples(accepted=0.0))
    again = engine().model_copy(update={"boot_id": "b2"})
    assert once(SCHEDULE, again, NOTHING, bad).reason is Reason.NO_DRAFTS_YET
    assert look(bad.known, []).known == {}


def test_a_load_at_the_edge_of_k0_does_not_make_the_reason_flap() -> None:
    found = once(SCHEDULE, engine(), samples(0, steps=4000))
    reasons = []
    for number in range(40):
        found = once(SCHEDULE, engine(), samples(3 if number % 2 else 0, steps=300), found)
        reasons.append(found.reason)
    assert sum(a is not b for a, b in pairwise(reasons)) <= 1
    assert found.status is True


def counters(**now: float) -> dict[str, float]:
    """vLLM's own names."""
    names = {
        "drafts": counts.DRAFTS,
        "tokens": counts.DRAFT_TOKENS,
        "accepted": counts.ACCEPTED_TOKENS,
        "generated": counts.GENERATED_TOKENS,
        "running": counts.RUNNING,
    }
    return {names[name]: value for name, value in now.items()}


def without_plugin(declared: Declared | None, *readings: dict[str, float]) -> Outcome:
    found = Outcome(None, Reason.HOLDING, "", {})
    for reading in readings:
        found = look(found.known, [Pod("a", declared, counters=reading)])
    return found


START = counters(drafts=0, tokens=0, accepted=0, generated=0, running=4)


@pytest.mark.parametrize(
    ("declared", "later", "status", "reason"),
    [
        (SCHEDULE, counters(drafts=900, tokens=4500, accepted=1800, generated=2800, running=4), True, "Effective"),
        (SCHEDULE, START, None, "NoDraftsYet"),
        (SCHEDULE, counters(generated=1000, running=4), False, "CountersAbsent"),
        (SCHEDULE, counters(drafts=0, tokens=0, accepted=0, generated=1000, running=4), False, "NotSpeculating"),
        (SCHEDULE, counters(drafts=900, tokens=4500, accepted=0, generated=1000, running=4), False, "DrafterCollapsed"),
        (PLAIN, counters(generated=1000, running=4), True, "OffByDecision"),
        (
            Declared("ngram", 5),
            counters(drafts=0, tokens=0, accepted=0, generated=1000, running=4),
            None,
            "NoDraftsYet",
        ),
        (None, counters(generated=1000, running=4), False, "CountersAbsent"),
    ],
)
def test_vllms_own_counters_tell_where_there_is_no_plugin(
    declared: Declared | None, later: dict[str, float], status: bool | None, reason: str
) -> None:
    start = {name: START[name] for name in later if name in START}
    found = without_plugin(declared, start, later)
    assert (found.status, found.reason) == (status, reason)


def test_a_schedule_that_is_not_followed_shows_in_counters_alone() -> None:
    crowded = {**START, counts.RUNNING: 40.0}
    dropped = counters(drafts=1000, tokens=5000, accepted=1000, generated=2000, running=40)
    found = without_plugin(SCHEDULE, crowded, dropped)
    assert (found.status, found.reason) == (False, Reason.SCHEDULE_DROPPED)
    followed = counters(drafts=0, tokens=0, accepted=0, generated=2000, running=40)
    assert without_plugin(SCHEDULE, crowded, followed).reason is Reason.OFF_BY_DECISION
    moving = counters(drafts=1000, tokens=5000, accepted=1000, generated=2000, running=12)
    assert without_plugin(SCHEDULE, crowded, moving).reason is Reason.EFFECTIVE, "the load changed in between"


def test_counters_of_a_restarted_engine_start_anew() -> None:
    later = counters(drafts=900, tokens=4500, accepted=0, generated=1000, running=4)
    assert without_plugin(SCHEDULE, START, later, START).known["a"].seen == Seen(counters=START)


def test_an_engine_that_ended_for_its_verification_says_so_and_others_do_not() -> None:
    said = (
        "Traceback...\n  Value error, Model Runner V1 does not support: adaptive draft verification [type=value_error\n"
    )
    found = look({}, [Pod("a", AV, last_words=said)])
    assert (found.status, found.reason) == (False, Reason.VERIFICATION_REFUSED)
    assert "Model Runner V1 does not support" in found.message
    assert "Traceback" not in found.message
    for pod in (Pod("a", SCHEDULE, last_words=said), Pod("a", AV, last_words="CUDA out of memory"), Pod("a", AV)):
        assert look({}, [pod]).reason is Reason.HOLDING
    healthy = look(found.known, [Pod("a", AV)])
    assert healthy.reason is Reason.HOLDING


def test_the_gravest_pod_speaks_and_names_its_like() -> None:
    bad, good = samples(accepted=0.0), samples()
    pods = [Pod(f"p{n}", SCHEDULE, engine(), bad if n else good) for n in range(6)]
    found = look({}, pods)
    assert found.reason is Reason.DRAFTER_COLLAPSED
    assert found.message.startswith("p1, p2, p3 and 2 more: declared: eagle3 with a schedule of the ks 5 3 0; ")
    assert look(found.known, pods[:1]).reason is Reason.EFFECTIVE


def test_the_command_line_of_every_serving_is_read_as_it_was_asked() -> None:
    asked = serving(tuning={"ladder": [5, 3, 1, 0]}, engine={"maxNumSeqs": 64})
    found = of_arguments(argv.build(asked, table_of(asked)))
    assert found is not None
    assert (found.method, found.max_k, found.ks) == ("eagle3", 5, frozenset({5, 3, 1, 0}))
    table = table_of(asked)
    assert [found.k_at(n) for n in range(1, 65)] == list(table[1:])
    assert found.full_graphs
    assert not found.verification
    assert of_arguments(argv.build(asked, table, drafter=False)) == Declared(full_graphs=True)
    av = serving(speculation={"adaptiveVerification": "Enabled"})
    declared = of_arguments(argv.build(av, table_of(av)))
    assert declared is not None
    assert declared.verification


@pytest.mark.parametrize(
    ("arguments", "graphs"),
    [
        (["--enforce-eager"], False),
        (["--enforce_eager"], False),
        (["--compilation-config", '{"cudagraph_mode":"PIECEWISE"}'], False),
        (['--compilation-config={"cudagraph_mode":"CUDAGraphMode.NONE"}'], False),
        (["--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY"}'], True),
        (["--compilation-config", "[1"], True),
        ([], True),
    ],
)
def test_what_takes_full_graphs_away(arguments: list[str], graphs: bool) -> None:
    assert of_arguments(arguments) == Declared(full_graphs=graphs)


@pytest.mark.parametrize(
    "value",
    ["", "[", "[]", "3", '{"method":"ngram"}', '{"num_speculative_tokens":true}', '{"num_speculative_tokens":-1}',
     '{"num_speculative_tokens":3,"num_speculative_tokens_per_batch_size":[[1,2]]}'],
)  # fmt: skip
def test_what_does_not_say_what_is_asked_is_unknown(value: str) -> None:
    assert of_arguments(["--speculative-config", value]) is None


def test_the_last_option_counts_in_any_spelling() -> None:
    first, last = (json.dumps({"method": name, "num_speculative_tokens": 2}) for name in ("ngram", "mtp"))
    found = of_arguments(["vllm", "--speculative-config", first, f"--speculative_config={last}"])
    assert found == Declared("mtp", 2, full_graphs=True)


def test_of_a_pod_the_engine_container_is_read() -> None:
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    containers = [
        {"name": "sidecar", "args": ["--enforce-eager"]},
        {"name": "engine", "args": ["--speculative-config", config]},
    ]
    assert of_pod({"spec": {"containers": containers}}) == Declared("ngram", 2, full_graphs=True)
    assert of_pod({"spec": {"containers": containers[:1]}}) is None
    assert of_pod({}) is None
    ended = {"name": "engine", "state": {"waiting": {}}, "lastState": {"terminated": {"message": "bad"}}}
    assert last_words({"status": {"containerStatuses": [ended]}}) == "bad"
    assert last_words({"status": {"containerStatuses": [{"name": "engine", "state": {"running": {}}}]}}) == ""
    assert last_words({}) == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**18) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["method", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "enable_adaptive_verification",
         "cudagraph_mode"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
options = st.sampled_from(["--speculative-config", "--compilation-config", "--enforce-eager", "vllm", "-"])
command_lines = st.lists(options | json_values.map(json.dumps) | st.text(max_size=12), max_size=8)


@given(command_lines)
def test_no_command_line_crashes_the_reader(arguments: list[str]) -> None:
    found = of_arguments(arguments)
    if found is not None:
        assert all(0 <= found.k_at(n) <= found.max_k for n in (0, 1, 7, 5000))
        assert str(found)


huge = st.integers(0, 2**53) | st.integers(0, 50)
small = st.integers(0, 9)
cells = st.builds(
    lambda k, verified, probe, steps, request_steps, prompt: CostCell(
        load=1, context=0, k_drafted=k, k_verified=verified, probe=probe, steps=steps, request_steps=request_steps,
        emitted=0, seconds=1.0, seconds_squared=1.0, histogram={}, prompt=prompt,
    ),
    small, small, st.booleans(), huge, huge, st.integers(0, 2),
)  # fmt: skip
fates = st.builds(
    lambda k, request_steps, drafts, drafted, accepted: AcceptanceCell(
        k=k, load=1, request_steps=request_steps, drafts=drafts, drafted=tuple(drafted), accepted=tuple(accepted)
    ),
    small, huge, huge, st.lists(huge, max_size=3), st.lists(huge, max_size=3),
)  # fmt: skip
answers = st.builds(
    lambda c, f, by_k, reset: SAMPLES.model_copy(
        update={"cells": tuple(c), "acceptance": tuple(f), "steps_by_k": by_k, "reset": reset}
    ),
    st.lists(cells, max_size=3), st.lists(fates, max_size=3),
    st.dictionaries(st.integers(0, 9), huge, max_size=3), st.booleans(),
)  # fmt: skip
states = st.builds(
    lambda max_k, ladder, method, graphs, boot: engine(
        max_k=max_k, ladder=tuple(ladder), method=method, graph_requests=graphs
    ).model_copy(update={"boot_id": boot}),
    st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), st.sampled_from(["", "eagle3", "ngram"]),
    st.dictionaries(st.integers(0, 9), st.integers(0, 99), max_size=2), st.sampled_from(["x", "y"]),
)  # fmt: skip
readings = st.dictionaries(
    st.sampled_from([*counts.READ, "vllm:other"]), st.floats(allow_nan=True, allow_infinity=True), max_size=6
)
declarations = st.none() | st.sampled_from([SCHEDULE, AV, PLAIN, Declared("ngram", 3)])
pods = st.builds(
    lambda name, declared, answer, reading, words: Pod(name, declared, *answer, counters=reading, last_words=words),
    st.sampled_from("abc"), declarations, st.tuples(states, answers) | st.just((None, None)),
    st.none() | readings, st.text(max_size=20),
)  # fmt: skip
passes = st.lists(st.lists(pods, max_size=3, unique_by=lambda pod: pod.name), max_size=5)


@given(passes)
def test_whatever_engines_answer_there_is_a_verdict(given_passes: list[list[Pod]]) -> None:
    known: Any = {}
    for seen_pods in given_passes:
        found = look(known, seen_pods)
        known = found.known
        assert set(known) == {pod.name for pod in seen_pods}
        assert found.reason in {*GRAVEST, Reason.HOLDING}
        assert found.message
        assert len(found.message) < 3000
        if found.status is False:
            assert any(pod.declared is None or pod.declared.method for pod in seen_pods), "off is never an alarm"
        for one in known.values():
            numbers = [value for value in astuple(one.seen) if isinstance(value, float)]
            assert all(0 <= value <= 2e15 for value in numbers)


@given(passes, pods)
def test_a_pass_without_news_changes_nothing(given_passes: list[list[Pod]], pod: Pod) -> None:
    """Status may not change because time passed."""
    known: dict[str, Known] = {}
    for seen_pods in [*given_passes, [pod]]:
        found = look(known, seen_pods)
        known = dict(found.known)
    quiet = Pod(pod.name, pod.declared, pod.state, NOTHING if pod.samples else None, pod.counters, pod.last_words)
    first = look(known, [quiet])
    assert (first.reason, first.message) == (found.reason, found.message)
