"""The ground of walks: a real API server with its controllers, and an operator as a process of its own."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from paceline_operator.modelcache import is_pulled
from paceline_operator.plan import WORKLOAD_KINDS
from tests.cluster.lives import Answer, Children, Key, Lives, looked_at
from tests.cluster.operators import PATIENCE_SECONDS, Operator
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import Change
from tests.walk.walker import Sight

T = TypeVar("T")

REST_SECONDS = 2.0
CALM_SECONDS = 1.0
"""Without a write: then other controllers are done with the last step."""
EVERY_SECONDS = 0.5
"""Between two looks at all there is, however many wait for one: each is half a megabyte."""
SHRINKING_SECONDS = 30.0
"""For which is waited once a walk has failed, which is then walked again and again, smaller and smaller: more than the
period in which engines are read."""
NAME = "the-serving"
"""What all are called when they are compared."""


class Shared(Generic[T]):
    """One look for all who wait for one: of a moment that is not before any of them asked, EVERY_SECONDS after the one
    before."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look, self._lock, self._began = look, threading.Lock(), 0.0

    def __call__(self) -> T:
        asked = time.monotonic()
        with self._lock:
            while self._began < asked:
                time.sleep(max(0.0, self._began + EVERY_SECONDS - time.monotonic()))
                began = time.monotonic()
                try:
                    self._seen = self._look()
                    self._began = began
                except OSError:  # a machine that is busy for seconds
                    if began > asked + PATIENCE_SECONDS:
                        raise
            return self._seen


@dataclass
class Land:
    """Two namespaces: in one servings walk, in the other servings are made afresh. Shared by all walks."""

    cluster: ControlPlane
    operator: Operator
    here: str
    afresh: str
    patience: float = PATIENCE_SECONDS
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.lives = Lives(self.cluster, (self.here, self.afresh))
        self.servings = Shared(self.lives.servings)
        self.children = Shared(self.lives.children)
        self.end_jobs = Shared(self.lives.end_jobs)

    def writes(self) -> int:
        """Of the operator, since it began; Leases left out."""
        return int(sum(self.operator.writes().values()))

    def check(self) -> None:
        """Raises where the operator ended or left a trace of an error of its own."""
        self.operator.daemon.check()
        log = self.operator.log()
        assert "Traceback" not in log, log[log.index("Traceback") :][:4000]

    def rest(self) -> None:
        """Raises where the operator writes though nothing is asked of it."""
        last, since = self.writes(), time.monotonic()
        deadline = since + PATIENCE_SECONDS
        while time.monotonic() - since < CALM_SECONDS:
            assert time.monotonic() < deadline, "it does not come to rest"
            time.sleep(EVERY_SECONDS)
            if (now := self.writes()) != last:
                last, since = now, time.monotonic()
        before = self.operator.writes()
        time.sleep(REST_SECONDS)
        after = self.operator.writes()
        assert after == before, f"writes at rest: {before} became {after}"


@dataclass
class RealGround:
    """Of one walk."""

    land: Land
    _walker: Key = ("", "")
    _fresh: Key = ("", "")

    def begin(self, spec: Change) -> Answer:
        self._walker = (self.land.here, f"walks-{next(self.land.numbers):06}")
        return self.land.lives.create({self._walker: spec})[self._walker]

    def end(self) -> None:
        self.land.lives.delete([key for key in (self._walker, self._fresh) if key[1]])

    def replace(self, spec: Change) -> Answer:
        return self.land.lives.replace({self._walker: spec})[self._walker]

    def fresh(self, spec: Change) -> None:
        if self._fresh[1]:
            self.land.lives.delete([self._fresh])
        self._fresh = (self.land.afresh, f"walks-{next(self.land.numbers):06}")
        status, text = self.land.lives.create({self._fresh: spec})[self._fresh]
        assert status == 201, f"taken of one that is there, not of a new one: HTTP {status}: {text}"

    def look(self) -> Sight:
        return self._looked(self._walker)

    def look_at_fresh(self) -> Sight:
        return self._looked(self._fresh)

    def now(self) -> Sight:
        return _sight(self._walker, self.land.servings(), self.land.children())

    def both(self) -> tuple[Sight, Sight]:
        servings, children = self.land.servings(), self.land.children()
        return _sight(self._walker, servings, children), _sight(self._fresh, servings, children)

    def soon(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self.land.patience
        while not done():
            if time.monotonic() > deadline:
                self.land.patience = SHRINKING_SECONDS
                return False
        return True

    def _looked(self, key: Key) -> Sight:
        found: list[Sight] = []

        def done() -> bool:
            serving = self.land.servings().get(key, {})
            if serving and (looked_at(serving) or _failed(serving)):
                sight = _sight(key, self.land.servings(), self.land.children())
                found.extend([sight] if self._has_pulled(sight) else [])
            return bool(found)

        assert self.soon(done), f"no whole pass over it\n{self.land.operator.daemon.tail()}"
        return found[-1]

    def _has_pulled(self, sight: Sight) -> bool:
        """Whether the pre-pull Job, where there is one, is done, and what waits for it is there or was refused. Its
        pods are ended here, for there is no kubelet."""
        jobs = [item for key, item in sight.children.items() if key.startswith("Job/")]
        if not all(map(is_pulled, jobs)):
            self.land.end_jobs()
            return False
        return not jobs or sight.failed or any(key.partition("/")[0] in WORKLOAD_KINDS for key in sight.children)


def _sight(key: Key, servings: dict[Key, dict[str, Any]], children: dict[Key, Children]) -> Sight:
    named: Children = json.loads(json.dumps(children.get(key, {})).replace(key[1], NAME))
    return Sight(servings[key], named)


def _failed(serving: dict[str, Any]) -> bool:
    """A pass over its present spec ended with a refusal of some child."""
    generation = serving["metadata"]["generation"]
    return any(
        (each["reason"], each["observedGeneration"]) == ("ApplyFailed", generation)
        for each in serving.get("status", {}).get("conditions", [])
    )
