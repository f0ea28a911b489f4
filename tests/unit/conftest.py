"""Fixtures of several modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A serving in a fake cluster."""
    return World(tmp_path)
