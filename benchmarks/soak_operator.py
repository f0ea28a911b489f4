"""Part of `make soak`: an operator beside a real API server while servings, pods, loads and specs change all the time.

Fails where something grows with the time it has run: memory, file descriptors, threads, tasks, status, objects in etcd.
The first quarter is not judged: caches and histories fill. What a line through the second half adds in an hour is told.

    python -m benchmarks.soak_operator [seconds]
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.scale.cluster import HOME, Object, World, account
from benchmarks.scale.engines import loads
from benchmarks.scale.measure import read
from benchmarks.soak import environment
from paceline_operator import naming
from tests.cluster.operators import Operator, start, wait_for_leader
from tests.harness.binaries import ensure_built
from tests.harness.controlplane import ControlPlane

SECONDS = 1800.0
SERVINGS, SPACES = 12, ("soak-0", "soak-1")
CHURN_SECONDS, LOOK_SECONDS = 1.0, 10.0
INTERVAL_SECONDS = 5
SEED = 20
CRDS = Path(__file__).resolve().parents[1] / "crds"
RESULT = Path(__file__).parent / "results" / "soak" / "operator.json"
NEVER_MORE = {"rss_mib": 1.10, "descriptors": 1.10, "threads": 1.0, "tasks": 1.25, "annotation_bytes": 1.0,
              "etcd_objects": 1.25}  # fmt: skip
"""The median of the last quarter, at most so many times that of the second."""
BOUNDS = {"status_bytes": 40_000, "etcd_bytes": 64_000}
"""Histories in status fill for hours, then they are full (tests/unit/test_soak_passes.py): the largest ever."""


@dataclass(frozen=True)
class Look:
    """One moment."""

    at: float
    """Seconds since the start."""
    rss_mib: float
    descriptors: int
    threads: int
    tasks: int
    """Of the event loop, by the operator's own metric."""
    passes: int
    writes: int
    status_bytes: int
    """Of the largest."""
    annotation_bytes: int
    """Of the serving that has most."""
    etcd_bytes: int
    """Of the largest serving, as stored."""
    etcd_objects: int
    """In the namespaces of the servings, Events left out."""


def look(operator: Operator, cluster: ControlPlane, began: float) -> Look:
    """At the operator's process, and at what it keeps in the cluster."""
    process, told = Path("/proc") / str(operator.daemon.process.pid), operator.metrics()
    reading = asyncio.run(read(operator))
    (threads,) = (
        line.split()[1] for line in process.joinpath("status").read_text().splitlines() if line.startswith("Threads")
    )
    stored = etcd_values(cluster, f"/registry/{naming.GROUP}/{naming.PLURAL_SERVING}/")
    servings = [json.loads(text) for text in stored.values()]
    sizes = [len(json.dumps(one["metadata"].get("annotations", {}))) for one in servings]
    return Look(
        at=round(time.monotonic() - began, 1),
        rss_mib=round(reading.rss_mib, 2),
        descriptors=len(list(process.joinpath("fd").iterdir())),
        threads=int(threads),
        tasks=int(told[("paceline_event_loop_tasks",)]),
        passes=int(reading.passes),
        writes=int(sum(reading.writes.values())),
        status_bytes=max((len(json.dumps(one.get("status", {}))) for one in servings), default=0),
        annotation_bytes=max(sizes, default=0),
        etcd_bytes=max(map(len, stored.values()), default=0),
        etcd_objects=sum(any(f"/{space}/" in key for space in SPACES) for key in etcd_keys(cluster)),
    )


def etcd_values(cluster: ControlPlane, prefix: str) -> dict[str, bytes]:
    """Key -> value of all keys that begin so, by etcd's JSON gateway."""
    found = _range(cluster, prefix, keys_only=False)
    return {_text(each["key"]): base64.b64decode(each["value"]) for each in found}


def etcd_keys(cluster: ControlPlane) -> list[str]:
    """All keys but those of Events, which go after an hour."""
    keys = [_text(each["key"]) for each in _range(cluster, "/registry/", keys_only=True)]
    return [key for key in keys if not key.startswith("/registry/events/")]


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _range(cluster: ControlPlane, prefix: str, *, keys_only: bool) -> list[dict[str, str]]:
    first, last = prefix.encode(), prefix[:-1].encode() + b"0"  # the character after a slash
    body = {
        "key": base64.b64encode(first).decode(),
        "range_end": base64.b64encode(last).decode(),
        "keys_only": keys_only,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.etcd_port}/v3/kv/range", data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: list[dict[str, str]] = json.loads(answer.read()).get("kvs", [])
        return found


class Changing(World):
    """What is to be changed may be gone."""

    async def send(self, method: str, path: str, body: Object, content: str = "application/json") -> Object:
        """As administrator; empty where there is no such object."""
        try:
            return await super().send(method, path, body, content)
        except AssertionError as error:
            if '"code":404' in str(error):
                return {}
            raise


class Churn:
    """What is done to the servings, one thing a second."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng, self._made = world, rng, 0
        self._there: list[tuple[str, str]] = []
        self.done: Counter[str] = Counter()

    async def begin(self) -> None:
        for _ in range(SERVINGS):
            await self._create()

    async def once(self) -> None:
        """One change, drawn."""
        weighted: Sequence[tuple[int, Callable[[tuple[str, str]], Any]]] = (
            (5, self._load), (2, self._tuning), (1, self._restart), (3, self._pod), (1, self._again), (1, self._fault),
        )  # fmt: skip
        (change,) = self._rng.choices([act for _, act in weighted], [weight for weight, _ in weighted])
        key = self._rng.choice(self._there)
        self.done[change.__name__.strip("_")] += 1
        await change(key)

    async def _create(self) -> None:
        self._made += 1
        self._there.append((SPACES[self._made % len(SPACES)], f"s{self._made}"))
        await self._world.create(*self._there[-1], self._made)

    async def _load(self, key: tuple[str, str]) -> None:
        self._world.set_load(key, self._rng.choice((0, *loads())))

    async def _tuning(self, key: tuple[str, str]) -> None:
        await self._patch(key, {"tuning": {"minGainPercent": self._rng.randint(1, 5)}})

    async def _restart(self, key: tuple[str, str]) -> None:
        engine = {"extraArgs": ["--seed", str(self._rng.randint(1, 99))]}
        await self._patch(key, {"engine": engine, "rollout": {"canary": {"mode": "Disabled"}}})

    async def _pod(self, key: tuple[str, str]) -> None:
        """One of its pods goes; its successor has another address."""
        namespace, name = key
        selector = f"{naming.LABEL_SERVING}={name}"
        pods = (await self._world.send("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}", {})).get(
            "items"
        )
        if pods:
            gone = self._rng.choice(pods)["metadata"]["name"]
            await self._world.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/{gone}", {"gracePeriodSeconds": 0})

    async def _again(self, key: tuple[str, str]) -> None:
        """A serving goes, and another comes."""
        await self._world.send("DELETE", _path(key), {})
        self._there.remove(key)
        await self._create()

    async def _fault(self, key: tuple[str, str]) -> None:
        """One of its engines hangs or tells nonsense, or does so no more."""
        for address in self._world.servings[key].addresses[:1]:
            engine = self._world.engines.by_address[address]
            engine.hangs, engine.lies = (
                (False, False) if engine.hangs or engine.lies else self._rng.choice(((True, False), (False, True)))
            )

    async def _patch(self, key: tuple[str, str], spec: dict[str, Any]) -> None:
        await self._world.send("PATCH", _path(key), {"spec": spec}, "application/merge-patch+json")


def _path(key: tuple[str, str]) -> str:
    return f"/apis/{naming.API_VERSION}/namespaces/{key[0]}/{naming.PLURAL_SERVING}/{key[1]}"


async def soaked(cluster: ControlPlane, operator: Operator, seconds: float) -> tuple[list[Look], Counter[str]]:
    """Looks every LOOK_SECONDS, and what was done."""
    looks: list[Look] = []
    async with Changing(cluster, INTERVAL_SECONDS) as world:
        churn = Churn(world, random.Random(SEED))
        await churn.begin()
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            world.check()
            operator.daemon.check()
            await churn.once()
            if now >= LOOK_SECONDS * len(looks):
                looks.append(await asyncio.to_thread(look, operator, cluster, began))
            await asyncio.sleep(CHURN_SECONDS)
    return looks, churn.done


def run(seconds: float, folder: Path) -> dict[str, Any]:
    """On a control plane of its own: what was seen, and what is wrong with it."""
    cluster = ControlPlane(folder)
    cluster.start()
    try:
        cluster.kubectl("apply", "--server-side", "-f", CRDS)
        cluster.established("-f", CRDS)
        for namespace in (HOME, *SPACES):
            cluster.kubectl("create", "namespace", namespace)
        operator = start(cluster, "operator", HOME, account(cluster, list(SPACES)))
        wait_for_leader(operator)
        try:
            looks, done = asyncio.run(soaked(cluster, operator, seconds))
        finally:
            operator.daemon.stop()
        log = operator.log()
    finally:
        cluster.stop()
    problems = grown(looks) + (["the operator's log has a traceback"] if "Traceback" in log else [])
    figures = {name: told(name, looks) for name in (*NEVER_MORE, *BOUNDS)}
    return {"seconds": seconds, "servings": SERVINGS, "churn": dict(done), "passes": looks[-1].passes,
            "writes": looks[-1].writes, "figures": figures, "problems": problems,
            "looks": [asdict(each) for each in looks]}  # fmt: skip


def told(name: str, looks: Sequence[Look]) -> dict[str, float]:
    """Of one number: the median of each quarter, the largest, and what a line through the second half adds an hour."""
    values = [float(getattr(each, name)) for each in looks]
    quarter, half = max(1, len(values) // 4), looks[len(looks) // 2 :]
    medians = {f"quarter_{i + 1}": median(values[i * quarter : (i + 1) * quarter] or values[-1:]) for i in range(4)}
    by_hour = 3600 * slope([(each.at, float(getattr(each, name))) for each in half])
    return {**medians, "largest": max(values), "slope_per_hour": round(by_hour, 1)}


def grown(looks: Sequence[Look]) -> list[str]:
    """What is more than NEVER_MORE and BOUNDS allow."""
    found = []
    for name in (*NEVER_MORE, *BOUNDS):
        figures = told(name, looks)
        before, after = figures["quarter_2"], figures["quarter_4"]
        if after > NEVER_MORE.get(name, math.inf) * before:
            found.append(f"{name} grew from {before} to {after}")
        if figures["largest"] > BOUNDS.get(name, math.inf):
            found.append(f"{name} was {figures['largest']}")
    return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line; 0 below two points."""
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else 0.0


def main() -> int:
    """Run, print, keep; exit status 1 where something grew."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    ensure_built()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = {"environment": environment(), **run(seconds, Path(folder) / "plane")}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "looks"}))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
