"""CPU time of the tuner's decisions: a thousand servings of eight known loads and eight ks, one pass each an interval.

usage: python -m benchmarks.decide [--servings N] [--rounds N] [--repeats N] [--max-num-seqs N]
Prints one JSON line. Only `decide.step` is timed (of this process alone, not by the wall clock): reading and parsing an
engine's answer is the client's work and is told beside it. With the default maxNumSeqs of 16 a serving has exactly
eight load buckets; with 256, what a serving has by default, sixteen, of which every other was visited.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from dataclasses import dataclass, field

import numpy as np

from paceline_engine.protocol import (
    HISTOGRAM_BASE,
    AcceptanceCell,
    Capabilities,
    CostCell,
    Feature,
    Gauges,
    Policy,
    Samples,
    State,
    VerificationFeature,
)
from paceline_operator.api.serving import ServingSpec
from paceline_operator.tuning.decide import settings_of, step
from paceline_operator.tuning.load import buckets_of
from paceline_operator.tuning.model import Engine, Memory, Settings

LADDER = (10, 7, 5, 4, 3, 2, 1, 0)
INTERVAL_SECONDS = 10.0
GOAL_MILLISECONDS_PER_SECOND, GOAL_MILLISECONDS_PER_DECISION = 50.0, 0.5
WARMED = 25
"""Servings that learn by themselves; the others are copies of these in memory of their own."""
PASSES_PER_LOAD = 12
PASS_STEPS = 800
"""Decode steps of a pass: 12.5 ms each."""


@dataclass
class Serving:
    """One engine of smooth step cost (5 ms + 20 us a token) and survival 0.75 a position, and what the tuner knows.

    Its bursts take turns, one in every `interval_steps`, as the plugin's do.
    """

    settings: Settings
    seed: int
    memory: Memory = field(default_factory=Memory)
    policy: Policy | None = None
    now: float = 0.0
    generation: int = 0
    steps: int = 0
    """Since boot."""

    def answer(self, load: int, rng: np.random.Generator) -> Engine:
        """What the plugin would say after an interval at `load` requests: the table's k, and bursts of the others."""
        table = self.policy.table if self.policy else self.settings.boot_table
        probe = self.policy.probe if self.policy else None
        before, self.now = self.now, self.now + INTERVAL_SECONDS
        begun, self.steps = self.steps, self.steps + PASS_STEPS
        tried: dict[int, int] = {}
        if probe is not None:
            for turn in range(begun // probe.interval_steps, self.steps // probe.interval_steps):
                k = probe.ks[turn % len(probe.ks)]
                tried[k] = tried.get(k, 0) + probe.burst_steps
        own = PASS_STEPS - sum(tried.values())
        runs = [(table[load], False, own), *((k, True, steps) for k, steps in tried.items() if k != table[load])]
        samples = Samples(
            boot_id=f"boot-{self.seed}",
            cursor=f"boot-{self.seed}:{self.now:.0f}",
            reset=before == 0,
            lost_windows=0,
            from_seconds=before,
            to_seconds=self.now,
            cells=tuple(_cost(load, k, probing, steps, rng) for k, probing, steps in runs),
            acceptance=tuple(_fate(load, k, steps, rng) for k, _, steps in runs),
            excluded_steps={"settling": 4},
            steps_by_k={table[load]: own},
            probe_steps_by_k={},
            gauges=Gauges(
                running=load, waiting=0, kv_cache_usage=0.1, prompt_tokens=0, generation_tokens=int(self.now) * 1000
            ),
        )
        state = State(
            plugin_version="0",
            engine_version="0",
            boot_id=f"boot-{self.seed}",
            uptime_seconds=self.now,
            capabilities=Capabilities(
                live_k=Feature(supported=True),
                adaptive_verification=VerificationFeature(supported=False, reason="not booted"),
                max_k=LADDER[0],
                ladder=LADDER,
                max_num_seqs=self.settings.max_num_seqs,
                method="eagle",
                runner="V2",
            ),
            generation=self.generation if self.policy else 0,
            table=table,
            k_in_force=table[load],
            steps_by_k={},
            probe_steps_by_k={},
            policy_errors=0,
            probe=probe,
        )
        return Engine("pod-0", state, samples)

    def decide(self, engine: Engine, repeats: int = 1) -> list[float]:
        """One pass, repeated; CPU seconds of each: the first as in life, the others with all of it in the caches."""
        spent = []
        for _ in range(repeats):
            start = time.thread_time()
            found = step(self.settings, self.memory, (engine,), known_generation=self.generation, now=self.now)
            spent.append(time.thread_time() - start)
        self.memory = found.memory
        if found.policy is not None and found.push_to:
            self.policy, self.generation = found.policy, found.policy.generation
        return spent


def _cost(load: int, k: int, probing: bool, steps: int, rng: np.random.Generator) -> CostCell:
    seconds = 0.005 * (1 + 0.05 * k) + 2e-5 * load * (k + 1)
    times = seconds * np.exp(rng.normal(0, 0.03, steps))
    bins, counts = np.unique(np.floor(np.log(times * 1e6) / math.log(HISTOGRAM_BASE)).astype(int), return_counts=True)
    return CostCell(
        load=load,
        context=0,
        k_drafted=k,
        k_verified=k,
        probe=probing,
        steps=steps,
        request_steps=steps * load,
        emitted=steps * load,
        seconds=float(times.sum()),
        seconds_squared=float((times**2).sum()),
        histogram=dict(zip(bins.tolist(), counts.tolist(), strict=True)),
    )


def _fate(load: int, k: int, steps: int, rng: np.random.Generator) -> AcceptanceCell:
    total, accepted = steps * load, []
    alive = total
    for _ in range(k):
        alive = int(rng.binomial(alive, 0.75))
        accepted.append(alive)
    drafts = total if k else 0
    return AcceptanceCell(
        k=k, load=load, request_steps=total, drafts=drafts, drafted=(drafts,) * k, accepted=tuple(accepted)
    )


def main() -> None:
    """Warm up, run the rounds, print the line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--servings", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="of every decision; the best is told beside the first")
    parser.add_argument("--max-num-seqs", type=int, default=16, choices=[16, 256])
    asked = parser.parse_args()
    spec = ServingSpec.model_validate(
        {
            "model": {"source": "hf://example/target"},
            "speculation": {"method": "eagle", "draft": {"source": "hf://example/draft"}, "maxTokens": LADDER[0]},
            "tuning": {"ladder": list(LADDER)},
            "engine": {"maxNumSeqs": asked.max_num_seqs},
        }
    )
    buckets = buckets_of(asked.max_num_seqs)
    loads = buckets[:: len(buckets) // 8]
    rng = np.random.default_rng(0)
    settings = settings_of(spec)
    warmed = [Serving(settings, seed) for seed in range(min(WARMED, asked.servings))]
    for serving in warmed:
        for load in rng.permutation(loads).tolist():
            for _ in range(PASSES_PER_LOAD):
                serving.decide(serving.answer(load, rng))
    servings = [copy.deepcopy(warmed[number % len(warmed)]) for number in range(asked.servings)]
    runs: list[list[float]] = []
    for _ in range(asked.rounds):
        runs.extend(serving.decide(serving.answer(int(rng.choice(loads)), rng), asked.repeats) for serving in servings)
    spent = [each[0] for each in runs]
    text = servings[0].answer(loads[-1], rng).samples
    assert text is not None
    body, start = text.model_dump_json(by_alias=True), time.thread_time()
    for _ in range(200):
        Samples.model_validate_json(body)
    parsing = (time.thread_time() - start) / 200
    milliseconds = 1000 * np.asarray(spent)
    decision = float(milliseconds.mean())
    line = {
        "servings": asked.servings,
        "interval_seconds": INTERVAL_SECONDS,
        "max_num_seqs": asked.max_num_seqs,
        "load_buckets": len(buckets),
        "loads": len(loads),
        "ks": len(LADDER),
        "decisions": len(spent),
        "ms_per_decision": round(decision, 3),
        "ms_per_decision_best": round(1000 * float(np.mean([min(each) for each in runs])), 3),
        "ms_per_decision_p99": round(float(np.percentile(milliseconds, 99)), 3),
        "cpu_ms_per_second": round(decision * asked.servings / INTERVAL_SECONDS, 1),
        "parse_samples_ms": round(1000 * parsing, 3),
        "goal_ms_per_decision": GOAL_MILLISECONDS_PER_DECISION,
        "goal_cpu_ms_per_second": GOAL_MILLISECONDS_PER_SECOND,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
