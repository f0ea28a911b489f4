"""Who wrote replicas, and whether that is somebody to step back for."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.status_scaling import ScalingStatus
from paceline_operator.naming import FIELD_MANAGER
from paceline_operator.scaling.writers import Writer, foreign, last

NOON, LATER = "2026-01-01T12:00:00Z", "2026-01-01T12:05:00Z"
BY_US = Writer(FIELD_MANAGER, "scale", LATER)
BY_HAND = Writer("kubectl", "scale", LATER)
APPLIED = Writer("kubectl-client-side-apply", "", NOON)


def entry(writer: Writer, field: str = "f:replicas") -> dict[str, Any]:
    body = {"manager": writer.manager, "operation": "Update", "time": writer.at, "fieldsV1": {"f:spec": {field: {}}}}
    return {**body, "subresource": writer.subresource} if writer.subresource else body


def thing(*entries: Any) -> dict[str, Any]:
    return {"metadata": {"managedFields": list(entries)}}


def held(writer: Writer, desired: int = 2) -> ScalingStatus:
    at = None if writer.ours else writer.at
    return ScalingStatus(desired_replicas=desired, reason="WithinTarget", at=NOON, writer=writer.manager, written_at=at)


def test_the_last_writer_is_found_with_the_door_it_came_through() -> None:
    status = {**entry(BY_HAND, "f:other"), "manager": "status", "subresource": "status"}
    assert last(thing(entry(APPLIED), entry(BY_HAND), status)) == BY_HAND
    assert last(thing(entry(APPLIED), entry(BY_HAND, "f:suspend"))) == APPLIED
    assert last(thing(entry(BY_HAND), entry(Writer(FIELD_MANAGER, "scale", NOON)))) == Writer(
        FIELD_MANAGER, "scale", NOON
    ), "of two that hold the same value, we are one"


def test_nobody_is_noted() -> None:
    assert last({}) is None
    assert last(thing({"manager": "x"}, {"manager": "y", "fieldsV1": {"f:spec": {}}})) is None
    assert foreign(None, 3, held(BY_US)) is None


def test_whoever_wrote_before_the_mode_was_on_is_accepted() -> None:
    assert foreign(BY_HAND, 7, None) is None
    assert foreign(BY_HAND, 7, held(BY_HAND, desired=7)) is None


def test_an_accepted_writer_who_writes_again_is_foreign_though_the_server_notes_no_time() -> None:
    autoscaler = Writer("kube-controller-manager", "scale", "")
    assert foreign(autoscaler, 2, held(autoscaler)) is None
    assert foreign(autoscaler, 3, held(autoscaler)) == autoscaler
    known = held(autoscaler).model_copy(update={"foreign_writer": autoscaler.manager})
    assert foreign(autoscaler, 2, known) == autoscaler, "it is at work, whatever it writes"


def test_a_write_through_scale_by_somebody_else_is_foreign_whatever_it_wrote() -> None:
    assert foreign(BY_HAND, 2, held(BY_US)) == BY_HAND
    assert foreign(BY_HAND, 2, held(APPLIED)) == BY_HAND
    again = Writer("kubectl", "scale", NOON)
    assert foreign(BY_HAND, 2, held(again)) == BY_HAND, "the same person, another time"
    assert foreign(BY_US, 9, held(BY_HAND)) is None


def test_a_manifest_is_foreign_only_where_it_brings_another_value() -> None:
    later = Writer("kubectl-client-side-apply", "", LATER)
    assert foreign(later, 2, held(BY_US)) is None
    assert foreign(later, 3, held(BY_US)) == later


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["manager", "subresource", "time", "operation"])
fields = st.just({"f:spec": {"f:replicas": {}}}) | st.dictionaries(st.just("f:spec"), anything)


@given(st.lists(st.builds(lambda one, two: {**one, "fieldsV1": two}, st.dictionaries(names, anything), fields)))
def test_no_entry_breaks_it(entries: list[dict[str, Any]]) -> None:
    writer = last(thing(*entries))
    noted = [one for one in entries if isinstance(one["fieldsV1"].get("f:spec"), dict)]
    assert (writer is None) == (not any("f:replicas" in one["fieldsV1"]["f:spec"] for one in noted))
