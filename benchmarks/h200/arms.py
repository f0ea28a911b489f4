"""What a thing costs: windows of the arms that differ by it, forth and back, over identical fresh requests.

Contexts grow inside a window, and clocks drift over minutes. So each window begins with new requests of the same
prompt length and lasts the same number of steps in every arm, and a round visits the arms in an order and then in
reverse: the mean of an arm's two windows is free of any straight drift. Rounds rotate the order.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from lane import Lane
from scale import SCALE

from engine import Engine

PROMPT_TOKENS = 32
WARM_STEPS = 6
HOOKS = ("begin", "scheduled", "completed", "applied")
HOOK_STEPS, FRESH_STEPS = 1200, 100
T95 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    10: 2.228,
    11: 2.201,
    12: 2.179,
    13: 2.160,
}
"""Student's t of a two-sided 95 % interval, by degrees of freedom."""
Arm = tuple[str, str, int]
"""(engine, plugin | no_thread | bare | as_booted, k)."""


def take(engine: Engine, arm: str, k: int) -> None:
    """Put the plugin in, or without its control thread, or take it out; `bare` is the boot schedule's own list."""
    installation = engine.installation
    if installation is None:
        return
    if arm == "bare":
        engine.scheduler._paceline = None
        engine.scheduler.dynamic_sd_lookup = [k] * (engine.options.seqs + 1)
    else:
        engine.scheduler._paceline = installation
        engine.scheduler.dynamic_sd_lookup = installation.hooks.policy
    backend = installation.server._backend
    if arm == "plugin" and backend._closed:
        backend._closed = False
        installation.server.start()
    elif arm != "plugin" and not backend._closed:
        installation.server.close()


def window(engine: Engine, *, arm: str, k: int, load: int, steps: int) -> dict[str, Any]:
    """One window of one arm. The arm `plugin` must have k pushed already, unless its port is open."""
    take(engine, arm, k)
    if arm == "plugin" and engine.installation.hooks.policy.plan.table[load] != k:
        engine.push(k)
    engine.fill(load, prompt_tokens=PROMPT_TOKENS, warm=WARM_STEPS)
    engine.modes.clear()
    wall, done, tokens = engine.window(steps=steps)
    full = sum(n for mode, n in engine.modes.items() if "FULL" in mode)
    usage = float(engine.scheduler.kv_cache_manager.usage)
    return {"step_ms": 1000 * wall / done, "steps": done, "tokens": tokens, "full_graph_steps": full, "kv": usage}


def compare(lane: Lane, arms: Sequence[Arm], load: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """All windows of all arms at a load; arms whose engine is gone are left out."""
    rows: list[dict[str, Any]] = []
    arms = [arm for arm in arms if arm[0] in lane.remotes and lane.remotes[arm[0]].alive]
    for round_ in range(rounds):
        turned = [*arms[round_ % len(arms) :], *arms[: round_ % len(arms)]]
        for half, order in enumerate((turned, turned[::-1])):
            for engine, arm, k in order:
                if found := lane.try_ask(engine, window, arm=arm, k=k, load=load, steps=steps):
                    place = {"load": load, "engine": engine, "arm": arm, "k": k, "round": round_, "half": half}
                    rows.append(place | found)
    return rows


def ratio(rows: Sequence[dict[str, Any]], one: Arm, other: Arm) -> dict[str, Any]:
    """Step time of `one` over that of `other` in percent, with its 95 % interval over rounds."""

    def logs(arm: Arm) -> dict[int, float]:
        by_round: dict[int, list[float]] = {}
        for row in rows:
            if (row["engine"], row["arm"], row["k"]) == arm:
                by_round.setdefault(row["round"], []).append(math.log(row["step_ms"]))
        return {round_: statistics.fmean(found) for round_, found in by_round.items()}

    a, b = logs(one), logs(other)
    differences = [a[round_] - b[round_] for round_ in a.keys() & b.keys()]
    if not differences:
        return {"rounds": 0}
    mean = statistics.fmean(differences)
    found = {"value": 100 * math.expm1(mean), "rounds": len(differences)}
    if len(differences) > 1:
        error = T95.get(len(differences) - 1, 2.0) * statistics.stdev(differences) / math.sqrt(len(differences))
        found |= {"low": 100 * math.expm1(mean - error), "high": 100 * math.expm1(mean + error)}
    return found


def overhead(lane: Lane, engine: str) -> None:
    """The plugin polled from outside, the plugin without its thread, neither: three arms of one engine."""
    k = SCALE.static_k
    plugin, quiet, bare = (engine, "plugin", k), (engine, "no_thread", k), (engine, "bare", k)
    lane.ask(engine, pushed, k=k)
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        str(load): {"hook_us": lane.ask(engine, hook_time, load=load, k=k)} for load in SCALE.cost_loads
    }
    lane.save("overhead", {"k": k, "by_load": found})
    for load, steps in sorted(SCALE.cost_loads.items(), reverse=True):  # the greatest load is what a limit is set for
        with lane.remotes[engine].control.polled():
            here = compare(lane, (plugin, quiet, bare), load, steps, SCALE.rounds[load])
        rows += here
        found[str(load)] |= {
            "plugin_over_none": ratio(here, plugin, bare),
            "plugin_over_no_thread": ratio(here, plugin, quiet),
            "hooks_over_none": ratio(here, quiet, bare),
        }
        lane.log(f"overhead at {load}: {found[str(load)]}")
        lane.save("overhead", {"k": k, "by_load": found})
        lane.save_rows("overhead_windows", rows)


def boots(lane: Lane) -> None:
    """What a schedule costs, what a drafter costs that drafts nothing, and how far boots of one engine are apart."""
    k = SCALE.static_k
    main = ("main", "bare", k)
    plugin = ("main", "plugin", k)
    statics = [(name, "as_booted", k) for name in ("static1", "static2")]
    off, none = ("main", "bare", 0), ("off", "as_booted", 0)
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    loads = {**SCALE.cost_loads, **{load: 60 for load in SCALE.loads if load not in SCALE.cost_loads}}
    for load, steps in loads.items():
        arms = (plugin, main, *statics, off, none) if load in SCALE.cost_loads else (off, none)
        here = compare(lane, arms, load, max(30, steps // 2), SCALE.boot_rounds)
        rows += here
        found[str(load)] = {"k0_over_no_drafter": ratio(here, off, none)}
        if load in SCALE.cost_loads:
            found[str(load)] |= {
                "schedule_over_static1": ratio(here, main, statics[0]),
                "schedule_over_static2": ratio(here, main, statics[1]),
                "plugin_over_static1": ratio(here, plugin, statics[0]),
                "static2_over_static1": ratio(here, statics[1], statics[0]),
            }
        lane.log(f"boots at {load}: {found[str(load)]}")
        lane.save("boots", {"k": k, "by_load": found})
        lane.save_rows("boots_windows", rows)


def pushed(engine: Engine, *, k: int) -> None:
    """Push k with the plugin in, and let a step take it."""
    take(engine, "plugin", k)
    engine.push(k)
    engine.fill(1, prompt_tokens=PROMPT_TOKENS)


def hook_time(engine: Engine, *, load: int, k: int) -> dict[str, float]:
    """Microseconds in the hooks of one completed step, by perf_counter_ns: p50 and p99 over HOOK_STEPS steps."""
    take(engine, "plugin", k)
    engine.fill(load, prompt_tokens=PROMPT_TOKENS, warm=WARM_STEPS)
    hooks = engine.installation.hooks
    spent = 0

    def timing(inner: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            nonlocal spent
            start = time.perf_counter_ns()
            answer = inner(*args)
            spent += time.perf_counter_ns() - start
            return answer

        return timed

    for name in HOOKS:
        setattr(hooks, name, timing(getattr(hooks, name)))
    times: list[float] = []
    try:
        while len(times) < HOOK_STEPS:
            before, spent = engine.completed, 0
            while engine.completed == before:
                engine.step()
            times.append(spent / 1000)
            if len(times) % FRESH_STEPS == 0:  # fresh requests: none may end or be preempted in here
                engine.fill(load, prompt_tokens=PROMPT_TOKENS, warm=WARM_STEPS)
    finally:
        for name in HOOKS:
            delattr(hooks, name)
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[math.ceil(0.99 * len(times)) - 1], "steps": len(times)}
