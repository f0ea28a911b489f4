"""A view that is older than this process's own last write of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import naming
from paceline_operator.clients.kube import UnavailableError
from paceline_operator.newest import BELIEVED_SECONDS, Newest
from tests.world import SPEC, World


def raw(version: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": "demo", "resourceVersion": version}}


def is_old(newest: Newest, version: Any, now: float = 0.0) -> bool:
    return bool(newest.why_old(raw(version), now))


@given(st.integers(1, 10**30), st.integers(1, 10**30))
def test_versions_are_compared_as_numbers(written: int, read: int) -> None:
    newest = Newest()
    assert not is_old(newest, str(read)), "nothing was written"
    newest.wrote(raw(str(written)))
    assert is_old(newest, str(read)) is (read < written)


@given(st.none() | st.text() | st.integers(), st.none() | st.text() | st.integers())
def test_versions_that_are_no_numbers_tell_nothing(written: Any, read: Any) -> None:
    newest = Newest()
    newest.wrote(raw(written))
    both = all(isinstance(one, str) and one.isascii() and one.isdecimal() for one in (written, read))
    assert not is_old(newest, read) or both
    Newest().wrote({"metadata": {}})


@given(st.lists(st.tuples(st.integers(90, 110), st.floats(0.1, 30)), max_size=40))
def test_only_where_etcd_went_back_is_it_believed_and_soon_enough(looks: list[tuple[int, float]]) -> None:
    newest, now, since = Newest(), 0.0, None
    newest.wrote(raw("100"))
    for version, seconds in looks:
        now += seconds
        if version >= 100:
            assert not is_old(newest, str(version), now)
            since = None
            continue
        since = now if since is None else since
        assert is_old(newest, str(version), now) is (now - since < BELIEVED_SECONDS)
        if now - since >= BELIEVED_SECONDS:
            return


async def test_a_pass_decides_nothing_by_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.apply(SPEC)
    await world.serving.run(full=True)
    there = world.kube.find(naming.KIND_SERVING, "demo")
    old = copy.deepcopy(there)
    there["spec"]["replicas"], there["metadata"]["resourceVersion"] = 3, "1000"
    there["metadata"]["generation"] += 1
    await world.serving.run(full=True)
    assert world.kube.find("Deployment", "demo")["spec"]["replicas"] == 3
    status, get = copy.deepcopy(there["status"]), world.kube.get

    async def behind(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return copy.deepcopy(old) if kind == naming.KIND_SERVING else await get(kind, namespace, name)

    world.kube.get = behind  # type: ignore[method-assign]
    world.kube.writes.clear()
    with pytest.raises(UnavailableError, match="OldView"):
        await world.serving.run(full=True)
    assert world.kube.writes == []
    world.kube.get = get  # type: ignore[method-assign]
    await world.serving.run(full=True)
    assert world.kube.find(naming.KIND_SERVING, "demo")["status"] == status
