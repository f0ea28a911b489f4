"""What steps with prompts take, by load and k: every step of a closed loop, and what the plugin says of the same steps.

Requests end and others come in their place, as in life, with k pinned. The prompts of a step are of requests that came
before it; with asynchronous scheduling, a step or two before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from arms import take
from closed_loop import PROMPT_TOKENS, SETTLE_SECONDS, drive, fill, sealed
from lane import Lane
from scale import SCALE

from engine import Engine


def sweep(lane: Lane, engine: str) -> None:
    """Every k at every load; saved after each load."""
    found: dict[str, Any] = {"engine": lane.remotes[engine].facts, "by_load": {}}
    for load in reversed(SCALE.loads):
        at = found["by_load"][load] = lane.ask(
            engine, recorded, load=load, ks=SCALE.ladder[::-1], seconds=SCALE.pinned_seconds
        )
        lane.save("mixed", found)
        lane.log(f"mixed at {load}: {[len(one['steps']) for one in at.values()]} steps")


def recorded(engine: Engine, *, load: int, ks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
    """By k: each step as [microseconds, tokens that came out, requests that came after it], and the plugin's cells."""
    take(engine, "plugin", ks[0])
    engine.generation = max(engine.generation, engine.control("GET", "/state")["generation"])
    fill(engine, load)
    found = {}
    for k in ks:
        engine.push(k)
        drive(engine, load, SETTLE_SECONDS)
        cursor = sealed(engine, load)
        steps = []
        begun = last = time.perf_counter()
        while last - begun < seconds:
            tokens = engine.step()
            came = load - len(engine.length)
            for _ in range(came):
                engine.add(SCALE.reply_tokens, PROMPT_TOKENS)
            now = time.perf_counter()
            steps.append([round(1e6 * (now - last)), tokens, came])
            last = now
        sealed(engine, load)
        samples = engine.control("GET", f"/samples?cursor={cursor}")
        found[k] = {"steps": steps, "cells": [{**cell, "histogram": {}} for cell in samples["cells"]]}
    engine.drain()
    return found
