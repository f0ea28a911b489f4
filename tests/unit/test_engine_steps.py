"""The hooks against a scheduler of the same shape as vLLM's: who samples, whose drafts, how long, and never a crash."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.digest import FEW_RECORDS, MAX_RECORDS, Digest
from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import LAUNCHED, PROMPT_EDGES, Policy, Probe, Verification, prompt_bucket
from paceline_engine.steps import CONTEXT_STEPS
from tests.unit.engine_parts import BOOT, MAX_K, MAX_NUM_SEQS
from tests.unit.engine_scheduler import Engine


def push(engine: Engine, table: tuple[int, ...], **fields: Any) -> None:
    generation = engine.parts.policy.plan.generation + 1
    engine.parts.policy.swap(Policy(generation=generation, table=table, **fields))


def test_prompt_chunks_do_not_count_as_sampling_and_the_last_one_does() -> None:
    engine = Engine()
    push(engine, (0, 1, 2, 3, 4), dwell_steps=1)
    engine.admit("a", prompt=4)
    assert engine.step(chunks={"a": 4}).num_spec_tokens_to_schedule == 1
    engine.admit("b", prompt=10)
    assert engine.step(chunks={"b": 4}).num_spec_tokens_to_schedule == 1
    assert engine.step(chunks={"b": 4}).num_spec_tokens_to_schedule == 1
    assert engine.step().num_spec_tokens_to_schedule == 1  # b is left out of this step and still prefills
    assert engine.step(chunks={"b": 2}).num_spec_tokens_to_schedule == 2
    assert engine.step().num_spec_tokens_to_schedule == 2
    samples = engine.samples()
    assert samples.gauges.prompt_tokens == 14
    assert samples.excluded_steps == {"prefill": 1, "transition": 1}
    assert [(c.load, c.k_drafted, c.prompt, c.steps, c.prompt_tokens, c.first_tokens) for c in samples.cells] == [
        (1, 1, 0, 1, 0, 0),
        (1, 1, 1, 2, 8, 0),
        (2, 2, 0, 1, 0, 0),
    ]


def test_a_step_with_prompts_is_a_cost_of_its_own_and_whoever_got_a_first_token_is_told_apart() -> None:
    engine = Engine()
    push(engine, (0, 3, 3, 3, 3))
    engine.admit("a", prompt=4)
    engine.step(chunks={"a": 4})
    engine.admit("b", prompt=PROMPT_EDGES[2])
    engine.step(seconds=0.05, chunks={"b": PROMPT_EDGES[2]}, accepted={"a": 2})
    engine.step(seconds=0.01, accepted={"a": 1, "b": 3})
    samples = engine.samples()
    assert samples.excluded_steps == {"prefill": 1}
    told = {c.prompt: (c.load, c.k_drafted, c.k_verified, c.request_steps, c.emitted) for c in samples.cells}
    assert told == {0: (2, 3, 3, 2, 6), PROMPT_EDGES[2]: (2, 3, 3, 2, 4)}
    mixed = next(c for c in samples.cells if c.prompt)
    assert (mixed.prompt_tokens, mixed.first_tokens, mixed.seconds) == (PROMPT_EDGES[2], 1, pytest.approx(0.05))
    assert [(c.request_steps, c.accepted) for c in samples.acceptance] == [(3, (3, 2, 1))], "of whoever had drafts"


def test_a_step_of_prompt_chunks_alone_is_left_to_the_engine_and_changes_no_attribution() -> None:
    engine = Engine()
    push(engine, (0, 3, 3, 3, 3))
    engine.admit("a", prompt=4)
    engine.step(chunks={"a": 4})
    engine.admit("b", prompt=10)
    waiting = engine.running.pop(0)
    output = engine.step(chunks={"b": 4})
    assert output.num_spec_tokens_to_schedule == BOOT[1]
    engine.running.insert(0, waiting)
    engine.step(accepted={"a": 2}, chunks={"b": 6})
    samples = engine.samples()
    assert [(c.k, c.request_steps, c.drafts, c.drafted, c.accepted) for c in samples.acceptance] == [
        (3, 1, 1, (1, 1, 1), (1, 1, 0))
    ]
    assert samples.excluded_steps == {"prefill": 2}
    assert [(c.prompt, c.k_drafted, c.first_tokens) for c in samples.cells] == [(1, 3, 1)]
    assert samples.steps_by_k == {3: 2}


def test_drafts_are_counted_under_the_k_they_were_made_with() -> None:
    engine = Engine()
    push(engine, (0, 5, 5, 5, 5))
    engine.admit("a", prompt=4)
    engine.step(chunks={"a": 4})
    engine.step(accepted={"a": 5})
    push(engine, (0, 1, 1, 1, 1))
    engine.step(accepted={"a": 0})  # drafts 1, verifies 5
    engine.step(accepted={"a": 1})
    samples = engine.samples()
    assert [(c.k, c.request_steps, c.drafted, c.accepted) for c in samples.acceptance] == [
        (1, 1, (1,), (1,)),
        (5, 2, (2, 2, 2, 2, 2), (1, 1, 1, 1, 1)),
    ]
    assert samples.excluded_steps == {"prefill": 1, "transition": 1}
    assert [(c.k_drafted, c.k_verified, c.steps, c.emitted) for c in samples.cells] == [(1, 1, 1, 2), (5, 5, 1, 6)]


def test_a_request_whose_draft_did_not_fire_still_counts() -> None:
    engine = Engine()
    push(engine, (0, 4, 4, 4, 4))
    for name in ("a", "b"):
        engine.admit(name, prompt=2)
    engine.step(chunks={"a": 2, "b": 2})
    engine.requests["b"].drafts = 0
    engine.step(accepted={"a": 3})
    (cell,) = engine.samples().acceptance
    assert (cell.request_steps, cell.drafts, cell.drafted, cell.accepted) == (2, 1, (1, 1, 1, 1), (1, 1, 1, 0))


def test_tokens_that_a_grammar_cut_were_not_drafted() -> None:
    engine = Engine()
    push(engine, (0, 4, 4, 4, 4))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    output = engine.schedule()
    output.num_invalid_spec_tokens = {"a": 3}
    engine.complete(output, accepted={"a": 1})
    (cell,) = engine.samples().acceptance
    assert (cell.drafted, cell.accepted) == ((1, 0, 0, 0), (1, 0, 0, 0))


def test_a_request_aborted_in_flight_is_not_counted_as_the_engine_does_not() -> None:
    engine = Engine()
    push(engine, (0, 2, 2, 2, 2))
    for name in ("a", "b"):
        engine.admit(name, prompt=2)
    engine.step(chunks={"a": 2, "b": 2})
    output = engine.schedule()
    engine.finish("b")
    engine.complete(output, accepted={"a": 1})
    (cell,) = engine.samples().acceptance
    assert (cell.drafts, cell.drafted, cell.accepted) == (1, (1, 1), (1, 0))


@pytest.mark.parametrize("stopped", ["", "c"])
def test_tokens_of_a_request_aborted_in_flight_are_not_counted_though_another_stops(stopped: str) -> None:
    engine = Engine(stats=True)
    push(engine, (0, 2, 2, 2, 2))
    for name in ("a", "b", "c"):
        engine.admit(name, prompt=2)
    engine.step(chunks={"a": 2, "b": 2, "c": 2})
    output = engine.schedule()
    engine.finish("b")
    engine.cut = {stopped: 1} if stopped else {}
    engine.complete(output, accepted={"a": 1, "b": 2, "c": 2}, finished=stopped)
    assert engine.samples().gauges.generation_tokens == 3 + 2 + (1 if stopped else 3)


def test_a_synchronous_step_lasts_from_its_scheduling() -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    engine.now += 5.0  # the host was away between two steps
    engine.step(seconds=0.02)
    (cell,) = engine.samples().cells
    assert cell.seconds == pytest.approx(0.02)


def test_a_step_scheduled_while_another_ran_lasts_from_that_ones_completion() -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    first = engine.schedule()
    second = engine.schedule()
    engine.now += 0.05
    engine.complete(first)
    third = engine.schedule()
    engine.now += 0.03
    engine.complete(second)
    engine.now += 0.04
    engine.complete(third)
    cells = engine.samples().cells
    assert sum(cell.seconds for cell in cells) == pytest.approx(0.05 + 0.03 + 0.04)
    assert sum(cell.steps for cell in cells) == 3


@pytest.mark.parametrize("stats", [False, True])
def test_a_step_that_ran_while_prompts_were_launched_counts_as_one_with_prompts(stats: bool) -> None:
    """The time until it completed may be theirs."""
    engine = Engine(stats=stats)
    push(engine, (0, 3, 3, 3, 3))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    ahead = [engine.schedule()]
    for number in range(12):
        chunks = {}
        if number == 6:
            engine.admit("b", prompt=9)
            chunks = {"b": 9}
        ahead.append(engine.schedule(chunks))
        engine.now += 0.03 if chunks else 0.01
        engine.complete(ahead.pop(0))
    cells = engine.samples().cells
    counted = {(cell.load, cell.prompt): (cell.steps, cell.prompt_tokens, cell.seconds) for cell in cells}
    assert counted[1, LAUNCHED] == (1, 0, pytest.approx(0.03))
    assert counted[2, prompt_bucket(9)] == (1, 9, pytest.approx(0.01))
    assert counted[1, 0][2] == pytest.approx(0.01 * counted[1, 0][0])


def test_with_two_stages_drafts_count_under_the_k_of_the_last_step_that_had_their_request() -> None:
    engine = Engine(lag=2)
    ahead = []
    for name in ("a", "b"):
        engine.admit(name, prompt=2)
    engine.step(chunks={"a": 2, "b": 2})
    engine.running, everybody = [], engine.running
    for k in (5, 1, 3, 0, 2):
        push(engine, (0, k, k, k, k))
        for request in everybody:  # in turns, each scheduled while the other is in flight
            engine.running = [request]
            ahead.append(engine.schedule())
            if len(ahead) > 1:
                engine.complete(ahead.pop(0))
    assert {cell.k: (cell.request_steps, cell.drafted) for cell in engine.samples().acceptance} == {
        BOOT[2]: (2 + 2, (4, 4, 4)),
        5: (2, (2, 2, 2, 2, 2)),
        1: (2, (2,)),
        0: (1, ()),
    }


def test_with_two_stages_a_request_alone_has_its_drafts_verified_in_the_next_step() -> None:
    engine = Engine(lag=2)
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for k in (5, 1):
        push(engine, (0, k, k, k, k))
        engine.step()
    engine.step()
    assert {cell.k: (cell.request_steps, cell.drafted) for cell in engine.samples().acceptance} == {
        5: (2, (2, 2, 2, 2, 2)),
        1: (1, (1,)),
    }


def test_the_first_step_after_a_pause_is_not_a_cost() -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2}, finished="a")
    engine.admit("b", prompt=2)
    engine.requests["b"].num_computed_tokens = 1  # as a request that waited for nothing but its turn
    engine.step()
    engine.step()
    samples = engine.samples()
    assert samples.excluded_steps == {"prefill": 1, "idle": 1}
    assert sum(cell.steps for cell in samples.cells) == 1


def test_settling_steps_of_a_burst_are_not_a_cost_and_its_counted_ones_are_marked() -> None:
    engine = Engine()
    push(engine, (0, 3, 3, 3, 3), probe=Probe(ks=(0,), interval_steps=20))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for _ in range(20):
        engine.step()
    samples = engine.samples()
    assert samples.excluded_steps == {"prefill": 1, "settling": 2, "transition": 1}
    assert {(c.k_drafted, c.probe): c.steps for c in samples.cells} == {(3, False): 9, (0, True): 8}
    assert (samples.steps_by_k, samples.probe_steps_by_k) == ({3: 11}, {0: 10})


def test_prompts_do_not_lengthen_a_burst_and_what_they_take_is_counted_apart() -> None:
    engine = Engine()
    push(engine, (0, 3, 3, 3, 3), probe=Probe(ks=(0,), interval_steps=20))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for _ in range(12):
        engine.step()
    engine.admit("b", prompt=9)
    for _ in range(3):
        engine.step(chunks={"b": 3})
    for _ in range(10):
        engine.step()
    cells = engine.samples().cells
    counted = {(cell.load, cell.prompt): cell.steps for cell in cells if cell.probe}
    assert counted == {(1, 0): 1, (1, 1): 2, (2, 1): 1, (2, 0): 4}
    assert engine.parts.policy.probe_steps_by_k[0] == 2 + 8


def test_a_step_that_stood_still_is_not_a_cost_and_a_burst_makes_up_for_it() -> None:
    engine = Engine()
    push(engine, (0, 3, 3, 3, 3), probe=Probe(ks=(0,), interval_steps=20))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for step in range(40):
        engine.step(seconds=2.0 if step in {5, 13} else 0.01)
    samples = engine.samples()
    assert samples.excluded_steps["stalled"] == 2
    assert all(cell.seconds / cell.steps == pytest.approx(0.01) for cell in samples.cells)
    assert sum(cell.steps for cell in samples.cells if cell.probe) >= 8


def test_a_step_during_which_verification_changed_is_in_no_cell_and_later_ones_are_apart() -> None:
    engine = Engine()
    push(engine, (0, 3, 3, 3, 3))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    engine.step(accepted={"a": 3})
    output = engine.schedule()
    engine.parts.policy.verification = Verification.ADAPTIVE
    engine.complete(output, accepted={"a": 3})
    engine.step(accepted={"a": 1})
    samples = engine.samples()
    assert samples.excluded_steps == {"prefill": 1, "transition": 1}
    assert [(c.verification, c.steps) for c in samples.cells] == [("Adaptive", 1), ("All", 1)]
    assert [(c.verification, c.request_steps, c.accepted) for c in samples.acceptance] == [
        ("Adaptive", 1, (1, 0, 0)),
        ("All", 1, (1, 1, 1)),
    ]


def test_a_step_whose_drafts_nobody_could_use_is_not_the_cost_of_its_k() -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    compose = engine.compose
    engine.compose = lambda *how: SimpleNamespace(**vars(compose(*how)), skip_drafts=True)  # type: ignore[method-assign]
    engine.step()
    assert engine.samples().excluded_steps == {"prefill": 1, "undrafted": 1}


def test_the_context_of_many_requests_is_looked_at_now_and_then_and_after_prompts() -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    engine.requests["a"].num_computed_tokens = engine.requests["a"].num_tokens = 20_000
    engine.step()
    engine.requests["a"].num_computed_tokens = engine.requests["a"].num_tokens = 40_000
    for _ in range(CONTEXT_STEPS):
        engine.step()
    assert {cell.context: cell.steps for cell in engine.samples().cells} == {8192: CONTEXT_STEPS, 32768: 1}


def test_when_nobody_digests_memory_is_bounded_and_no_step_or_token_is_forgotten() -> None:
    engine = Engine(stats=True)
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for _ in range(MAX_RECORDS + 9):
        engine.step(accepted={"a": 1})
    assert len(engine.parts.digest.records) == MAX_RECORDS
    samples = engine.samples()
    assert samples.excluded_steps == {"prefill": 1, "missed": 10}
    assert sum(cell.steps for cell in samples.cells) == MAX_RECORDS - 1
    assert samples.gauges.generation_tokens == 1 + 2 * (MAX_RECORDS + 9)


def test_tokens_of_a_missed_step_are_not_forgotten_whenever_they_are_digested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline_engine.steps.MAX_RECORDS", 1)
    engine = Engine(stats=True)

    class Read(Digest):
        """Is run between any two writes of the step loop."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name in {"missed_steps", "missed_tokens"} and value:
                self._admit()

    engine.parts.digest.__class__ = Read
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    engine.step(accepted={"a": 3})
    assert engine.samples().gauges.generation_tokens == 1 + 4


def test_a_record_that_cannot_be_digested_is_told_once_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for _ in range(2):
        engine.parts.digest.records.append((None,))
    engine.step()
    engine.parts.backend.housekeep()
    assert engine.parts.backend.state().policy_errors == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    samples = engine.parts.backend.samples(None)
    assert (samples.gauges.generation_tokens, engine.parts.digest.failures) == (2, 2)
    assert engine.hooks.active


def test_tokens_cut_off_behind_a_stop_are_not_counted() -> None:
    engine = Engine(stats=True)
    push(engine, (0, 3, 3, 3, 3))
    for name in ("a", "b"):
        engine.admit(name, prompt=2)
    engine.step(chunks={"a": 2, "b": 2})
    engine.step(accepted={"a": 2, "b": 1})
    output = engine.schedule()
    engine.cut = {"a": 1}
    engine.complete(output, accepted={"a": 3, "b": 1}, finished="a")
    samples = engine.samples()
    assert samples.gauges.generation_tokens == 2 + 5 + (1 + 2)
    assert [(cell.steps, cell.emitted) for cell in samples.cells] == [(2, 5 + 3)]
    assert [cell.accepted for cell in samples.acceptance] == [(4, 2, 1)]


def test_where_somebody_stopped_the_digest_adds_up_the_tokens_unless_too_many_steps_wait() -> None:
    engine = Engine(stats=True)
    for name in ("a", "b"):
        engine.admit(name, prompt=2)
    engine.step(chunks={"a": 2, "b": 2})
    for number in range(FEW_RECORDS + 1):
        name = f"late-{number}"
        engine.admit(name, prompt=1)
        engine.step(chunks={name: 1}, finished=name)
    told = [record[3] for record in engine.parts.digest.records]
    assert [type(tokens) for tokens in told] == [list] * FEW_RECORDS + [int] * 2
    assert engine.samples().gauges.generation_tokens == 2 + 3 * (FEW_RECORDS + 1)


def test_statistics_without_positions_are_left_and_drafts_counted_here() -> None:
    engine = Engine(stats=True)
    push(engine, (0, 2, 2, 2, 2))
    engine.count = lambda output, result: SimpleNamespace(  # type: ignore[method-assign]
        outputs=[SimpleNamespace(new_token_ids=[1, 1])],
        scheduler_stats=SimpleNamespace(spec_decoding_stats=SimpleNamespace(num_accepted_tokens=1)),
    )
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    for _ in range(4):
        engine.step(accepted={"a": 1})
    (cell,) = engine.samples().acceptance
    assert (cell.request_steps, cell.drafted, cell.accepted) == (4, (4, 4), (4, 0))


@given(
    st.lists(
        st.tuples(st.integers(1, MAX_NUM_SEQS), st.sampled_from(["", "", "", "push", "probe", "restore", "verify"])),
        max_size=200,
    ),
    st.integers(1, 2),
)
def test_the_short_way_of_a_step_answers_and_counts_as_the_policy_would(steps: list[tuple[int, str]], lag: int) -> None:
    engine = Engine(lag=lag)
    reference = LivePolicy(BOOT, MAX_K)
    for name in "abcd":
        engine.admit(name, prompt=2)
    for policy in (engine.parts.policy, reference):
        policy.choose(MAX_NUM_SEQS, MAX_NUM_SEQS)
    engine.hooks._census.count = lambda _, output: (len(output.num_scheduled_tokens),) * 2 + (0,)  # type: ignore[method-assign]
    for generation, (load, event) in enumerate(steps, start=1):
        for policy in (engine.parts.policy, reference):
            if event in {"push", "probe"}:
                probe = Probe(ks=(0, 4), settle_steps=2, interval_steps=20) if event == "probe" else None
                table = (0, *(5 - (generation * at) % 3 for at in range(1, MAX_NUM_SEQS + 1)))
                policy.swap(Policy(generation=generation, table=table, dwell_steps=1 + generation % 3, probe=probe))
            elif event == "restore":
                policy.restore()
            elif event == "verify":
                policy.verification = Verification.ADAPTIVE if generation % 2 else Verification.ALL
        output = engine.compose(dict.fromkeys("abcd"[:load], 1), ())
        output.scheduled_new_reqs = []
        engine.hooks.scheduled(engine, output)
        engine.complete(output)
        assert not engine.failures
        assert output.num_spec_tokens_to_schedule == reference.choose(load, load)[0]
        reference._burst_lost = engine.parts.policy._burst_lost
    assert engine.parts.policy.steps_by_k == reference.steps_by_k
    assert engine.parts.policy.probe_steps_by_k == reference.probe_steps_by_k
    assert engine.parts.policy.k_in_force == reference.k_in_force


def test_without_live_k_it_measures_and_leaves_the_k_alone() -> None:
    engine = Engine(live=False)
    push(engine, (0, 1, 1, 1, 1))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    assert engine.step().num_spec_tokens_to_schedule == BOOT[1]
    assert engine.samples().steps_by_k == {BOOT[1]: 2}


@pytest.mark.parametrize(
    ("broken", "steady"),
    [
        ("num_spec_tokens_to_schedule", False),  # in a steady step it is only written
        ("scheduled_new_reqs", False),
        ("scheduled_new_reqs", True),
        ("total_num_scheduled_tokens", False),
        ("total_num_scheduled_tokens", True),
    ],
)
def test_a_scheduler_of_another_shape_gets_its_boot_schedule_back_and_is_left_alone(broken: str, steady: bool) -> None:
    engine = Engine()
    push(engine, (0, 1, 1, 1, 1))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    output = SimpleNamespace(**{name: value for name, value in vars(engine.schedule()).items() if name != broken})
    if not steady:
        push(engine, (0, 1, 1, 1, 1))
    engine.hooks.scheduled(engine, output)
    assert [type(failure) for failure in engine.failures] == [AttributeError]
    assert engine.dynamic_sd_lookup == list(BOOT)
    assert engine.step().num_spec_tokens_to_schedule == BOOT[1]
    assert len(engine.failures) == 1


def test_a_result_of_another_shape_does_not_reach_the_engine_either() -> None:
    engine = Engine()
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    output = engine.schedule()
    engine.hooks.completed(engine, output, SimpleNamespace(req_id_to_index={}))
    engine.hooks.applied(engine, output, SimpleNamespace(sampled_token_ids=5), {})
    assert len(engine.failures) == 1


@pytest.mark.parametrize("broken", ["policy", "report"])
def test_a_failure_of_the_way_out_does_not_reach_the_engine_either(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    engine = Engine()
    push(engine, (0, 1, 1, 1, 1))
    engine.admit("a", prompt=2)
    engine.step(chunks={"a": 2})
    engine.step()
    assert engine.parts.policy.left, "steps are armed"
    monkeypatch.setattr(LivePolicy, "settle", fail)
    if broken == "report":
        engine.hooks._on_failure = fail
    push(engine, (0, 2, 2, 2, 2))
    for _ in range(3):
        engine.step()
        assert engine.step().num_spec_tokens_to_schedule == BOOT[1]
    assert engine.dynamic_sd_lookup == list(BOOT)
    assert len(engine.failures) + len(caplog.records) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "finish", "step", "push"]), st.integers(1, 9), st.integers(0, MAX_K)),
        max_size=80,
    ),
    st.booleans(),
)
def test_whatever_happens_the_counts_agree_with_counting_by_hand(
    happened: list[tuple[str, int, int]], stats: bool
) -> None:
    engine = Engine(stats=stats)
    left: dict[str, int] = {}
    emitted = drafts = drafted = accepted = steps = prompt_tokens = 0
    for number, (what, size, k) in enumerate(happened):
        name = str(number)
        if what == "admit" and len(engine.requests) < MAX_NUM_SEQS:
            engine.admit(name, prompt=size)
            left[name] = size
        elif what == "finish" and engine.requests:
            oldest = next(iter(engine.requests))
            engine.finish(oldest)
            left.pop(oldest, None)
        elif what == "push":
            push(engine, (k,) * (MAX_NUM_SEQS + 1), dwell_steps=size)
        elif what == "step" and engine.requests:
            chunks = {name: min(tokens, size) for name, tokens in left.items()}
            prompt_tokens += sum(chunks.values())
            finishing = [name for name, tokens in chunks.items() if tokens == left[name]]
            left = {name: tokens - chunks[name] for name, tokens in left.items() if tokens > chunks[name]}
            decoding = [request for request in engine.running if request.request_id not in chunks]
            taken = {request.request_id: min(request.drafts, k) for request in decoding}
            drafts += sum(request.drafts > 0 for request in decoding)
            drafted += sum(request.drafts for request in decoding)
            accepted += sum(taken.values())
            emitted += len(decoding) + len(finishing) + sum(taken.values())
            steps += 1
            output = engine.step(chunks=chunks, accepted=taken)
            assert 0 <= output.num_spec_tokens_to_schedule <= MAX_K
    samples = engine.samples()
    assert sum(cell.drafts for cell in samples.acceptance) == drafts
    assert sum(sum(cell.drafted) for cell in samples.acceptance) == drafted
    assert sum(sum(cell.accepted) for cell in samples.acceptance) == accepted
    assert samples.gauges.generation_tokens == emitted
    assert samples.gauges.prompt_tokens == prompt_tokens
    assert sum(cell.steps for cell in samples.cells) + sum(samples.excluded_steps.values()) == steps
    assert all(len(cell.drafted) <= MAX_K for cell in samples.acceptance)
