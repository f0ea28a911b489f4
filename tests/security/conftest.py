"""An operator for these tests alone, with a serving that is well: what is done to others must not reach it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.operators import Operator, Place, account, start, wait_for_leader
from tests.harness.controlplane import ControlPlane


@pytest.fixture(scope="session")
def place(crds: ControlPlane) -> Iterator[Place]:
    """A namespace of theirs."""
    name = f"security-{secrets.token_hex(3)}"
    crds.kubectl("create", "namespace", name)
    yield Place(crds, name)
    crds.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def operator(crds: ControlPlane, place: Place) -> Iterator[Operator]:
    """For that namespace alone."""
    name = place.namespace
    started = start(crds, f"operator-{name}", name, account(crds, name), watch=name)
    wait_for_leader(started)
    yield started
    started.daemon.stop()
    assert "Traceback" not in started.log(), started.log()
