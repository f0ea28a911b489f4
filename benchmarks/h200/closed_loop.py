"""The tuner closed around a real engine: does it find, at every load, what the best fixed k gives there?

The loads once up, once down. On the way up every fixed k is pinned for two windows at each load, one before the
tuner's visit and one after, in opposite orders, and the drafter-less engine that lies beside has its windows there too.
All that is hidden from the tuner: its samples are thrown away and its clock stands. On the way down the tuner runs,
scored on the last 15 s of each visit; the k that was best there on the way up has a window before and one after, which
tells what drifted meanwhile. The tuner is the operator's own and runs, as in life, in a process of its own: it reads
and pushes over HTTP at its interval while the engine steps.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from arms import take
from lane import Lane
from remote import Failed
from scale import SCALE
from tuner import INTERVAL_SECONDS, Tuner

from engine import Engine

SCORED_SECONDS = 15.0
SETTLE_SECONDS = 0.25
PROMPT_TOKENS = 96
REFERENCE_SECONDS, WARM_SECONDS = 5.0, 20.0
"""Of the cell, and of a window before the first: an engine's first steps are slower, and its GPU is cold."""


def drive(engine: Engine, load: int, seconds: float) -> dict[str, Any]:
    """A stretch at `load` closed-loop requests: tokens, seconds, steps by k as the plugin counts them."""
    before = steps_by_k(engine)
    begun, done, serial = time.perf_counter(), engine.completed, engine.serial
    tokens = 0
    while time.perf_counter() - begun < seconds:
        tokens += engine.step()
        while len(engine.length) < load:
            engine.add(SCALE.reply_tokens, PROMPT_TOKENS)
    took = time.perf_counter() - begun
    by_k = {k: n - before.get(k, 0) for k, n in steps_by_k(engine).items() if n > before.get(k, 0)}
    return {
        "tokens": tokens, "seconds": took, "steps": engine.completed - done,
        "started": engine.serial - serial, "k": by_k,
    }  # fmt: skip


def steps_by_k(engine: Engine) -> dict[str, int]:
    """Since boot, bursts included; empty without the plugin."""
    if engine.installation is None:
        return {}
    state = engine.control("GET", "/state")
    both = (state["stepsByK"], state["probeStepsByK"])
    return {k: sum(counts.get(k, 0) for counts in both) for k in set().union(*both)}


def pinned(
    engine: Engine,
    *,
    load: int,
    ks: list[int],
    seconds: float,
    verification: dict[str, Any] | None = None,
    restore: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A window of every k in turn; then `restore` in force again, and a cursor behind all of it."""
    has_plugin = engine.installation is not None
    if has_plugin:
        take(engine, "plugin", ks[0])
        engine.generation = max(engine.generation, engine.control("GET", "/state")["generation"])
    fill(engine, load)
    windows = {}
    for k in ks:
        if has_plugin:
            engine.push(k, verification)
        drive(engine, load, SETTLE_SECONDS)
        windows[k] = drive(engine, load, seconds)
    cursor = ""
    if restore:
        engine.generation += 1
        engine.control("PUT", "/policy", restore | {"generation": engine.generation})
        cursor = sealed(engine, load)
    engine.drain()
    return {"windows": windows, "cursor": cursor}


def sealed(engine: Engine, load: int) -> str:
    """A cursor behind all that happened so far: go on at `load` until the plugin has sealed its open window."""
    first = cursor = engine.control("GET", "/samples")["cursor"]
    while cursor == first:
        drive(engine, load, 0.05)
        cursor = engine.control("GET", f"/samples?cursor={first}")["cursor"]
    return str(cursor)


def visited(engine: Engine, *, load: int, seconds: float) -> dict[str, Any]:
    """The whole visit of the tuner at one load, and its last seconds, which are scored."""
    fill(engine, load)
    scored = min(SCORED_SECONDS, seconds / 2)
    first, second = drive(engine, load, seconds - scored), drive(engine, load, scored)
    engine.drain()
    state = engine.control("GET", "/state")
    return {
        "first": first, "scored": second, "verification": state["adaptiveVerification"], "table_k": state["table"][load]
    }  # fmt: skip


def fill(engine: Engine, load: int) -> None:
    """The load's requests, of all ages."""
    engine.fill(load, SCALE.reply_tokens, prompt_tokens=PROMPT_TOKENS, ages=True)


class Run:
    """One engine with a tuner around it, seen from the lane; saved after every load, so that an end loses little."""

    def __init__(self, lane: Lane, engine: str, name: str) -> None:
        self.lane, self.engine, self.name = lane, engine, name
        self.tuner = Tuner(lane, engine)
        self.result: dict[str, Any] = {
            "engine": lane.remotes[engine].facts, "reply_tokens": SCALE.reply_tokens, "loads": list(SCALE.loads),
            "interval_seconds": INTERVAL_SECONDS, "fixed": {}, "off": {}, "up": {}, "down": {}, "beside": {},
            "reference": [],
        }  # fmt: skip

    def save(self) -> None:
        """All so far."""
        self.lane.save(self.name, self.result | self.tuner.told())

    def visit(self, way: str, load: int, seconds: float) -> None:
        """The tuner at one load."""
        with self.tuner.in_charge():
            found = self.lane.ask(self.engine, visited, load=load, seconds=seconds)
        self.result[way][load] = found
        self.lane.log(f"{self.name} {way} {load}: {found}")
        self.save()

    def pinned(
        self, load: int, ks: list[int], seconds: float, verification: dict[str, Any] | None = None
    ) -> dict[int, dict[str, Any]]:
        """Windows of fixed ks that the tuner sees nothing of."""
        found = self.lane.ask(
            self.engine,
            pinned,
            load=load,
            ks=ks,
            seconds=seconds,
            verification=verification,
            restore=self.tuner.policy,
        )
        self.tuner.skip_to(found["cursor"])
        windows: dict[int, dict[str, Any]] = found["windows"]
        return windows

    def warm(self) -> None:
        """What the first window costs is nobody's."""
        self._cell(1.0 if SCALE.cpu else WARM_SECONDS)

    def reference(self) -> None:
        """The same cell at start and end: what drifted. With AV booted, verifying all."""
        self.result["reference"].append(self._cell(1.0 if SCALE.cpu else REFERENCE_SECONDS))
        self.save()

    def _cell(self, seconds: float) -> dict[str, Any]:
        load, k = SCALE.loads[len(SCALE.loads) // 2], SCALE.static_k
        verification = {"mode": "All"} if self.lane.remotes[self.engine].options.verification else None
        return {"load": load, "k": k, **self.pinned(load, [k], seconds, verification)[k]}


def run(lane: Lane, engine: str, beside: str) -> None:
    """Up and down once."""
    ladder = list(SCALE.ladder)
    run = Run(lane, engine, "closed_loop_raw")
    run.warm()
    run.reference()
    for load in SCALE.loads:
        for order in (ladder, ladder[::-1]):
            for k, found in run.pinned(load, order, SCALE.pinned_seconds).items():
                run.result["fixed"].setdefault(load, {}).setdefault(k, []).append(found)
            with suppress(Failed):  # without it the rest still says something
                off = lane.ask(beside, pinned, load=load, ks=[0], seconds=SCALE.pinned_seconds)
                run.result["off"].setdefault(load, []).append(off["windows"][0])
            if load not in run.result["up"]:
                run.visit("up", load, SCALE.visit_seconds)
    for load in reversed(SCALE.loads):
        best = best_fixed(run.result["fixed"][load])
        before = run.pinned(load, [best], SCALE.pinned_seconds)[best]
        run.visit("down", load, SCALE.visit_seconds)
        run.result["beside"][load] = {best: [before, run.pinned(load, [best], SCALE.pinned_seconds)[best]]}
    run.reference()


def best_fixed(windows: dict[int, list[dict[str, Any]]]) -> int:
    """The k with the most tokens a second."""
    return max(windows, key=lambda k: sum(w["tokens"] for w in windows[k]) / sum(w["seconds"] for w in windows[k]))


def run_verification(lane: Lane, engine: str) -> None:
    """The tuner in an engine with AV booted, which it may switch; some fixed ways beside it."""
    up, down = SCALE.verification_visit_seconds
    ways = (("adaptive", SCALE.ladder[0], {"mode": "Adaptive"}), ("all", SCALE.static_k, {"mode": "All"}))
    run = Run(lane, engine, "closed_loop_verification_raw")
    run.warm()
    run.reference()
    for load in SCALE.loads:
        run.visit("up", load, up)
        for name, k, way in ways:
            found = run.pinned(load, [k], SCALE.pinned_seconds, way)
            run.result["fixed"].setdefault(load, {})[f"{name}-{k}"] = found[k]
    for load in reversed(SCALE.loads):
        run.visit("down", load, down)
    run.reference()
