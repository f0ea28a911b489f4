"""One run: N servings come, are tuned, change their load, meet faults, and rest."""

from __future__ import annotations

import asyncio
import math
import resource
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scale.cluster import DENIED, HOME, REPLICAS, World, account, placed, since
from benchmarks.scale.engines import Engine, loads, quantile
from benchmarks.scale.measure import Reading, cpu_of, read, rss_of
from paceline_operator import naming
from tests.cluster.operators import Operator, start, wait_for_leader
from tests.harness.controlplane import ControlPlane

CRDS = Path(__file__).resolve().parents[2] / "crds"
CHANGED_SHARE = 0.2
"""Of the servings, whose load changes at once."""
PROGRESS_SECONDS = 30.0
"""Between two notes of how far convergence got."""
LATE_SHOWN = 3


@dataclass(frozen=True)
class Plan:
    """Seconds of each part."""

    converge: float = 900.0
    """At most."""
    settle: float = 15.0
    steady: float = 40.0
    change: float = 25.0
    faults: float = 30.0
    rest: float = 75.0
    """After load has gone, before idle writes are counted: measured numbers are told once a minute at most."""
    idle: float = 30.0
    interval: int = 10
    until: float = math.inf
    """When all is to be over (monotonic): convergence is waited for no longer than that leaves time to look at what is
    there, and parts for which there is no time are left out."""

    def has(self, seconds: float) -> bool:
        """Whether there is time for what takes so long."""
        return time.monotonic() + seconds <= self.until


Found = dict[str, Any]
Part = Callable[[World, Operator, Plan], Awaitable[Found]]


def run(servings: int, plan: Plan, folder: Path, keep: Callable[[Found], None] = lambda _: None) -> Found:
    """Everything that was measured, on a control plane of its own below `folder`; `keep` gets it part by part."""
    cluster = ControlPlane(folder)
    cluster.start()
    try:
        cluster.kubectl("apply", "--server-side", "-f", CRDS)
        cluster.established("-f", CRDS)
        places = placed(servings)
        spaces = sorted({namespace for namespace, _ in places})
        for namespace in (HOME, *spaces):
            cluster.kubectl("create", "namespace", namespace)
        operator = start(cluster, "operator", HOME, account(cluster, spaces))
        wait_for_leader(operator)
        try:
            return asyncio.run(_measured(cluster, operator, places, plan, keep))
        finally:
            operator.daemon.stop()
    finally:
        cluster.stop()


async def _measured(
    cluster: ControlPlane,
    operator: Operator,
    places: list[tuple[str, str]],
    plan: Plan,
    keep: Callable[[Found], None],
) -> Found:
    found: Found = {"servings": len(places), "pods": REPLICAS * len(places), "interval_seconds": plan.interval}
    async with World(cluster, plan.interval) as world:
        if not await _converge(cluster, operator, world, places, plan, found, keep):
            parts: dict[str, tuple[float, Part]] = {}
        else:
            parts = {
                "change": (plan.change, _change),
                "faults": (plan.interval + plan.faults, _faults),
                "idle": (plan.rest + plan.idle, _idle),
            }
        await _pause(world, plan.settle)
        first, began = await read(operator), time.monotonic()
        await _pause(world, plan.steady)
        last, ended = await read(operator), time.monotonic()
        found |= {f"steady_{name}": value for name, value in _rates(first, last).items()}
        found |= {"rss_mb": round(last.rss_mib, 1), "steady_lag": _lags(world, began, ended, plan)}
        keep(found)
        for name, (seconds, part) in parts.items():
            if plan.has(seconds):
                found[name] = await part(world, operator, plan)
            else:
                found["left_out"] = [*found.get("left_out", ()), name]
            keep(found)
        found["rss_end_mb"] = round(rss_of(operator.daemon.process.pid), 1)
    keep(found)
    return found


async def _converge(
    cluster: ControlPlane,
    operator: Operator,
    world: World,
    places: list[tuple[str, str]],
    plan: Plan,
    found: Found,
    keep: Callable[[Found], None],
) -> bool:
    """Create all, and wait for them; what is found, and how far they got, is told all along."""
    base, others, pid = await read(operator), _others(cluster), operator.daemon.process.pid
    begun, servings = time.monotonic(), world.servings.values()
    progress: list[Found] = []

    def note() -> None:
        progress.append(
            {
                "seconds": since(begun),
                "with_pods": sum(bool(seen.addresses) for seen in servings),
                "converged": sum(seen.converged for seen in servings),
                "operator_cpu_seconds": round(cpu_of(pid) - base.cpu_after, 1),
                "rss_mb": round(rss_of(pid), 1),
            }
        )
        found["converge_progress"] = progress
        keep(found)

    async def follow() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            note()

    def converged() -> bool:
        return len(servings) == len(places) and all(seen.converged for seen in servings)

    limit = min(plan.converge, plan.until - begun - plan.settle - plan.steady)
    following = asyncio.create_task(follow())
    creating = asyncio.gather(*(world.create(*place, number) for number, place in enumerate(places)))
    try:
        done = await _until(world, lambda: creating.done(), limit)
        if done:
            await creating
            found["create_seconds"] = since(begun)
            done = await _until(world, converged, limit - (time.monotonic() - begun))
    finally:
        following.cancel()
        creating.cancel()
        await asyncio.gather(following, creating, return_exceptions=True)
    seconds = since(begun)
    note()
    after = await read(operator)
    found |= {
        "converge_seconds": seconds if done else None,
        "converge_waited_seconds": seconds,
        "converge_operator_cpu_seconds": round(after.cpu - base.cpu_after, 1),
        "converge_other_cpu_seconds": {
            name: round(spent - others[name], 1) for name, spent in _others(cluster).items()
        },
        "converge_writes": after.all_writes - base.all_writes,
        "converge_reads": after.reads - base.reads,
        "converge_passes": after.passes - base.passes,
        **{f"converge_{name}": counts for name, counts in after.since(base).items()},
        "base_rss_mb": round(base.rss_mib, 1),
        "rss_mb": round(after.rss_mib, 1),
        "converged": sum(seen.converged for seen in servings),
    }
    if not done:
        late = [(key, seen) for key, seen in world.servings.items() if not seen.converged][:LATE_SHOWN]
        found["not_converged"] = [(*key, seen.status.get("conditions")) for key, seen in late]
    keep(found)
    return done


async def _change(world: World, operator: Operator, plan: Plan) -> Found:
    """A fifth of the servings goes to another load at once: how long until all of them say so, and who was late."""
    keys = list(world.servings)[: max(1, int(CHANGED_SHARE * len(world.servings)))]
    first, began = await read(operator), time.monotonic()
    wanted = {}
    for key in keys:
        now = loads().index(world.servings[key].load)
        wanted[key] = loads()[(now + len(loads()) // 2) % len(loads())]
        world.set_load(key, wanted[key])

    def told() -> bool:
        return all(world.servings[key].status.get("loadRequests") == load for key, load in wanted.items())

    done = await _until(world, told, plan.change)
    followed = since(began)
    await _pause(world, max(0.0, plan.change - (time.monotonic() - began)))
    last = await read(operator)
    return {
        "servings": len(keys),
        "all_told_seconds": followed if done else None,
        "not_told": sum(world.servings[key].status.get("loadRequests") != load for key, load in wanted.items()),
        "lag": _lags(world, began, time.monotonic(), plan),
        **_rates(first, last),
    }


async def _faults(world: World, operator: Operator, plan: Plan) -> Found:
    """One pod hangs, one serving's engines tell garbage, one namespace is denied: lag of the others beside theirs."""
    sound = [key for key in world.servings if key[0] != DENIED]
    hanging, lying = world.servings[sound[0]], world.servings[sound[-1]]
    by_address = world.engines.by_address
    by_address[hanging.addresses[0]].hangs = True
    for address in lying.addresses:
        by_address[address].lies = True
    await world.deny()
    denied = {key for key in world.servings if key[0] == DENIED}
    for key in denied:  # something to do there that is not allowed
        await world.send(
            "PATCH",
            f"/apis/{naming.API_VERSION}/namespaces/{key[0]}/{naming.PLURAL_SERVING}/{key[1]}",
            {"spec": {"engine": {"extraArgs": ["--seed", "1"]}}},
            "application/merge-patch+json",
        )
    await _pause(world, plan.interval)
    first, began = await read(operator), time.monotonic()
    await _pause(world, plan.faults)
    last, ended = await read(operator), time.monotonic()
    groups: dict[str, set[int]] = {
        "beside_the_hanging_pod": {id(by_address[address]) for address in hanging.addresses[1:]},
        "lying": {id(by_address[address]) for address in lying.addresses},
        "denied": {id(by_address[address]) for key in denied for address in world.servings[key].addresses},
    }
    apart = set().union(*groups.values(), {id(by_address[hanging.addresses[0]])})
    result: Found = {"others": _lags(world, began, ended, plan, lambda engine: id(engine) not in apart)}
    for name, members in groups.items():
        result[name] = _lags(world, began, ended, plan, _among(members))
    by_address[hanging.addresses[0]].hangs = False
    for address in lying.addresses:
        by_address[address].lies = False
    return result | _rates(first, last)


async def _idle(world: World, operator: Operator, plan: Plan) -> Found:
    """Nobody asks any engine anything: what is written then. The denied servings are left out: they wait for a role."""
    for key in world.servings:
        world.set_load(key, 0)
    await _pause(world, plan.rest)
    before = {key: seen.writes for key, seen in world.servings.items()}
    first = await read(operator)
    await _pause(world, plan.idle)
    last = await read(operator)
    status = sum(seen.writes - before[key] for key, seen in world.servings.items())
    written = last.all_writes - first.all_writes
    return {"seconds": plan.idle, "writes": written, "status_writes": status} | _rates(first, last)


def _among(members: set[int]) -> Callable[[Engine], bool]:
    return lambda engine: id(engine) in members


def _rates(first: Reading, last: Reading) -> Found:
    seconds = last.at - first.at
    return {
        "cores": round((last.cpu - first.cpu_after) / seconds, 3),
        "reads_per_second": round((last.reads - first.reads) / seconds, 1),
        "writes_per_second": round((last.all_writes - first.all_writes) / seconds, 2),
        "passes_per_second": round((last.passes - first.passes) / seconds, 1),
        **last.since(first),
    }


def _lags(
    world: World, began: float, ended: float, plan: Plan, of: Callable[[Engine], bool] = lambda _: True
) -> dict[str, float]:
    lags = world.engines.lags(began, ended, plan.interval, of)
    return {
        "readings": len(lags),
        "p50_seconds": round(quantile(lags, 0.5), 3),
        "p99_seconds": round(quantile(lags, 0.99), 3),
        "max_seconds": round(quantile(lags, 1.0), 3),
    }


def _others(cluster: ControlPlane) -> dict[str, float]:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    ours = {"harness": spent.ru_utime + spent.ru_stime}
    return ours | {daemon.name: cpu_of(daemon.process.pid) for daemon in cluster.daemons if daemon.name != "operator"}


async def _until(world: World, done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        world.check()
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.2)
    return True


async def _pause(world: World, seconds: float) -> None:
    await _until(world, lambda: False, seconds)
