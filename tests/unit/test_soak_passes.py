"""Hours of passes over one serving in the clock that tests set: pods come and go, engines end, loads, specs and keys
change, and nothing that the operator keeps or writes grows with the time it has run."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from paceline_engine.protocol import Policy, PolicyAck
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.answers import EngineFailure
from paceline_operator.clock import rfc3339
from paceline_operator.tuning.model import Engine
from tests.fakes import FakeEngines, Object
from tests.unit.simulated import GOOD, POOR, SimulatedEngine, fixed
from tests.world import KEY, SPEC, World

INTERVAL_SECONDS = 10
BOOT = (5,) * 65
LADDER = (5, 3, 2, 1, 0)
CYCLE = 20
"""Passes after which every kind of churn has taken place."""
FILLED = 16
"""Cycles until the lists of status that have an end (decisions, crashes) are full: half a run must have more."""
GROWTH = 1.10
"""By which the largest of the last quarter may exceed the largest of the second."""


class Engines(FakeEngines):
    """Engines that decode: pod -> one whose load and drafts change under way."""

    def __init__(self) -> None:
        super().__init__()
        self.max_num_seqs = len(BOOT) - 1
        self.running: dict[str, SimulatedEngine] = {}
        self.load, self.survival, self.boots_seen = 4, GOOD, 0

    async def observe_engine(
        self, name: str, control_url: str, serving_url: str, token: str, cursor: str | None
    ) -> Engine:
        self._pods[control_url] = name
        if failure := self.failures.get(name):
            return Engine(name=name, failure=failure, failure_message=f"{name} fails")
        if name not in self.running:
            self.boots_seen += 1
            rng = np.random.default_rng(self.boots_seen)
            boot_id = f"boot-{self.boots_seen}"
            made = SimulatedEngine(seconds, fixed(self.survival), BOOT, LADDER, rng, boot_id=boot_id)
            self.running[name] = made
        engine = self.running[name]
        engine.requests, engine.survival = self.load, fixed(self.survival)
        answer = engine.answer(INTERVAL_SECONDS, name)
        del engine.windows[1:]  # what the stand-in keeps is not the operator's
        return answer

    async def push(self, control_url: str, token: str, policy: Policy) -> PolicyAck | EngineFailure:
        engine = self.running[self._pods[control_url]]
        engine.push(policy)
        return PolicyAck(generation=engine.generation, applied=True)


def seconds(requests: int, k: int) -> float:
    return 0.01 * (1 + 0.12 * k) * (1 + requests / 64)


@dataclass
class Soak:
    """One serving of two pods, and what was seen of it at the end of each cycle."""

    world: World
    engines: Engines = field(default_factory=Engines)
    passes: int = 0
    pods: list[str] = field(default_factory=list)
    seen: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.engines = self.engines
        self.world.hands = replace(self.world.hands, engines=self.engines)  # type: ignore[arg-type]
        self.world.restart()
        self._spec()
        self._pod()
        self._pod()

    async def run(self, passes: int) -> None:
        for _ in range(passes):
            self._churn(self.passes % CYCLE, self.passes // CYCLE)
            self.world.clock.advance(INTERVAL_SECONDS)
            await self.world.serving.run(full=self.passes % 5 == 0)
            self.passes += 1
            if self.passes % CYCLE == 0:
                self._look()

    def _churn(self, at: int, cycle: int) -> None:
        match at:
            case 1:
                self.engines.load = (1, 4, 16, 48)[cycle % 4]
            case 4:
                self.engines.survival = (GOOD, POOR)[cycle % 2]
            case 6:
                self._gone(self.pods[0])
                self._pod()
            case 8:  # an engine ends and comes again in the same pod
                self.engines.running.pop(self.pods[0], None)
                self._told(self.pods[0], restarts=cycle + 1)
            case 10:
                self.engines.failures[self.pods[-1]] = Reason.POD_NOT_ANSWERING
            case 12:
                self.engines.failures.clear()
            case 13:
                self._spec(minGainPercent=1 + cycle % 3)
            case 15:
                self._spec(mode="Manual", table=[{"fromRequests": 1, "k": 1 + cycle % 3}])
            case 17:
                self._spec()
            case 19:
                self.world.keys.write_text((KEY, "n" * 40)[cycle % 2])

    def _spec(self, **tuning: Any) -> None:
        engine = {"maxNumSeqs": len(BOOT) - 1}
        self.world.apply({**SPEC, "replicas": 2, "engine": engine, "tuning": {"ladder": list(LADDER), **tuning}})

    def _pod(self) -> None:
        number = self.passes + len(self.pods)
        self.pods.append(f"demo-{number}")
        self._told(self.pods[-1])

    def _told(self, name: str, restarts: int = 0) -> None:
        now = rfc3339(self.world.clock.now())
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
        state: Object = {"name": "engine", "ready": True, "restartCount": restarts, "state": {"running": {}}}
        if restarts:
            state["lastState"] = {"terminated": ended}
        number = int(name.rpartition("-")[2])
        address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
        self.world.pod(name, ip=address, track=naming.TRACK_STABLE, containerStatuses=[state])

    def _gone(self, name: str) -> None:
        self.pods.remove(name)
        self.engines.running.pop(name, None)
        self.world.kube.drop("Pod", name)

    def _look(self) -> None:
        kube, serving = self.world.kube, self.world.kube.find(naming.KIND_SERVING, "demo")
        kinds = [kind for kind, _, _ in kube.objects if kind != "Event"]
        annotations = [body["metadata"].get("annotations", {}) for body in kube.objects.values()]
        told = {
            "kept bytes": kept(self.world.serving, self.world.hands),
            "status bytes": len(json.dumps(serving.get("status", {}))),
            "objects": len(kinds),
            "annotation bytes": max(len(json.dumps(each)) for each in annotations),
            "tasks": len(asyncio.all_tasks()),
        }
        for name, value in told.items():
            self.seen.setdefault(name, []).append(float(value))
        for key in [key for key in kube.objects if key[0] == "Event"]:
            del kube.objects[key]  # an API server keeps them for an hour
        kube.writes.clear()


def kept(root: object, *left_out: object) -> int:
    """Bytes of all that is reached from `root`, classes, functions and modules left out."""
    seen = {id(one) for one in left_out}
    waiting, size = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(
            one, type | ModuleType | FunctionType | BuiltinFunctionType | asyncio.AbstractEventLoop
        ):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return size


def grown(values: list[float]) -> float:
    """The largest of the last quarter over the largest of the second."""
    quarter = len(values) // 4
    return max(values[-quarter:]) / max(max(values[quarter : 2 * quarter]), 1.0)


def check(seen: dict[str, list[float]]) -> None:
    for name, values in seen.items():
        assert grown(values) <= GROWTH, f"{name}: {values}"


async def test_hours_of_passes_leave_nothing_behind(world: World) -> None:
    soak = Soak(world)
    await soak.run(FILLED * CYCLE * 2)
    check(soak.seen)


@pytest.mark.long
async def test_days_of_passes_leave_nothing_behind(world: World) -> None:
    soak = Soak(world)
    await soak.run(int(os.environ.get("PACELINE_SOAK_PASSES", "8640")))
    print(json.dumps({name: [min(values), max(values), round(grown(values), 3)] for name, values in soak.seen.items()}))
    check(soak.seen)


def test_what_grows_is_seen(tmp_path: Path) -> None:
    held: dict[str, list[int]] = {"a": []}
    before = kept(held)
    held["a"] += range(1000, 2000)
    assert kept(held) > before + 8_000
    with pytest.raises(AssertionError, match="kept bytes"):
        check({"kept bytes": [100.0 + 10 * i for i in range(16)]})
