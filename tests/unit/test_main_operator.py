"""The glue around kopf: what wakes whom, and when the process calls itself ill."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import kopf
import pytest
from kubernetes import client

from paceline_operator import main, naming, process, settings
from paceline_operator.clients.kube import ForbiddenError, KubeError, UnavailableError
from paceline_operator.clock import FakeClock

DEMO = (naming.KIND_SERVING, "team", "demo")


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> process.Operator:
    (tmp_path / "keys").write_text("k" * 40)
    configuration = client.Configuration(host="http://127.0.0.1:9")
    monkeypatch.setattr(process, "connect", lambda: client.ApiClient(configuration))
    monkeypatch.setattr(process, "SystemClock", FakeClock)
    environment = {"PACELINE_MASTER_KEY_FILE": str(tmp_path / "keys"), "PACELINE_WATCH_NAMESPACES": "team"}
    return process.Operator(settings.read(environment))


def meta(name: str = "demo", namespace: str = "team", **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": "u", "generation": 1, "resourceVersion": "1", **more}


def child(serving: str) -> dict[str, Any]:
    return meta(f"{serving}-0", labels={naming.LABEL_SERVING: serving})


def test_servings_are_added_and_children_only_wake(operator: process.Operator) -> None:
    operator.child_event(child("demo"))
    assert DEMO not in operator.fleet
    operator.object_event(naming.KIND_SERVING, None, meta())
    operator.object_event(naming.KIND_SERVING, "ADDED", meta(namespace="elsewhere"))
    operator.child_event(child("other"))
    for odd in ({"name": "demo", "namespace": "team"}, {"labels": {naming.LABEL_SERVING: "demo"}}, {"labels": None}):
        operator.child_event(odd)
    assert DEMO in operator.fleet
    assert (naming.KIND_SERVING, "elsewhere", "demo") not in operator.fleet


def test_a_childs_event_wakes_its_serving_and_no_other_object_of_that_name(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (naming.KIND_SERVING, naming.KIND_EXPERIMENT, naming.KIND_PROFILE):
        operator.object_event(kind, "ADDED", meta())
        assert (kind, "team", "demo") in operator.fleet
    woken: list[Any] = []
    monkeypatch.setattr(operator.fleet, "wake", woken.append)
    operator.child_event(child("demo"))
    assert woken == [DEMO]


@pytest.mark.parametrize(
    ("kind", "change", "wakes"),
    [
        ("MODIFIED", {"resourceVersion": "2", "managedFields": [1]}, False),
        ("MODIFIED", {"generation": 2}, True),
        ("MODIFIED", {"annotations": {"nudge": "1"}}, True),
        ("MODIFIED", {"labels": {"a": "b"}}, True),
        ("MODIFIED", {"deletionTimestamp": "t"}, True),
        ("MODIFIED", {"uid": "another"}, True),
        ("DELETED", {}, True),
        ("ADDED", {}, True),
        (None, {}, False),
        (None, {"generation": 2}, True),
    ],
)
def test_all_but_a_change_of_status_alone_wakes(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch, kind: str | None, change: dict[str, Any], wakes: bool
) -> None:
    operator.object_event(naming.KIND_SERVING, "ADDED", meta())
    woken: list[Any] = []
    monkeypatch.setattr(operator.fleet, "wake", woken.append)
    operator.object_event(naming.KIND_SERVING, kind, meta(**change))
    assert woken == [DEMO] * wakes


def test_a_listed_object_that_was_given_up_is_taken_up_again(operator: process.Operator) -> None:
    operator.object_event(naming.KIND_SERVING, "ADDED", meta())
    del operator.fleet._members[DEMO]
    operator.object_event(naming.KIND_SERVING, None, meta())
    assert DEMO in operator.fleet


def test_a_deleted_object_that_comes_back_the_same_wakes(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.object_event(naming.KIND_SERVING, "ADDED", meta())
    operator.object_event(naming.KIND_SERVING, "DELETED", meta())
    woken: list[Any] = []
    monkeypatch.setattr(operator.fleet, "wake", woken.append)
    operator.object_event(naming.KIND_SERVING, "MODIFIED", meta())
    assert woken == [DEMO]


async def test_who_leads_again_believes_no_child_though_nobody_else_did(operator: process.Operator) -> None:
    operator.object_event(naming.KIND_SERVING, "ADDED", meta())
    owner = ("team", "demo")
    operator._hands.versions.tell(owner, "Service", {"name": "demo", "resourceVersion": "1"}, gone=False)
    told = operator._hands.versions.of(owner)
    await operator._lead(anew=False)
    assert operator._hands.versions.of(owner) != told
    await operator._yield()


async def test_a_late_pass_a_silent_loop_and_a_lost_claim_are_told(operator: process.Operator) -> None:
    clock: FakeClock = operator._clock  # type: ignore[assignment]
    assert operator.check() == ""
    operator.object_event(naming.KIND_SERVING, "ADDED", meta())
    operator.fleet.start()
    clock.advance(process.SILENCE_LIMIT_SECONDS + 1)
    assert "event loop" in operator.check()
    operator._beat = clock.monotonic()
    assert operator.check() == ""
    clock.advance(process.OVERDUE_LIMIT_SECONDS)
    operator._beat = clock.monotonic()
    assert "late" in operator.check()
    await operator.fleet.stop()
    assert operator.check() == ""
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    operator._tasks = [ended]
    assert "Lease" in operator.check()
    await operator.stop()


async def test_an_api_server_out_of_reach_makes_it_unready_and_one_that_refuses_does_not(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock: FakeClock = operator._clock  # type: ignore[assignment]

    def answering(error: KubeError) -> None:
        async def served(_: str) -> frozenset[str]:
            raise error

        monkeypatch.setattr(operator._kube, "served", served)

    answering(UnavailableError(0, "NoAnswer", "refused"))
    clock.advance(process.UNREACHABLE_SECONDS + 1)
    with pytest.raises(UnavailableError):
        await operator._served()
    operator._beat = clock.monotonic()
    assert "has not answered for 31 s" in operator.check_ready()
    assert operator.check() == "", "a restart would not help"
    answering(ForbiddenError(403, "Forbidden", "no"))
    with pytest.raises(ForbiddenError):
        await operator._served()
    assert operator.check_ready() == ""
    await operator.stop()


def test_the_log_level_is_that_of_our_own_log() -> None:
    ours = logging.getLogger("paceline_operator")
    before = ours.level
    try:
        main.set_level("DEBUG")
        assert ours.isEnabledFor(logging.DEBUG)
        main.set_level("ERROR")
        assert not ours.isEnabledFor(logging.INFO)
    finally:
        ours.setLevel(before)


def test_kopf_is_never_out_of_patience() -> None:
    pauses = list(itertools.islice(main.Patience(), 1000))
    assert pauses[:4] == [1, 1, 2, 3]
    assert max(pauses) == pauses[-1] == 30
    assert not hasattr(main.Patience(), "__len__"), "kopf counts what has a length"


def test_an_unusable_configuration_ends_the_process_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_MASTER_KEY_FILE", raising=False)
    monkeypatch.setattr(kopf, "configure", lambda **_: None)
    with pytest.raises(SystemExit, match="PACELINE_MASTER_KEY_FILE"):
        main.main()


async def test_a_port_in_use_ends_the_start_with_its_reason(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("Address already in use")

    monkeypatch.setattr(process.health, "serve", refuse)
    with pytest.raises(kopf.PermanentError, match="Address already in use"):
        await main.startup(memo=kopf.Memo(operator=operator), settings=kopf.OperatorSettings())
    assert not operator.started


BOTH, ONE = frozenset(process.PLURALS[:2]), frozenset(process.PLURALS[:1])


@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        ((BOTH, BOTH), False),
        ((BOTH, None, BOTH | {"somebodyelses"}), False),
        ((BOTH, ONE), True),
        ((BOTH, None, ONE), True),
        ((None, BOTH), True),  # kopf may have looked before they came
    ],
)
async def test_a_kind_that_comes_or_goes_ends_the_run_and_a_failed_look_does_not(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch, looks: tuple[frozenset[str] | None, ...], ends: bool
) -> None:
    left, over = list(looks), asyncio.Event()

    class Looked:
        kinds_changed = 0

        async def serves(self, _: str) -> bool:
            return False

        async def served(self, _: str) -> frozenset[str]:
            if not left:
                over.set()
                await asyncio.Event().wait()
            answer = left.pop(0)
            if answer is None:
                raise UnavailableError(0, "NoAnswer", "down")
            return answer

        async def close(self) -> None:
            pass

    await _looking(operator, monkeypatch, Looked(), over)
    assert operator.stop_flag.is_set() is ends


async def _looking(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch, kube: object, over: asyncio.Event
) -> None:
    """Run it over `kube`, without a pause between two looks at kinds, until it is over."""
    monkeypatch.setattr(process, "KINDS_SECONDS", 0.0)
    monkeypatch.setattr(process.health, "serve", lambda *_: None)
    monkeypatch.setattr(operator, "_kube", kube)
    await operator.start()
    await over.wait()
    await operator.stop()


async def test_an_optional_kind_that_went_and_came_between_two_looks_wakes_all(
    operator: process.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken, over = [], asyncio.Event()

    class Looked:
        kinds_changed = 0
        looks = 0

        async def serves(self, _: str) -> bool:
            return True  # at every look of the operator; a pass saw something else between the second and the third

        async def served(self, _: str) -> frozenset[str]:
            self.looks += 1
            self.kinds_changed = 2 if self.looks > 2 else 0
            if self.looks > 4:
                over.set()
                await asyncio.Event().wait()
            return BOTH

        async def close(self) -> None:
            pass

    monkeypatch.setattr(operator.fleet, "wake_all", lambda: woken.append(True))
    await _looking(operator, monkeypatch, Looked(), over)
    assert woken == [True]


def test_no_handler_is_of_a_kind_that_writes() -> None:
    """Only events: anything else would bring finalizers, annotations and patches."""
    registry = kopf.get_default_registry()
    changing: Any = registry._changing._handlers
    spawning: Any = registry._spawning._handlers
    assert (changing, spawning) == ([], [])
    assert len(registry._watching._handlers) == len(process.PLURALS)
