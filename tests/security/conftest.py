"""An operator for these tests alone, with a serving that is well: what is done to others must not reach it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.operators import Operator, Place, account, start, wait_for_leader
from tests.harness.controlplane import ControlPlane


@pytest.fixture(scope="module")
def operator(crds: ControlPlane, module_namespace: str) -> Iterator[Operator]:
    """For the namespace of the module alone."""
    name = f"operator-{module_namespace}"
    started = start(crds, name, module_namespace, account(crds, module_namespace), watch=module_namespace)
    wait_for_leader(started)
    yield started
    started.daemon.stop()
    assert "Traceback" not in started.log(), started.log()


@pytest.fixture(scope="module")
def place(crds: ControlPlane, module_namespace: str) -> Place:
    """That namespace."""
    return Place(crds, module_namespace)
