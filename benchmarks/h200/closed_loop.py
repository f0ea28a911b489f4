"""The tuner closed around a real engine: does it find, at every load, what the best fixed k gives there?

Six loads, up and then down. On the way up, at each load, every fixed k is pinned for a few seconds (hidden from the
tuner: what the engine measured meanwhile is thrown away), then the tuner runs. On the way down the tuner alone runs.
Scored on the second half of each visit. The tuner is the operator's own, called between steps at its interval; the time
that its reads and pushes take is part of every figure.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any

from engine import LADDER, SEQS, Engine, call
from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.api.serving import ServingSpec
from paceline_operator.tuning.decide import settings_of, step
from paceline_operator.tuning.model import Engine as Seen
from paceline_operator.tuning.model import Memory, Step

LOADS = [1, 8, 32, 64, 128, 256]
INTERVAL_SECONDS = 2
VISIT_SECONDS = float(os.environ.get("VISIT_SECS", "30"))
PINNED_SECONDS = float(os.environ.get("PINNED_SECS", "4"))
TOKENS = 512
"""Of a request: short enough that prompts come in between, as they do in life."""


class Loop:
    """The tuner, and the engine it drives."""

    def __init__(self, engine: Engine) -> None:
        """Start as a fresh serving does: boot table, nothing known."""
        self.engine = engine
        spec = {
            "model": {"source": "/models/target"},
            "speculation": {"method": "eagle", "draft": {"source": "/models/draft"}, "maxTokens": LADDER[0]},
            "engine": {"maxNumSeqs": SEQS},
            "tuning": {"ladder": LADDER, "intervalSeconds": INTERVAL_SECONDS},
        }
        self.settings = settings_of(ServingSpec.model_validate(spec))
        self.memory = Memory()
        self.last: Step | None = None
        self.decisions: list[dict[str, Any]] = []
        self.start = time.monotonic()

    def pass_(self) -> None:
        """Read, decide, push."""
        cursor = self.memory.cursors.get("engine", "")
        state = State.model_validate(call("GET", "/state"))
        samples = Samples.model_validate(call("GET", f"/samples?cursor={cursor}"))
        seen = Seen("engine", state, samples)
        at = time.monotonic()
        self.last = step(self.settings, self.memory, [seen], known_generation=self.engine.generation, now=at)
        self.memory = self.last.memory
        if self.last.policy and self.last.push_to:
            call("PUT", "/policy", self.last.policy.model_dump(by_alias=True, mode="json"))
            self.engine.generation = self.last.policy.generation
        for made in self.last.decisions:
            self.decisions.append(
                {
                    "at_seconds": round(at - self.start, 1),
                    "reason": str(made.reason),
                    "message": made.message,
                    "from": made.from_k,
                    "to": made.to_k,
                }
            )
            print(json.dumps(self.decisions[-1]), flush=True)

    def drive(self, load: int, seconds: float, *, tuned: bool) -> tuple[float, dict[str, int]]:
        """(tokens per second, steps by k) of a stretch at `load` closed-loop requests."""
        before = call("GET", "/state")["stepsByK"]
        start = time.perf_counter()
        due = start
        tokens = 0
        while (now := time.perf_counter()) < start + seconds:
            if tuned and now >= due:
                self.pass_()
                due = now + INTERVAL_SECONDS
            tokens += self.engine.step()
            while len(self.engine.length) < load:
                self.engine.add(TOKENS)
        after = call("GET", "/state")["stepsByK"]
        by_k = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
        return tokens / (time.perf_counter() - start), by_k

    def visit(self, load: int) -> dict[str, Any]:
        """The tuner at one load: whole visit and second half."""
        first, _ = self.drive(load, VISIT_SECONDS / 2, tuned=True)
        second, by_k = self.drive(load, VISIT_SECONDS / 2, tuned=True)
        return {
            "whole": (first + second) / 2,
            "settled": second,
            "table_k": self.last.k if self.last else None,
            "k": by_k,
        }

    def pinned(self, load: int) -> dict[int, float]:
        """Tokens per second of every fixed k at `load`, hidden from the tuner."""
        policy = self.last.policy if self.last else None
        rates: dict[int, float] = {}
        for k in LADDER:
            self.engine.push(k)
            self.drive(load, 0.5, tuned=False)
            rates[k], _ = self.drive(load, PINNED_SECONDS, tuned=False)
        cursor = call("GET", f"/samples?cursor={self.memory.cursors.get('engine', '')}")["cursor"]
        self.memory = replace(self.memory, cursors={**self.memory.cursors, "engine": cursor})
        policy = policy or Policy(generation=1, table=self.settings.boot_table)
        self.engine.generation += 1
        again = policy.model_copy(update={"generation": self.engine.generation})
        call("PUT", "/policy", again.model_dump(by_alias=True, mode="json"))
        return rates


def run(engine: Engine) -> dict[str, Any]:
    """Up and down once; the scores and everything they were made of."""
    loop = Loop(engine)
    loop.start = time.monotonic()
    fixed: dict[int, dict[int, float]] = {}
    up: dict[int, Any] = {}
    down: dict[int, Any] = {}
    for load in LOADS:
        engine.fill(load, TOKENS)
        fixed[load] = loop.pinned(load)
        up[load] = loop.visit(load)
        print(json.dumps({"load": load, "fixed": fixed[load], "tuner": up[load]}), flush=True)
    for load in reversed(LOADS):
        engine.fill(load, TOKENS)
        down[load] = loop.visit(load)
        print(json.dumps({"load": load, "tuner": down[load]}), flush=True)
    engine.drain()
    best = {load: max(fixed[load].values()) for load in LOADS}
    ratios = {load: down[load]["settled"] / best[load] for load in LOADS}
    of_fixed = {k: [fixed[load][k] / best[load] for load in LOADS] for k in LADDER}
    hindsight = max(LADDER, key=lambda k: sum(of_fixed[k]))
    return {
        "ratio_to_oracle": min(ratios.values()),
        "ratio_to_oracle_by_load": ratios,
        "best_fixed_k": hindsight,
        "worst_load_of_best_fixed": min(of_fixed[hindsight]),
        "min_ratio_to_k0": min(down[load]["settled"] / fixed[load][0] for load in LOADS),
        "fixed_tokens_per_second": fixed,
        "up": up,
        "down": down,
        "decisions": loop.decisions,
    }
