"""The lock on the volume: one owner, a dead one's is taken over, a live one's is not."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from paceline_engine.pull.lock import Lock


class Watch:
    """A clock that moves by sleeping, and does something each time."""

    def __init__(self, *steps: object) -> None:
        self.at, self.slept, self.steps = 0.0, 0, list(steps)

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept += 1
        if self.steps:
            step = self.steps.pop(0)
            if callable(step):
                step()


def lock(path: Path, owner: str, watch: Watch, beat: float = 1000.0) -> Lock:
    return Lock(path, owner, beat=beat, stale=10.0, look=2.0, settle=1.0, sleep=watch.sleep, now=watch.now)


def test_it_is_there_while_held_and_gone_after(tmp_path: Path) -> None:
    path, watch = tmp_path / "deep" / "lock", Watch()
    with lock(path, "pod-a", watch):
        assert path.read_text().startswith("pod-a ")
    assert not path.exists()
    assert watch.slept == 0


def test_another_waits_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = lock(path, "pod-a", Watch())
    first.__enter__()
    watch = Watch(None, None, lambda: first.__exit__(None, None, None))
    with lock(path, "pod-b", watch):
        assert watch.slept == 3
        assert path.read_text().startswith("pod-b ")


def test_an_owner_that_touches_its_lock_is_not_taken_for_dead(tmp_path: Path) -> None:
    path, touched = tmp_path / "lock", []
    path.write_text("pod-a 1")

    def touch() -> None:
        touched.append(len(touched))
        os.utime(path, ns=(0, len(touched) * 10**9))

    with lock(path, "pod-b", Watch(*[touch] * 20, path.unlink)):
        assert len(touched) == 20


def test_a_dead_owner_s_lock_is_taken_over(tmp_path: Path) -> None:
    path, watch = tmp_path / "lock", Watch()
    path.write_text("pod-a 1")
    with lock(path, "pod-b", watch) as held:
        assert watch.at == pytest.approx(10.0 + 2.0 + 1.0)
        assert not held.lost
    assert list(tmp_path.iterdir()) == []


def test_a_pod_s_own_earlier_process_is_dead_at_once(tmp_path: Path) -> None:
    path, watch = tmp_path / "lock", Watch()
    path.write_text("pod-a 1")
    with lock(path, "pod-a", watch):
        assert watch.at == 0.0


def test_of_two_that_take_over_at_once_one_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("pod-a 1")
    watch = Watch()

    def rival() -> None:
        if watch.at > 12.0 and path.read_text().startswith("pod-b"):
            path.write_text("pod-c 2")  # renamed over ours before we looked again
            watch.steps = [None] * 3 + [path.unlink]

    watch.steps = [rival] * 50
    with lock(path, "pod-b", watch) as held:
        assert watch.at > 13.0
        assert not held.lost


def test_who_lost_it_is_told_and_leaves_the_new_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path, "pod-a", beat=0.01) as held:
        path.write_text("pod-b 2")
        assert held._lost.wait(5.0)
        assert held.lost
    assert path.read_text() == "pod-b 2"


def test_many_at_once_are_never_inside_together(tmp_path: Path) -> None:
    inside, most, seen = [], [], threading.Lock()

    def one(number: int) -> None:
        with Lock(tmp_path / "lock", f"pod-{number}", look=0.002):
            with seen:
                inside.append(number)
                most.append(len(inside))
            time.sleep(0.001)
            with seen:
                inside.remove(number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert (len(most), max(most)) == (8, 1)
