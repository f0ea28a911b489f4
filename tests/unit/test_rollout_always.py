"""The rollout's state machine under whatever happens in whatever order: what it never does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.status_rollout import Phase
from paceline_operator.rollout.decide import decide
from paceline_operator.rollout.situation import UNKNOWN, CanaryPod, Decision, Judgement, Track
from tests.unit.situations import BAD, FIELD, GOOD, NEW, OLD, ago, situation, watching

PODS = st.none() | st.builds(
    CanaryPod,
    ready_since=st.none() | st.integers(0, 4000).map(ago),
    unschedulable_since=st.none() | st.integers(0, 4000).map(ago),
    crash=st.sampled_from(["", "engine ended"]),
    refused=st.sampled_from(["", "memory: too little"]),
    weightless=st.sampled_from(["", "model: DiskFull"]),
    stuck=st.sampled_from(["", "engine: ErrImagePull"]),
)
JUDGEMENTS = st.sampled_from([UNKNOWN, GOOD, BAD])


class Cluster:
    """As much of a cluster as the state machine can tell apart; nothing is remembered but what status has."""

    def __init__(self, replicas: int, own: bool) -> None:
        self.s = situation(
            replicas=replicas, own=own, stable=Track(OLD.name, replicas, replicas, settled=True, renewed=True)
        )

    def step(self, pod: CanaryPod | None, judgement: Judgement, written: bool, seconds: int, back: bool) -> Decision:
        s = self.s
        at = s.now + timedelta(seconds=seconds)
        wanted = OLD if back else NEW
        there = s.stable.revision if s.stable else ""
        s = replace(
            s,
            now=at,
            wanted=wanted,
            fields=() if there == wanted.name else (FIELD,),
            pod=pod if s.canary else None,
            judgement=judgement if s.canary else UNKNOWN,
            watched_seconds=(at - pod.ready_since).total_seconds() if s.canary and pod and pod.ready_since else 0.0,
        )
        decision = decide(s)
        moved = s.stable is not None and decision.stable.revision != s.stable.revision
        stable = Track(
            decision.stable.revision,
            decision.stable.replicas,
            decision.stable.replicas,
            settled=not moved,
            renewed=not moved,
        )
        canary = (
            Track(decision.canary.revision, 1, int(bool(pod and pod.ready_since)), True, True)
            if decision.canary
            else None
        )
        self.s = replace(s, stable=stable, canary=canary, memory=decision.memory if written else s.memory)
        return decision


@given(
    replicas=st.integers(1, 4),
    own=st.booleans(),
    steps=st.lists(st.tuples(PODS, JUDGEMENTS, st.booleans(), st.integers(0, 2000), st.booleans()), max_size=25),
)
def test_whatever_happens_pods_are_never_lost_nor_given_what_failed(
    replicas: int, own: bool, steps: list[tuple[CanaryPod | None, Judgement, bool, int, bool]]
) -> None:
    """`written` False: the process was killed between its writes to children and that to status."""
    cluster = Cluster(replicas, own)
    for pod, judgement, written, seconds, back in steps:
        before = cluster.s
        decision = cluster.step(pod, judgement, written, seconds, back)
        canary = decision.canary.replicas if decision.canary else 0
        assert decision.stable.replicas + canary >= replicas
        assert decision.stable.replicas >= replicas - 1
        assert canary <= 1
        assert decision.stable.revision in (before.stable.revision if before.stable else "", cluster.s.wanted.name)
        failed = {one.revision for one in before.memory.failed}
        if decision.stable.revision in failed and before.stable:
            assert before.stable.revision == decision.stable.revision, "what failed is not rolled out"
        if (
            own
            and before.stable
            and decision.stable.revision != before.stable.revision
            and decision.stable.revision == NEW.name
        ):
            assert judgement.good is True, "no proposal is promoted without a good canary"
        again = decide(cluster.s)
        if (
            decision.memory.phase in (Phase.STEADY, Phase.BLOCKED, Phase.ROLLED_BACK)
            and written
            and decision.after is None
        ):
            assert (again.memory, again.events) == (decision.memory, ()), "at rest a second look changes nothing"


@given(PODS, JUDGEMENTS, st.booleans(), st.booleans())
def test_a_decision_is_a_function_of_what_it_is_given(
    pod: CanaryPod | None, judgement: Judgement, own: bool, in_place: bool
) -> None:
    s = watching(pod, in_place=in_place, judgement=judgement, own=own)
    assert decide(s) == decide(s)
