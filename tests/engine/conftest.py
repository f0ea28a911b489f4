"""Fixtures of real engines: `engine` is shared by a module; a failure shows the end of its log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import RealEngine


@pytest.fixture(scope="module")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RealEngine]]:
    """Starts engines (arguments of RealEngine without the folder) that end with the module."""
    started: list[RealEngine] = []

    def start(**how: Any) -> RealEngine:
        folder: Path = tmp_path_factory.mktemp("engine")
        started.append(RealEngine(folder, **how))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., RealEngine]) -> RealEngine:
    """An engine with plugin, token and seed schedule, ready to serve."""
    return start_engine().wait_ready()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the engines said last, below the failure."""
    report = yield
    for engine in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(engine, RealEngine):
            report.sections.append((f"engine log {engine.daemon.log}", engine.daemon.tail()))
    return report
