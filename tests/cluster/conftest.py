"""What takes a minute by its nature starts with the first test that wants it, in a control plane of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.quiet import QuietMinute


@pytest.fixture(scope="session")
def quiet_minute(control_plane: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuietMinute]:
    """A minute in which nothing is asked of operators, watched while other tests run.

    After `control_plane`, so that the programs are built.
    """
    minute = QuietMinute(tmp_path_factory.mktemp("quiet"))
    minute.start()
    yield minute
    minute.end()
