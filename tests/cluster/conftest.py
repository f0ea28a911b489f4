"""An operator and a place for it, and a minute of rest in a control plane of its own.

What takes a minute by its nature starts with the first test that wants it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.operators import Operator, Place, account, start, wait_for_leader
from tests.cluster.quiet import QuietMinute
from tests.cluster.relay import Relay
from tests.harness.controlplane import ControlPlane


@pytest.fixture(scope="session")
def quiet_minute(control_plane: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuietMinute]:
    """A minute in which nothing is asked of operators, watched while other tests run.

    After `control_plane`, so that the programs are built.
    """
    minute = QuietMinute(tmp_path_factory.mktemp("quiet"))
    minute.start()
    yield minute
    minute.end()


@pytest.fixture(scope="module")
def operator(crds: ControlPlane, module_namespace: str) -> Iterator[Operator]:
    """For all namespaces, with the chart's ClusterRole."""
    started = start(crds, f"operator-{module_namespace}", module_namespace, account(crds, module_namespace))
    wait_for_leader(started)
    yield started
    started.daemon.stop()
    assert "Traceback" not in started.log(), started.log()


@pytest.fixture
def place(operator: Operator, crds: ControlPlane, namespace: str) -> Place:
    """A namespace of this test that `operator` looks after."""
    return Place(crds, namespace)


@pytest.fixture
def relay(crds: ControlPlane, namespace: str) -> Iterator[Relay]:
    """A namespace of this test and its own operators, to be killed."""
    found = Relay(Place(crds, namespace))
    yield found
    found.end()
