"""Live changes under load, pushed by another process: how long until a step obeys, and what became of every request."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import ranks as ranks_
from arms import take
from lane import Lane
from scale import SCALE

from engine import Engine

ALL, ADAPTIVE = {"mode": "All"}, {"mode": "Adaptive"}
VERIFICATIONS = (ALL, ADAPTIVE, {"mode": "Capped", "cap": 48})


def retune(lane: Lane, engine: str) -> None:
    """Another k with every push."""
    load = min(64, SCALE.loads[-1])
    lane.save("retune", lane.ask(engine, pushes, load=load, changes=SCALE.changes, verifications=()))


def switches(lane: Lane, engine: str) -> None:
    """Another k and another way to verify with every push, until all ranks have it."""
    load, changes = min(64, SCALE.loads[-1]), max(12, SCALE.changes * 3 // 10)
    found = lane.ask(engine, pushes, load=load, changes=changes, verifications=VERIFICATIONS)
    lane.save("verification_switches", found)


def ranks(lane: Lane, engine: str) -> None:
    """The same over the ranks of a tensor-parallel engine."""
    load = min(32, SCALE.loads[-1])
    lane.ask(engine, watch)
    found = lane.ask(engine, pushes, load=load, changes=SCALE.changes, verifications=VERIFICATIONS)
    lane.save("tensor_parallel", {"engine": lane.remotes[engine].facts, **found})
    agreement = lane.ask(engine, agree)
    lane.save("tensor_parallel", {"engine": lane.remotes[engine].facts, **found, "agreement": agreement})


def pushes(engine: Engine, *, load: int, changes: int, verifications: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Delays in ms from the start of the PUT; requests of 128 to 384 tokens come and go meanwhile."""
    take(engine, "plugin", SCALE.static_k)
    engine.push(SCALE.static_k)
    engine.fill(load, 256, ages=True)
    finished, failed, boot = engine.finished, engine.failed, engine.control("GET", "/state")["bootId"]
    ks = [k for k in (7, 0, 3, 1, 5, 2, 4) if k in SCALE.ladder]
    bodies = [
        engine.body(ks[i % len(ks)], verifications[i % len(verifications)] if verifications else None)
        for i in range(changes)
    ]
    policy = engine.installation.hooks.policy
    seen: list[tuple[float, int]] = []
    worst = 0.0
    pusher = engine.control.pusher(bodies, confirm=bool(verifications) and engine.adaptive)
    last, done = time.perf_counter(), engine.completed
    while pusher.poll() is None:
        engine.step()
        now = time.perf_counter()
        if engine.completed != done:
            worst, last, done = max(worst, now - last), now, engine.completed
        k = policy.k_in_force
        if k is not None and (not seen or seen[-1][1] != k):
            seen.append((now, k))
        while len(engine.length) < load:
            engine.add(128 + random.randrange(256), 64)
    assert pusher.stdout is not None
    rows = [json.loads(line) for line in pusher.stdout]
    while engine.engine.has_unfinished_requests():
        engine.step()
    delays = [
        1000 * (next((at for at, k in seen if at > row["start"] and k == row["k"]), math.inf) - row["start"])
        for row in rows
    ]
    found = {
        "changes": len(rows), "requests": load, "retune_ms": quantiles(delays),
        "acknowledged_ms": quantiles([1000 * (row["acknowledged"] - row["start"]) for row in rows]),
        "finished_requests": engine.finished - finished, "failed_requests": engine.failed - failed,
        "longest_step_ms": 1000 * worst, "exit_code": pusher.returncode,
        "same_process": engine.control("GET", "/state")["bootId"] == boot,
    }  # fmt: skip
    if verifications and engine.adaptive:
        applied = [row for row in rows if "applied" in row]
        found |= {
            "verification_applied": len(applied),
            "verification_applied_ms": quantiles([1000 * (row["applied"] - row["start"]) for row in applied]),
            "verification_errors": sorted({row["error"] for row in applied if row["error"]}),
            "ranks": sorted({row["ranks"] for row in applied}),
        }
    return found


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and max; empty where there are none."""
    if not values:
        return {}
    ordered = sorted(values)
    p50, p99 = (ordered[math.ceil(q * len(ordered)) - 1] for q in (0.5, 0.99))
    return {"p50": p50, "p99": p99, "max": ordered[-1]}


def watch(engine: Engine) -> None:
    """Have every rank write down its steps and changes."""
    engine.llm.collective_rpc(ranks_.watch)


def agree(engine: Engine) -> dict[str, Any]:
    """Whether the ranks wrote down the same."""
    return ranks_.agreement(engine.llm.collective_rpc(ranks_.told))
