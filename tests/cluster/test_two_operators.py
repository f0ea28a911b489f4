"""Nothing is written when nothing changes; of two operators one acts; one that dies is followed."""

from __future__ import annotations

import pytest

from paceline_operator import naming
from paceline_operator.leadership import Terms
from tests.cluster.operators import PATIENCE_SECONDS, Operator, start, wait_for_leader
from tests.cluster.quiet import MINUTE_SECONDS, QuietMinute

pytestmark = pytest.mark.cluster

MARGIN_SECONDS = 3.0
"""For requests and processes on a busy machine."""


@pytest.fixture
def minute(quiet_minute: QuietMinute) -> QuietMinute:
    quiet_minute.wait()
    return quiet_minute


def test_nothing_is_written_in_a_minute_in_which_nothing_changes(minute: QuietMinute) -> None:
    assert minute.written() == [], "renewals of the Leases alone"
    renewals = MINUTE_SECONDS / Terms().renew
    assert renewals / 2 <= minute.renewals()["idle"] <= renewals + 2
    assert minute.writes_after == minute.writes_before, "the operators' own count"
    first = minute.sights[0].versions
    assert all(sight.versions == first for sight in minute.sights)
    servings = {"idle/SpeculativeServing/chat", "idle/SpeculativeServing/rich", "two/SpeculativeServing/chat"}
    assert servings | {"idle/Deployment/chat", "two/Deployment/chat"} <= set(first)
    assert minute.passes >= MINUTE_SECONDS / 3, "and not because nobody looked: engines were read all the time"


def test_of_two_operators_one_acts_and_nothing_flaps(minute: QuietMinute) -> None:
    assert len(minute.sights) >= MINUTE_SECONDS / 3
    (leads,) = {sight.leads for sight in minute.sights}
    assert sorted(leads) == [False, True]
    (holder,) = {sight.holder for sight in minute.sights}
    assert holder == ("first", "second")[leads.index(True)]
    assert len({sight.transitions for sight in minute.sights}) == 1
    idle = minute.pair[leads.index(False)]
    assert idle.writes() == {}
    assert idle.healthy()
    assert idle.metrics()[("paceline_objects",)] == 0.0


def _pair(minute: QuietMinute) -> tuple[Operator, Operator]:
    """(leader, other)"""
    leader, _ = wait_for_leader(*minute.pair)
    return leader, next(operator for operator in minute.pair if operator is not leader)


def test_one_that_is_killed_is_followed_within_the_duration_of_its_lease(minute: QuietMinute) -> None:
    leader, other = _pair(minute)
    place, terms = minute.two, Terms()
    before, transitions = minute.versions(), place.lease()["leaseTransitions"]
    leader.daemon.process.kill()
    leader.daemon.process.wait()
    _, seconds = wait_for_leader(other, seconds=PATIENCE_SECONDS)
    assert terms.duration - terms.renew - MARGIN_SECONDS <= seconds <= terms.duration + terms.poll + MARGIN_SECONDS
    assert place.lease()["leaseTransitions"] == transitions + 1
    place.wait("its first pass", lambda: other.writes())
    assert minute.versions() == before, "what is in order stays as it is"
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"replicas": 2}})
    place.wait("the successor to act", lambda: place.child("Deployment", "chat")["spec"]["replicas"] == 2)
    minute.pair.remove(leader)


def test_one_that_is_stopped_hands_over_at_once(minute: QuietMinute) -> None:
    leader, _ = wait_for_leader(*minute.pair)
    successor = start(minute.cluster, "third", "two", minute.cluster.pki / "operator-two.kubeconfig", watch="two")
    minute.two.wait("the third to be up", successor.healthy)
    leader.daemon.process.terminate()
    _, seconds = wait_for_leader(successor)
    assert seconds <= Terms().poll + MARGIN_SECONDS
    assert leader.daemon.process.wait(timeout=PATIENCE_SECONDS) == 0
    assert "Traceback" not in leader.log()
