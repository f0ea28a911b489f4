"""The tuner closed around a real engine: does it find, at every load, what the best fixed k gives there?

The loads once up, once down. On the way up every fixed k is pinned for two windows at each load, one before the tuner's
visit and one after, in opposite orders, and the drafter-less engine that lies beside has its windows there too. All
that is hidden from the tuner: its samples are thrown away and its clock stands. On the way down the tuner alone runs;
scored on the last 15 s of each visit. The tuner is the operator's own, called between steps at its interval; the time
that its reads and pushes take is part of every figure.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from arms import take
from lane import Lane
from remote import Failed
from scale import SCALE

from engine import Engine

INTERVAL_SECONDS = 2
SCORED_SECONDS = 15.0
SETTLE_SECONDS = 0.25
PROMPT_TOKENS = 96
REFERENCE_SECONDS = 5.0


class Loop:
    """The tuner, and the engine it drives."""

    def __init__(self, engine: Engine) -> None:
        """Start as a fresh serving does: boot table, nothing known."""
        from paceline_operator.api.serving import ServingSpec
        from paceline_operator.tuning.decide import settings_of
        from paceline_operator.tuning.model import Memory, Step

        self.engine = engine
        spec: dict[str, Any] = {
            "model": {"source": "/models/target"},
            "speculation": {
                "method": "eagle", "draft": {"source": "/models/draft"}, "maxTokens": SCALE.ladder[0],
                "adaptiveVerification": "Enabled" if engine.options.verification else "Disabled",
            },
            "engine": {"maxNumSeqs": engine.options.seqs},
            "tuning": {"ladder": list(SCALE.ladder), "intervalSeconds": INTERVAL_SECONDS},
        }  # fmt: skip
        self.settings = settings_of(ServingSpec.model_validate(spec))
        self.memory = Memory()
        self.last: Step | None = None
        self.decisions: list[dict[str, Any]] = []
        self.pass_ms: list[float] = []
        self.at = self.due = 0.0
        """The tuner's clock, seconds in which it was in charge; and when it passes next."""

    def pass_(self, now: float) -> None:
        """Read, decide, push whatever policy comes out."""
        from paceline_engine.protocol import Samples, State
        from paceline_operator.tuning.decide import step
        from paceline_operator.tuning.model import Engine as Seen

        begun = time.perf_counter()
        control = self.engine.control
        cursor = self.memory.cursors.get("engine", "")
        state = State.model_validate(control("GET", "/state"))
        samples = Samples.model_validate(control("GET", f"/samples?cursor={cursor}"))
        seen = Seen("engine", state, samples)
        self.last = step(self.settings, self.memory, [seen], known_generation=self.engine.generation, now=now)
        self.memory = self.last.memory
        if self.last.policy and self.last.push_to:
            control("PUT", "/policy", self.last.policy.model_dump(by_alias=True, mode="json"))
            self.engine.generation = self.last.policy.generation
        self.pass_ms.append(1000 * (time.perf_counter() - begun))
        for made in self.last.decisions:
            self.decisions.append(
                {
                    "at_seconds": round(now, 1), "load": len(self.engine.length), "reason": str(made.reason),
                    "message": made.message, "from": made.from_k, "to": made.to_k,
                    "verification": str(getattr(made, "verification", None) or ""),
                }
            )  # fmt: skip
            print(self.decisions[-1], flush=True)

    def hide(self, load: int) -> None:
        """Put the tuner's policy back in force and its cursor behind all that happened under another."""
        from paceline_engine.protocol import Policy

        policy = self.last.policy if self.last else None
        policy = policy or Policy(generation=1, table=self.settings.boot_table)
        self.engine.generation += 1
        again = policy.model_copy(update={"generation": self.engine.generation})
        self.engine.control("PUT", "/policy", again.model_dump(by_alias=True, mode="json", exclude_none=True))
        first = cursor = self.engine.control("GET", "/samples")["cursor"]
        while cursor == first:
            drive(self.engine, load, 0.1)
            cursor = self.engine.control("GET", f"/samples?cursor={first}")["cursor"]
        self.memory = replace(self.memory, cursors={**self.memory.cursors, "engine": cursor})


def begin(engine: Engine) -> None:
    """Put a fresh tuner around the engine."""
    take(engine, "plugin", SCALE.static_k)
    engine.loop = Loop(engine)


def drive(engine: Engine, load: int, seconds: float, *, tuned: bool = False) -> dict[str, Any]:
    """A stretch at `load` closed-loop requests: tokens, seconds, steps by k as the plugin counts them."""
    before = steps_by_k(engine)
    begun, done, serial = time.perf_counter(), engine.completed, engine.serial
    tokens = 0
    while (now := time.perf_counter() - begun) < seconds:
        if tuned and engine.loop.at + now >= engine.loop.due:
            engine.loop.pass_(engine.loop.at + now)
            engine.loop.due = max(engine.loop.due + INTERVAL_SECONDS, engine.loop.at + now)
        tokens += engine.step()
        while len(engine.length) < load:
            engine.add(SCALE.reply_tokens, PROMPT_TOKENS)
    took = time.perf_counter() - begun
    if tuned:
        engine.loop.at += took
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
    engine: Engine, *, load: int, ks: list[int], seconds: float, verification: dict[str, Any] | None = None
) -> dict[int, dict[str, Any]]:
    """A window of every k in turn; afterwards the tuner, if there is one, sees nothing of it."""
    fill(engine, load)
    found = {}
    for k in ks:
        if engine.installation is not None:
            engine.push(k, verification)
        drive(engine, load, SETTLE_SECONDS)
        found[k] = drive(engine, load, seconds)
    if engine.loop is not None:
        engine.loop.hide(load)
    engine.drain()
    return found


def visit(engine: Engine, *, load: int, seconds: float) -> dict[str, Any]:
    """The tuner at one load: the whole visit, and its last seconds, which are scored."""
    fill(engine, load)
    scored = min(SCORED_SECONDS, seconds / 2)
    first = drive(engine, load, seconds - scored, tuned=True)
    second = drive(engine, load, scored, tuned=True)
    engine.drain()
    last = engine.loop.last
    state = engine.control("GET", "/state")
    return {
        "first": first, "scored": second, "table_k": last.k if last else None,
        "verification": state["adaptiveVerification"], "table": state["table"][load],
    }  # fmt: skip


def fill(engine: Engine, load: int) -> None:
    """The load's requests, of all ages."""
    engine.fill(load, SCALE.reply_tokens, prompt_tokens=PROMPT_TOKENS, ages=True)


def told(engine: Engine) -> dict[str, Any]:
    """What the tuner did, and what a pass cost."""
    spent = sorted(engine.loop.pass_ms)
    cost = {"p50": spent[len(spent) // 2], "max": spent[-1], "passes": len(spent)} if spent else {}
    return {"decisions": engine.loop.decisions, "pass_ms": cost, "pushed": engine.generation}


def run(lane: Lane, engine: str, beside: str) -> None:
    """Up and down once; saved after every load, so that an end before the end costs the rest alone."""
    visit_ = SCALE.visit_seconds
    ladder = list(SCALE.ladder)
    result: dict[str, Any] = {
        "engine": lane.remotes[engine].facts, "reply_tokens": SCALE.reply_tokens, "loads": list(SCALE.loads),
        "interval_seconds": INTERVAL_SECONDS, "fixed": {}, "off": {}, "up": {}, "down": {},
    }  # fmt: skip
    lane.ask(engine, begin)
    result["reference"] = [reference(lane, engine)]
    for load in SCALE.loads:
        for order in (ladder, ladder[::-1]):
            windows = lane.ask(engine, pinned, load=load, ks=order, seconds=SCALE.pinned_seconds)
            for k, found in windows.items():
                result["fixed"].setdefault(load, {}).setdefault(k, []).append(found)
            with suppress(Failed):  # without it the rest still says something
                found = lane.ask(beside, pinned, load=load, ks=[0], seconds=SCALE.pinned_seconds)[0]
                result["off"].setdefault(load, []).append(found)
            if load not in result["up"]:
                result["up"][load] = lane.ask(engine, visit, load=load, seconds=visit_)
        lane.log(f"closed loop up {load}: {result['up'][load]}")
        lane.save("closed_loop_raw", result | lane.ask(engine, told))
    for load in reversed(SCALE.loads):
        result["down"][load] = lane.ask(engine, visit, load=load, seconds=visit_)
        lane.log(f"closed loop down {load}: {result['down'][load]}")
        lane.save("closed_loop_raw", result | lane.ask(engine, told))
    result["reference"].append(reference(lane, engine))
    lane.save("closed_loop_raw", result | lane.ask(engine, told))


def run_verification(lane: Lane, engine: str) -> None:
    """The tuner in an engine with AV booted, which it may switch; some fixed ways beside it."""
    up, down = SCALE.verification_visit_seconds
    k = SCALE.ladder[0]
    ways: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("adaptive", k, {"mode": "Adaptive"}),
        ("all", 3, {"mode": "All"}),
    )
    result: dict[str, Any] = {"engine": lane.remotes[engine].facts, "fixed": {}, "up": {}, "down": {}}
    lane.ask(engine, begin)
    result["reference"] = [reference(lane, engine)]
    for load in SCALE.loads:
        result["up"][load] = lane.ask(engine, visit, load=load, seconds=up)
        for name, at, way in ways:
            windows = lane.ask(engine, pinned, load=load, ks=[at], seconds=SCALE.pinned_seconds, verification=way)
            result["fixed"].setdefault(load, {})[f"{name}-{at}"] = windows[at]
        lane.save("closed_loop_verification_raw", result | lane.ask(engine, told))
    for load in reversed(SCALE.loads):
        result["down"][load] = lane.ask(engine, visit, load=load, seconds=down)
        lane.log(f"closed loop with AV, down {load}: {result['down'][load]}")
        lane.save("closed_loop_verification_raw", result | lane.ask(engine, told))
    result["reference"].append(reference(lane, engine))
    lane.save("closed_loop_verification_raw", result | lane.ask(engine, told))


def reference(lane: Lane, engine: str) -> dict[str, Any]:
    """The same cell at start and end: what drifted. With AV booted, verifying all."""
    load, k = SCALE.loads[len(SCALE.loads) // 2], SCALE.static_k
    verification = {"mode": "All"} if lane.remotes[engine].options.verification else None
    seconds = 1.0 if SCALE.cpu else REFERENCE_SECONDS
    found = lane.ask(engine, pinned, load=load, ks=[k], seconds=seconds, verification=verification)
    return {"load": load, "k": k, **found[k]}
