"""An undisturbed life that others are compared with, and a sample of those that live beside it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.harness.controlplane import ControlPlane
from tests.reliability.killer import AFTER, BEFORE
from tests.reliability.life import STAGES, Course
from tests.reliability.lives import Came, killed, misled
from tests.reliability.views import REFUSALS, VIEWS

SEED = 20261130


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lives take a minute or two and wait most of it: what came of them is looked at after the walks."""
    late = [item for item in items if item.name.startswith("test_a_sample_of")]
    walks = [number for number, item in enumerate(items) if "walk" in item.path.parts]
    if late and walks:
        last = items[max(walks)]
        items[:] = [item for item in items if item not in late]
        after = items.index(last) + 1
        items[after:after] = late


@pytest.fixture(scope="session")
def course(crds: ControlPlane) -> Iterator[Course]:
    """An undisturbed life, from now on."""
    found = Course()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(found.live, crds, f"life-{secrets.token_hex(3)}")
        yield found
        done.result()


@dataclass(frozen=True)
class Samples:
    """Lives on their way."""

    crashes: Future[list[Came]]
    views: Future[list[Came]]


@pytest.fixture(scope="session")
def samples(crds: ControlPlane, course: Course) -> Iterator[Samples]:
    """One life with a crash in each stage, and one with a view in each."""
    draw = random.Random(SEED)
    points = {s.name: (draw.randint(1, s.writes), draw.choice((BEFORE, AFTER))) for s in STAGES if s.writes}
    views = dict(
        zip(
            (stage.name for stage in STAGES),
            draw.sample(sorted(VIEWS.keys() - set(REFUSALS)), len(STAGES)),
            strict=True,
        )
    )
    with ThreadPoolExecutor(2) as pool:
        yield Samples(pool.submit(killed, crds, course, points), pool.submit(misled, crds, course, views))
