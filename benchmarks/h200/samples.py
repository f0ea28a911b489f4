"""Are the plugin's samples true? Each (requests, k), with k pushed over HTTP, against what is counted outside of it.

Step time against wall clock over completed steps; tokens against tokens that came out; acceptance by position against
the synthetic rates, with the standard error that the number of drafts leaves; and which graph each step ran on.
"""

from __future__ import annotations

import math
import time
from typing import Any

from arms import take
from lane import Lane
from scale import SCALE

from engine import Engine

SEALED_SECONDS = 0.05
"""Between two looks whether the plugin has sealed its window."""


def sweep(lane: Lane, engine: str) -> None:
    """One row a cell, and the largest errors."""
    rows: list[dict[str, Any]] = []
    for load in SCALE.loads:
        for k in SCALE.ladder:
            if row := lane.try_ask(engine, cell, load=load, k=k, seconds=SCALE.sweep_seconds):
                rows.append(row)
                lane.save_rows("sweep", rows)
        lane.log(f"sweep at {load}: {[round(row['cost_error_pct'], 2) for row in rows if row['concurrency'] == load]}")
        lane.save("samples", errors(rows))


def cell(engine: Engine, *, load: int, k: int, seconds: float) -> dict[str, Any]:
    """One window, and what the plugin says of the same steps."""
    take(engine, "plugin", k)
    engine.push(k)
    engine.fill(load)
    cursor = sealed(engine)
    engine.modes.clear()
    wall, steps, tokens = engine.window(seconds)
    modes = dict(engine.modes)
    samples = engine.control("GET", f"/samples?cursor={cursor}")
    cells = [c for c in samples["cells"] if c["kDrafted"] == k and not c["prompt"]]
    counted = sum(c["steps"] for c in cells)
    requests = sum(c["requestSteps"] for c in cells)
    fates = [a for a in samples["acceptance"] if a["k"] == k]
    drafts = sum(a["requestSteps"] for a in fates)
    accepted = [sum(a["accepted"][i] for a in fates) for i in range(k)]
    row = {
        "concurrency": load, "k": k, "steps": steps, "step_ms": 1000 * wall / steps,
        "tok_s": tokens / wall, "tok_per_req_step": tokens / steps / load,
        "plugin_steps": counted, "plugin_step_ms": 1000 * sum(c["seconds"] for c in cells) / max(1, counted),
        "plugin_tok_per_req_step": sum(c["emitted"] for c in cells) / max(1, requests),
        "drafts": drafts, "accepted": accepted, "graph_modes": modes, "excluded": samples["excludedSteps"],
        "kv": float(engine.scheduler.kv_cache_manager.usage),
    }  # fmt: skip
    row["cost_error_pct"] = 100 * (row["plugin_step_ms"] / row["step_ms"] - 1)
    row["length_error_pct"] = 100 * (row["plugin_tok_per_req_step"] / row["tok_per_req_step"] - 1)
    return row


def sealed(engine: Engine) -> str:
    """A cursor behind everything that happened so far: step on until the plugin has sealed its open window."""
    first = engine.control("GET", "/samples")["cursor"]
    while (cursor := engine.control("GET", f"/samples?cursor={first}")["cursor"]) == first:
        until = time.perf_counter() + SEALED_SECONDS
        while time.perf_counter() < until:
            engine.serve()
    return str(cursor)


def errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest errors. Acceptance is pooled over loads per k: a cell of one request holds too few drafts."""
    by_k: dict[str, Any] = {}
    for k in SCALE.ladder:
        here = [row for row in rows if row["k"] == k]
        drafts = sum(row["drafts"] for row in here)
        if not k or not drafts:
            continue
        survival = [sum(row["accepted"][i] for row in here) / drafts for i in range(k)]
        points = [100 * (s - rate) for s, rate in zip(survival, SCALE.rates, strict=False)]
        standard_error = 100 * math.sqrt(0.25 / drafts)
        by_k[str(k)] = {
            "drafts": drafts,
            "survival": survival,
            "points": points,
            "largest_standard_error": standard_error,
        }
    deviations = [
        abs(row["accepted"][i] / row["drafts"] - rate) / math.sqrt(rate * (1 - rate) / row["drafts"])
        for row in rows
        if row["drafts"]
        for i, rate in zip(range(row["k"]), SCALE.rates, strict=False)
    ]
    return {
        "cells": len(rows),
        "cost_error_pct_max": max(abs(row["cost_error_pct"]) for row in rows),
        "cost_error_pct_over_3": [
            (row["concurrency"], row["k"], row["cost_error_pct"]) for row in rows if abs(row["cost_error_pct"]) > 3
        ],
        "length_error_pct_max": max(abs(row["length_error_pct"]) for row in rows),
        "acceptance_error_points_max": max((abs(p) for at in by_k.values() for p in at["points"]), default=0.0),
        "acceptance_by_k": by_k,
        "cell_deviations": {"count": len(deviations), "largest_standard_errors": max(deviations, default=0.0)},
        "steps_off_full_graph": sum(
            n for row in rows for mode, n in row["graph_modes"].items() if "FULL" not in mode
        ),
        "steps_on_full_graph": sum(n for row in rows for mode, n in row["graph_modes"].items() if "FULL" in mode),
    }  # fmt: skip
