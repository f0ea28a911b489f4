"""Disturbed lives: killed at a write, or shown something else than there is, in each of their stages."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TypeVar

from tests.harness.controlplane import ControlPlane
from tests.reliability.killer import Call
from tests.reliability.life import STAGES, Course, lived, unlike
from tests.reliability.views import VIEWS, View, calm

AT_ONCE = 8
"""Lives side by side: they wait most of the time."""
Point = tuple[int, str]
"""(which write of a stage, counted from 1; BEFORE or AFTER)"""
T = TypeVar("T")


@dataclass(frozen=True)
class Came:
    """What came of one disturbance."""

    stage: str
    by: Point | str
    """A crash point, or a view."""
    at: Call | None
    """Of a crash; None: the stage was over before."""
    lost: tuple[str, ...]


def killed(cluster: ControlPlane, course: Course, points: Mapping[str, Point]) -> list[Came]:
    """A life that is killed at these points, by stage. It ends where it came to something else."""
    found = []
    with lived(cluster, f"life-{secrets.token_hex(3)}") as life:
        for stage in STAGES:
            point = points.get(stage.name)
            life.killer.arm(point)
            stage.act(life)
            lost = unlike(life, course, stage)
            if point or lost:
                found.append(Came(stage.name, point or "not killed", life.killer.victim, tuple(lost)))
            if lost:
                break
    return found


def misled(
    cluster: ControlPlane,
    course: Course,
    views: Mapping[str, str],
    known: Mapping[str, tuple[str, View]] = VIEWS,
    calm: View = calm,
) -> list[Came]:
    """A life that is shown these views, by stage, until a stage that has none, or until it came to something else.

    What it deletes, beside a Secret that an apply seems to be refused for, the undisturbed life deletes too.
    """
    found = []
    with lived(cluster, f"life-{secrets.token_hex(3)}") as life:
        for stage in STAGES[: len(views)]:
            life.killer.arm(None)
            _, begin = known[views[stage.name]]
            begin(life)
            stage.act(life)
            lost = unlike(life, course, stage)
            calm(life)
            more = _deleted(life.killer.calls) - _deleted(course.calls[stage.name])
            lost += [f"deleted {one}" for one in sorted(more)]
            found.append(Came(stage.name, views[stage.name], None, tuple(lost)))
            if lost:
                break
    return found


def _deleted(calls: Sequence[Call]) -> set[str]:
    return {call.target for call in calls if call.method == "DELETE" and not call.target.startswith("secrets/")}


def together(lives: Sequence[Callable[[], list[T]]]) -> Iterator[T]:
    """Side by side; what came of each, as they end."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for life in as_completed([pool.submit(each) for each in lives]):
            yield from life.result()
