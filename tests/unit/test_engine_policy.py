"""The policy on the step path: whatever is pushed and whatever the load does, the k it answers is a legal one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.policy import MAX_BURST_LENGTHS, LivePolicy, Phase
from paceline_engine.protocol import MAX_PROBE_SHARE, Policy, Probe
from tests.unit.engine_parts import BOOT, MAX_K, MAX_NUM_SEQS

ks = st.integers(0, MAX_K)
tables = st.tuples(*[ks] * (MAX_NUM_SEQS + 1))
loads = st.integers(1, MAX_NUM_SEQS)


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    settle, burst = draw(st.integers(1, 6)), draw(st.integers(8, 20))
    shortest = max(20, int((settle + burst) / MAX_PROBE_SHARE) + 1)
    return Probe(
        ks=tuple(draw(st.lists(ks, min_size=1, max_size=6))),
        settle_steps=settle,
        burst_steps=burst,
        interval_steps=draw(st.integers(shortest, shortest + 80)),
    )


policies = st.builds(
    Policy,
    generation=st.integers(1, 1000),
    table=tables,
    probe=st.none() | probes(),
    dwell_steps=st.integers(1, 12),
)


def flat(k: int, generation: int = 1, **fields: object) -> Policy:
    return Policy(generation=generation, table=(k,) * (MAX_NUM_SEQS + 1), **fields)  # type: ignore[arg-type]


def test_until_the_first_push_it_answers_as_the_engines_own_list_by_scheduled_requests() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    for scheduled in range(1, MAX_NUM_SEQS + 1):
        assert policy[scheduled] == BOOT[scheduled]
        assert policy.choose(scheduled, 1) == (BOOT[scheduled], Phase.TABLE)
    assert policy.plan.generation == 0
    assert len(policy) == len(BOOT)


@given(st.integers(-5, 10_000))
def test_no_index_can_end_the_scheduler(scheduled: int) -> None:
    assert LivePolicy(BOOT, MAX_K)[scheduled] in BOOT


@given(st.lists(st.tuples(st.none() | policies, loads, st.integers(0, 3)), max_size=400))
def test_every_k_is_legal_and_counted_once(steps: list[tuple[Policy | None, int, int]]) -> None:
    policy = LivePolicy(BOOT, MAX_K)
    for pushed, sampling, prefilling in steps:
        if pushed:
            policy.swap(pushed)
        k, phase = policy.choose(min(sampling + prefilling, MAX_NUM_SEQS), sampling)
        assert 0 <= k <= MAX_K
        assert policy.taken
        assert policy.k_in_force == k
        if phase is not Phase.TABLE:
            probe = policy.plan.probe
            assert probe is not None
            assert k in probe.ks
    assert sum(policy.steps_by_k) + sum(policy.probe_steps_by_k) == len(steps)


def test_a_boot_schedule_out_of_range_is_cut_to_range() -> None:
    assert LivePolicy((9, 9, -1), 5).boot == (5, 5, 0)


def test_a_push_is_in_force_at_the_next_step_whatever_its_dwell() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.choose(1, 1)
    for generation, k in enumerate((1, 0, 3, 5), start=1):
        policy.swap(flat(k, generation, dwell_steps=100))
        assert not policy.taken
        assert policy.choose(1, 1) == (k, Phase.TABLE)
        assert policy.taken


def test_lookup_is_by_the_requests_that_sample_not_by_those_scheduled() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(Policy(generation=1, table=(0, 5, 4, 3, 2)))
    assert policy.choose(4, 1) == (5, Phase.TABLE)


@given(table=tables, dwell=st.integers(1, 10), load=st.lists(loads, min_size=1, max_size=200))
def test_k_follows_the_load_only_after_dwell_steps_that_agree(
    table: tuple[int, ...], dwell: int, load: list[int]
) -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(Policy(generation=1, table=table, dwell_steps=dwell))
    held = table[load[0]]
    run: list[int] = []
    for n in load:
        wanted = table[n]
        if wanted == held or (run and (wanted > held) != (run[-1] > held)):
            run = []
        if wanted != held:
            run.append(wanted)
        if len(run) == dwell:
            held, run = min(run, key=lambda k, held=held: abs(k - held)), []  # type: ignore[misc]
        assert policy.choose(n, n)[0] == held


def test_a_load_between_two_buckets_does_not_pin_k_to_a_third() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(Policy(generation=1, table=(0, 5, 2, 1, 0), dwell_steps=4))
    assert policy.choose(1, 1)[0] == 5
    assert [policy.choose(n, n)[0] for n in (2, 3, 2, 3, 2, 3)] == [5, 5, 5, 2, 2, 2]


@given(probe=probes(), table_k=ks)
def test_bursts_settle_then_count_at_one_k_in_turn_and_take_no_more_than_their_share(
    probe: Probe, table_k: int
) -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(flat(table_k, probe=probe))
    length = probe.settle_steps + probe.burst_steps
    cycle = [policy.choose(1, 1) for _ in range(probe.interval_steps)]
    others = [k for k in probe.ks if k != table_k]
    quiet = probe.interval_steps - length
    assert cycle[:quiet] == [(table_k, Phase.TABLE)] * quiet
    if not others:
        assert cycle[quiet:] == [(table_k, Phase.TABLE)] * length
        return
    assert (
        cycle[quiet:]
        == [(others[0], Phase.SETTLING)] * probe.settle_steps + [(others[0], Phase.PROBE)] * probe.burst_steps
    )
    following = [policy.choose(1, 1)[0] for _ in range(probe.interval_steps * len(others))]
    assert following[probe.interval_steps - 1 :: probe.interval_steps] == [*others[1:], others[0]]
    assert following[:: probe.interval_steps] == [table_k] * len(others)
    assert policy.probe_steps_by_k[table_k] == 0


@given(probe=probes(), lost=st.lists(st.booleans(), max_size=400))
def test_a_burst_goes_on_until_its_steps_have_counted_or_a_bound_and_takes_no_more_than_its_share(
    probe: Probe, lost: list[bool]
) -> None:
    policy = LivePolicy((MAX_K + 1,) * 5, MAX_K + 1)
    policy.swap(flat(MAX_K + 1, probe=probe))
    length = probe.settle_steps + probe.burst_steps
    bursts: list[list[bool]] = []
    before, steps, probing = Phase.TABLE, 0, 0
    for step in range(20 * probe.interval_steps):
        _, phase = policy.choose(1, 1)
        steps += 1
        probing += phase is not Phase.TABLE
        if phase is Phase.SETTLING and before is not Phase.SETTLING:
            bursts.append([])
        if phase is Phase.PROBE:
            counts = not (lost and lost[step % len(lost)])
            bursts[-1].append(counts)
            if not counts:
                policy.lost()
        before = phase
    for counted in bursts[:-1]:
        assert sum(counted) == probe.burst_steps or len(counted) + probe.settle_steps == MAX_BURST_LENGTHS * length
        assert sum(counted) <= probe.burst_steps
    assert probing <= steps * length / probe.interval_steps + MAX_BURST_LENGTHS * length


@given(probe=probes(), lost=st.lists(st.booleans(), max_size=40), pushes=st.lists(st.integers(1, 120), min_size=1))
def test_pushes_that_take_the_probe_away_and_bring_it_back_do_not_make_its_share_larger(
    probe: Probe, lost: list[bool], pushes: list[int]
) -> None:
    policy = LivePolicy((MAX_K + 1,) * 5, MAX_K + 1)
    length = probe.settle_steps + probe.burst_steps
    steps = probing = 0
    for generation in range(1, 40):
        policy.swap(flat(MAX_K + 1, generation, probe=probe if generation % 2 else None))
        for _ in range(pushes[generation % len(pushes)] if generation % 2 else 1):
            _, phase = policy.choose(1, 1)
            probing += phase is not Phase.TABLE
            if phase is Phase.PROBE and lost and lost[steps % len(lost)]:
                policy.lost()
            steps += 1
            assert probing <= steps * length / probe.interval_steps + MAX_BURST_LENGTHS * length


def test_what_a_burst_took_too_much_is_owed_in_steps_of_the_probe_that_follows() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(flat(3, probe=Probe(ks=(0,), settle_steps=2, burst_steps=8, interval_steps=10_000)))
    while policy.choose(1, 1)[1] is not Phase.PROBE:
        pass
    for _ in range(13):
        policy.lost()
        policy.choose(1, 1)
    policy.swap(flat(3, 2, probe=Probe(ks=(0,), settle_steps=2, burst_steps=8, interval_steps=40)))
    phases = [policy.choose(1, 1)[1] for _ in range(200)]
    assert phases.index(Phase.SETTLING) == 30 + 6 * 3


def test_a_table_of_zeros_is_probed_at_another_k_without_further_pushes_where_the_policy_says_so() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(flat(0))
    assert [policy.choose(1, 1)[0] for _ in range(1000)] == [0] * 1000
    policy.swap(flat(0, 2, probe=Probe(ks=(2,), interval_steps=100)))
    for _ in range(100_000):
        policy.choose(1, 1)
    assert policy.probe_steps_by_k[2] == 10_000


def test_pushing_the_same_probe_more_often_than_its_interval_does_not_starve_it() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    probe = Probe(ks=(5, 1), interval_steps=40)
    for generation in range(1, 41):
        policy.swap(flat(3, generation, probe=probe))
        for _ in range(10):
            policy.choose(1, 1)
    assert policy.probe_steps_by_k == [0, 50, 0, 0, 0, 50]


def test_another_probe_ends_a_running_burst_and_none_ends_probing() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(flat(3, probe=Probe(ks=(0,), interval_steps=20)))
    phases = [policy.choose(1, 1)[1] for _ in range(11)]
    assert phases[-1] is Phase.SETTLING
    policy.swap(flat(3, 2))
    assert [policy.choose(1, 1) for _ in range(100)] == [(3, Phase.TABLE)] * 100


def test_dwell_goes_on_below_a_burst() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(Policy(generation=1, table=(0, 5, 1, 1, 1), dwell_steps=4, probe=Probe(ks=(0,), interval_steps=20)))
    for _ in range(10):
        assert policy.choose(1, 1)[0] == 5
    assert [policy.choose(2, 2)[0] for _ in range(11)] == [0] * 10 + [1]


def test_restoring_goes_back_to_the_boot_schedule() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    policy.swap(flat(0))
    assert policy.choose(1, 1)[0] == 0
    policy.restore()
    assert policy.choose(1, 1)[0] == BOOT[1]
    assert policy.plan.generation == 0
