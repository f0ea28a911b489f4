"""Adaptive verification (AV) switched live: what each way gives at each load, beside an engine booted without AV.

The estimator was started where a trained draft would put it (see Engine): dummy weights have no confidence to learn
from. One stage puts it back to its own start, on purpose, to see it starve.
"""

from __future__ import annotations

import math
import time
from typing import Any

from arms import PROMPT_TOKENS, take
from lane import Lane
from scale import SCALE

from engine import Engine

SLOPE, BIAS = 0.5, -0.2
"""Where vLLM 0.33 starts its estimator (v1/worker/gpu/spec_decode/acceptance_estimator.py)."""
STRETCH_SECONDS = 5.5
"""The plugin fetches its counts every 5 s."""


def ways(load: int) -> list[tuple[str, int, dict[str, Any] | None]]:
    """(engine, k, how to verify): AV by its own estimate, capped at 2 a request, all; and AV not booted."""
    k = SCALE.ladder[0]
    return [
        ("av", k, {"mode": "Adaptive"}),
        ("av", k, {"mode": "Capped", "cap": 2 * load}),
        ("av", k, {"mode": "All"}),
        ("main", k, None),
        ("main", 5, None),
        ("av", 3, {"mode": "All"}),
        ("main", 3, None),
    ]


def by_load(lane: Lane) -> None:
    """Forth and back over the ways at every load."""
    rows: list[dict[str, Any]] = []
    for load in SCALE.loads:
        for order in (ways(load), ways(load)[::-1]):
            for engine, k, verification in order:
                if row := lane.try_ask(engine, window, load=load, k=k, verification=verification):
                    rows.append(row)
        lane.save_rows("verification", rows)
        lane.log(f"verification at {load}: {[round(row['tok_s']) for row in rows if row['load'] == load]}")


def window(engine: Engine, *, load: int, k: int, verification: dict[str, Any] | None) -> dict[str, Any]:
    """Tokens per second of one way to verify."""
    take(engine, "plugin", k)
    engine.push(k, verification)
    engine.fill(load, prompt_tokens=PROMPT_TOKENS, warm=12)
    before = verified(engine)
    wall, steps, tokens = engine.window(SCALE.verification_seconds, steps=30)
    after = verified(engine)
    return {
        "load": load, "engine": engine.options.name, "k": k, "mode": (verification or {}).get("mode", "not booted"),
        "cap": (verification or {}).get("cap"), "step_ms": 1000 * wall / steps, "steps": steps, "tok_s": tokens / wall,
        "tok_per_req_step": tokens / steps / load, "drafted": after[0] - before[0], "verified": after[1] - before[1],
    }  # fmt: skip


def verified(engine: Engine) -> tuple[int, int]:
    """(drafted, verified) since boot, asked of the worker; zeros where AV was not booted."""
    if not engine.adaptive:
        return 0, 0
    from paceline_engine.worker import report

    told = engine.llm.collective_rpc(report)[0]
    return told.drafted, told.verified


def starve(lane: Lane, engine: str) -> None:
    """The estimator from its own start on dummy weights: does the plugin say that it starves, and does All feed it?"""
    load = min(64, SCALE.loads[-1])
    lane.save("verification_starved", lane.ask(engine, starved, load=load))


def starved(engine: Engine, *, load: int) -> dict[str, Any]:
    """State and tokens per second: helped, starved, and adaptive again after a spell of verifying all."""
    k = SCALE.ladder[0]
    found = {"helped": stretch(engine, load, k, "Adaptive")}
    if engine.adaptive:
        engine.llm.collective_rpc(start_estimator, args=(SLOPE, BIAS))
    found["own_start"] = stretch(engine, load, k, "Adaptive", 2 * STRETCH_SECONDS)
    found["verifying_all"] = stretch(engine, load, k, "All")
    found["adaptive_again"] = stretch(engine, load, k, "Adaptive")
    if engine.adaptive:
        engine.llm.collective_rpc(start_estimator, args=(0.0, math.log(SCALE.rates[0] / (1 - SCALE.rates[0]))))
    return found


def stretch(engine: Engine, load: int, k: int, mode: str, seconds: float = STRETCH_SECONDS) -> dict[str, Any]:
    """Some seconds in one mode, then what GET /state says of it."""
    engine.push(k, {"mode": mode})
    engine.fill(load, prompt_tokens=PROMPT_TOKENS)
    start = time.perf_counter()
    tokens = 0
    while time.perf_counter() - start < (0.5 if SCALE.cpu else seconds):
        tokens += engine.step()
        while len(engine.length) < load:
            engine.add(SCALE.reply_tokens, PROMPT_TOKENS)
    took = time.perf_counter() - start
    return {"mode": mode, "tok_s": tokens / took, "state": engine.control("GET", "/state")["adaptiveVerification"]}


def start_estimator(worker: Any, slope: float, bias: float) -> None:
    """In a worker: the estimator's coefficients as if it began anew with these."""
    import torch

    estimator = getattr(worker, "worker", worker).model_runner.speculator.acceptance_estimator
    with torch.inference_mode():  # the tensors were made in it
        estimator.slope.fill_(slope)
        estimator.intercepts.fill_(bias)
