"""Fixtures of a real Kubernetes: `control_plane` with `namespace` and `crds`, `node` with `node_namespace`.

A test that fails names the folder of the cluster's logs.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.binaries import ensure_built
from tests.harness.controlplane import ControlPlane
from tests.harness.kubectl import Kubectl
from tests.harness.node import Node, unavailable
from tests.harness.processes import wait_until

CRDS = Path(__file__).resolve().parents[1] / "crds"
# A busy machine is no finding: how long an example takes says nothing about the property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """The session's control plane: API server, etcd and controllers, but no scheduler and no node."""
    with _shown(pytestconfig):
        ensure_built()
    cluster = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Node]:
    """The session's node: real pods. Skips with the reason only where this machine cannot run one."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with _shown(pytestconfig):
        ensure_built(node=True)
    started = Node(tmp_path_factory.mktemp("node"))
    started.start()
    yield started
    started.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace of this test, with its default service account; deleted after, not waited for."""
    with _fresh_namespace(control_plane.kubectl) as name:
        yield name


@pytest.fixture(scope="module")
def module_namespace(control_plane: ControlPlane) -> Iterator[str]:
    """As `namespace`, for all tests of a module."""
    with _fresh_namespace(control_plane.kubectl) as name:
        yield name


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with the CustomResourceDefinitions of crds/ established.

    The garbage collector looks for new kinds every 30 s: children of a deleted object may outlive it that long.
    """
    control_plane.kubectl("apply", "--server-side", "-f", CRDS)
    control_plane.established("-f", CRDS)
    return control_plane


@pytest.fixture
def node_namespace(node: Node) -> Iterator[str]:
    """As `namespace`, on the node."""
    with _fresh_namespace(node.kubectl) as name:
        yield name


@contextmanager
def _fresh_namespace(kubectl: Kubectl) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    try:
        account = ("--namespace", name, "get", "serviceaccount", "default")
        wait_until(lambda: kubectl(*account), f"the default service account of {name}", timeout_seconds=30)
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def _shown(pytestconfig: pytest.Config) -> AbstractContextManager[None]:
    """A first build takes minutes: its progress goes to the terminal."""
    manager: AbstractContextManager[None] = pytestconfig.pluginmanager.getplugin(
        "capturemanager"
    ).global_and_fixture_disabled()
    return manager


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show where the cluster's logs are, below the failure. Halves of surrogate pairs, which tests print on purpose,
    are escaped: a worker that sends one ends the whole run (pytest-xdist)."""
    report = yield
    for cluster in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(cluster, ControlPlane | Node):
            report.sections.append(("cluster logs", f"{cluster.logs_dir}"))
    report.sections = [(title, _escaped(text)) for title, text in report.sections]
    if report.longrepr is not None and (text := str(report.longrepr)) != _escaped(text):
        report.longrepr = _escaped(text)
    return report


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
