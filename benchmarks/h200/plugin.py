"""What the plugin does and costs in a real vLLM: three questions to one engine.

sweep     Are the plugin's samples true? Step time and acceptance of every (requests, k), with k pushed over HTTP,
          against wall clock and tokens counted outside the plugin; and whether each k ran on its FULL graph.
retune    200 pushes over HTTP from another process while 64 closed-loop requests run: time from the PUT to the first
          step with the new k, and what became of every request.
overhead  The plugin's hooks taken out and put back between windows, A/B/B/A, at 1, 64 and 256 requests: ratio of step
          times with its 95 % interval; and the time spent in the hooks of each step.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from typing import Any

import numpy as np

from engine import LADDER, PORT, RATES, SEQS, TOKEN, Engine, call

LOADS = [1, 8, 32, 64, 128, 256]
CHANGES = 200
LONG = 1800
"""Tokens of a request that outlives its windows."""
TOKENS_A_SECOND = 480
"""Of one request, at most, at k=3."""
PUSHER = """
import json, sys, time, urllib.request
port, token, seqs, changes, generation = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
ks = [7, 0, 3, 1, 5, 2, 4]
for i in range(changes):
    k = ks[i % len(ks)]
    body = json.dumps({"generation": generation + i, "table": [k] * (seqs + 1), "dwellSteps": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/policy", body, method="PUT",
                                     headers={"Authorization": f"Bearer {token}"})
    start = time.perf_counter()
    urllib.request.urlopen(request, timeout=10).read()
    print(json.dumps({"k": k, "start": start, "acknowledged": time.perf_counter()}), flush=True)
    time.sleep(0.2)
"""


def sweep(engine: Engine, seconds: float) -> list[dict[str, Any]]:
    """One row a (requests, k): measured outside the plugin, beside what the plugin says of the same steps."""
    rows = []
    for load in LOADS:
        for k in LADDER:
            engine.push(k)
            engine.fill(load)
            cursor = sealed(engine)
            engine.modes.clear()
            wall, steps, tokens = engine.window(seconds)
            modes = dict(engine.modes)
            samples = call("GET", f"/samples?cursor={cursor}")
            cells = [c for c in samples["cells"] if c["kDrafted"] == k]
            counted = sum(c["steps"] for c in cells)
            fates = [a for a in samples["acceptance"] if a["k"] == k]
            requests = sum(a["requestSteps"] for a in fates)
            accepted = [sum(a["accepted"][i] for a in fates) for i in range(k)]
            survival = [a / requests if requests else math.nan for a in accepted]
            row = {
                "concurrency": load, "k": k, "steps": steps, "step_ms": 1000 * wall / steps,
                "tok_s": tokens / wall, "tok_per_req_step": tokens / steps / load,
                "plugin_steps": counted,
                "plugin_step_ms": 1000 * sum(c["seconds"] for c in cells) / counted if counted else math.nan,
                "plugin_length": 1 + sum(survival), "survival": survival, "graph_modes": modes,
                "excluded": samples["excludedSteps"],
            }  # fmt: skip
            row["cost_error_pct"] = 100 * (row["plugin_step_ms"] / row["step_ms"] - 1)
            row["acceptance_error_points"] = max(
                (100 * abs(s - r) for s, r in zip(survival, RATES, strict=False)), default=0.0
            )
            rows.append(row)
            print(json.dumps(row), flush=True)
    engine.drain()
    return rows


def sealed(engine: Engine) -> str:
    """A cursor behind everything that happened so far: step on until the plugin has sealed its open window."""
    first = call("GET", "/samples")["cursor"]
    while (cursor := call("GET", f"/samples?cursor={first}")["cursor"]) == first:
        engine.step()
    return str(cursor)


def retune(engine: Engine) -> dict[str, Any]:
    """Push 200 times from another process under load; delays in ms from the start of the PUT."""
    engine.push(3)
    engine.fill(64, 256)
    finished, failed = engine.finished, engine.failed
    pusher = subprocess.Popen(
        [sys.executable, "-c", PUSHER, str(PORT), TOKEN, str(SEQS), str(CHANGES), str(engine.generation + 1)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    policy = engine.scheduler._paceline.hooks.policy
    seen: list[tuple[float, int]] = []
    worst = 0.0
    last = time.perf_counter()
    while pusher.poll() is None:
        engine.step()
        now = time.perf_counter()
        worst, last = max(worst, now - last), now
        k = policy.k_in_force
        if k is not None and (not seen or seen[-1][1] != k):
            seen.append((now, k))
        while len(engine.length) < 64:
            engine.add(128 + random.randrange(256))
    assert pusher.stdout is not None
    pushes = [json.loads(line) for line in pusher.stdout]
    engine.generation += CHANGES + 1
    delays, acks = [], []
    for push in pushes:
        first = next((at for at, k in seen if at > push["start"] and k == push["k"]), None)
        delays.append(1000 * (first - push["start"]) if first else math.inf)
        acks.append(1000 * (push["acknowledged"] - push["start"]))
    delays.sort()
    acks.sort()
    while engine.engine.has_unfinished_requests():
        engine.step()
    at = lambda values, q: values[min(len(values) - 1, math.ceil(q * len(values)) - 1)]  # noqa: E731
    return {
        "changes": len(pushes), "retune_ms": {"p50": at(delays, 0.5), "p99": at(delays, 0.99), "max": delays[-1]},
        "acknowledged_ms": {"p50": at(acks, 0.5), "p99": at(acks, 0.99)},
        "finished_requests": engine.finished - finished, "failed_requests": engine.failed - failed,
        "longest_step_ms": 1000 * worst, "exit_code": pusher.returncode,
    }  # fmt: skip


def overhead(engine: Engine, seconds: float, pairs: int) -> dict[str, Any]:
    """Step time with the hooks over step time without, in percent, by requests."""
    scheduler = engine.scheduler
    installation = scheduler._paceline
    found: dict[str, Any] = {}
    for load in (1, 64, 256):
        engine.push(3)
        engine.fill(load, LONG)
        ratios = []
        for i in range(pairs):
            if len(engine.length) < load or max(engine.length.values()) > LONG - TOKENS_A_SECOND * 2 * seconds:
                engine.fill(load, LONG)
            times = {}
            for arm in ("with", "without") if i % 2 == 0 else ("without", "with"):
                scheduler._paceline = installation if arm == "with" else None
                scheduler.dynamic_sd_lookup = installation.hooks.policy if arm == "with" else [3] * (SEQS + 1)
                for _ in range(6):
                    engine.step()
                wall, steps, _ = engine.window(seconds)
                times[arm] = wall / steps
            ratios.append(math.log(times["with"] / times["without"]))
        scheduler._paceline, scheduler.dynamic_sd_lookup = installation, installation.hooks.policy
        # Contexts grow from window to window: A/B and B/A together are free of it, each alone is not.
        quads = np.add(ratios[0::2], ratios[1::2]) / 2
        mean, error = float(np.mean(quads)), float(np.std(quads, ddof=1) / math.sqrt(len(quads)))
        t95 = 2.571  # Student's t, 5 degrees of freedom: six quads
        found[str(load)] = {
            "value": 100 * math.expm1(mean), "low": 100 * math.expm1(mean - t95 * error),
            "high": 100 * math.expm1(mean + t95 * error), "pairs": pairs,
        }  # fmt: skip
        found[str(load)]["hook_us"] = hook_time(engine, installation)
        print(load, json.dumps(found[str(load)]), flush=True)
    engine.drain()
    return found


def hook_time(engine: Engine, installation: Any) -> dict[str, float]:
    """Microseconds in the hooks of one step, p50 and p99 over 300 steps."""
    hooks = installation.hooks
    spent = [0]
    kept = {}
    for name in ("begin", "scheduled", "completed", "applied"):
        inner = kept[name] = getattr(hooks, name)

        def timed(*args: Any, _inner: Any = inner) -> Any:
            start = time.perf_counter_ns()
            answer = _inner(*args)
            spent[0] += time.perf_counter_ns() - start
            return answer

        setattr(hooks, name, timed)
    times = []
    for _ in range(300):
        spent[0] = 0
        engine.step()
        times.append(spent[0] / 1000)
    for name in kept:
        delattr(hooks, name)
    times.sort()
    return {"p50": times[150], "p99": times[297]}
