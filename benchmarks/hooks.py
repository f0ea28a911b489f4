"""What the plugin's hooks cost a step, on this machine's CPU: steps of 1, 64 and 256 requests replayed through them.

The outputs have the shape of vLLM's with asynchronous scheduling: the next step is scheduled before the last one
completes, every request drafts k = 3, lengths are drawn from fixed acceptance rates. With `ends` a request in 300
tokens ends and is followed by another, so of 256 some end in most steps; without, all go on, as where the hooks are
timed on a GPU (benchmarks/h200). Microseconds of all hooks of a step, p50 and p99. With `stats` the scheduler counts
drafts itself (vLLM's default), without it (--disable-log-stats) the hooks have to. Between two steps of an engine in
life milliseconds of other work go by, in which the processor forgets the hooks' code and data: `cold` walks through
COLD_BYTES and some Python of no concern before each hook. A JSON line for each.

    python -m benchmarks.hooks
"""

from __future__ import annotations

import json
import platform
import random
from fractions import Fraction
from itertools import product
from math import inf
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

from paceline_engine.digest import Digest
from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import Policy, Probe
from paceline_engine.samples import Recorder
from paceline_engine.steps import StepHooks

LOADS = (1, 64, 256)
STEPS = 3000
COLD_STEPS = 300
COLD_BYTES = 48 << 20
"""More than the caches next to a core hold."""
K = 3
MAX_K = 7
RATES = (0.78, 0.60, 0.46)
TOKENS = 300


class Replay:
    """A scheduler that does nothing but have steps, and a clock around the hooks."""

    def __init__(self, load: int, *, stats: bool, cold: bool, ends: bool) -> None:
        """`load` requests; `stats`: whether the scheduler counts drafts; `cold`: forget the hooks between steps.

        `ends`: whether requests ever do.
        """
        self.memory = bytearray(COLD_BYTES) if cold else b""
        self.log_stats = stats
        self.random = random.Random(load)
        self.policy = LivePolicy((MAX_K,) * 257, MAX_K)
        self.policy.swap(Policy(generation=1, table=(K,) * 257, probe=Probe(ks=(1, 5))))
        self.failures: list[Exception] = []
        self.digest = Digest(Recorder())
        self.hooks = StepHooks(self.policy, self.digest, live=True, counted=stats, on_failure=self.failures.append)
        self.serial = 0
        self.requests: dict[str, Any] = {}
        self.running = self.requests  # as long as the load
        self.finished_req_ids: set[str] = set()
        self.fresh: list[str] = []
        for _ in range(load):
            self.admit(self.random.randrange(TOKENS) if ends else inf)
        self.fresh.clear()

    def admit(self, left: float = TOKENS) -> None:
        """A request of `left` tokens whose prompt is computed in its first step."""
        self.serial += 1
        name = f"cmpl-{self.random.getrandbits(128):032x}-{self.serial}"
        self.requests[name] = SimpleNamespace(
            num_tokens=100, num_computed_tokens=99, num_output_placeholders=0, left=left, k=K
        )
        self.fresh.append(name)

    def schedule(self) -> Any:
        """Compose the next step."""
        new, self.fresh = self.fresh, []
        drafts = {name: [-1] * request.k for name, request in self.requests.items() if request.k and name not in new}
        scheduled = {name: 1 + len(drafts.get(name, ())) for name in self.requests}
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
            scheduled_cached_reqs=SimpleNamespace(
                resumed_req_ids=set(), num_computed_tokens=[100 + self.random.randrange(2000) for _ in scheduled]
            ),
            scheduled_spec_decode_tokens=drafts,
            num_invalid_spec_tokens=None,
            num_spec_tokens_to_schedule=K,
        )

    def result(self, output: Any) -> Any:
        """Tokens of a step."""
        sampled = []
        for name in output.num_scheduled_tokens:
            drafted, draw = len(output.scheduled_spec_decode_tokens.get(name, ())), self.random.random()
            sampled.append([7] * (1 + sum(draw < rate for rate in RATES[:drafted])))
        index = {name: at for at, name in enumerate(output.num_scheduled_tokens)}
        return SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=index)

    def apply(self, output: Any, result: Any) -> Any:
        """What vLLM's update_from_output does, as far as the hooks can see it."""
        stats: Any = None
        if self.log_stats:
            stats = SimpleNamespace(
                num_draft_tokens_per_pos=[0] * MAX_K,
                num_accepted_tokens_per_pos=[0] * MAX_K,
                num_accepted_tokens=sum(map(len, result.sampled_token_ids)) - len(result.sampled_token_ids),
            )
        for name, tokens in zip(output.num_scheduled_tokens, result.sampled_token_ids, strict=True):
            request = self.requests.get(name)
            if request is None:
                continue
            drafted = len(output.scheduled_spec_decode_tokens.get(name, ()))
            for at in range(drafted if stats else 0):
                stats.num_draft_tokens_per_pos[at] += 1
                stats.num_accepted_tokens_per_pos[at] += at < len(tokens) - 1
            request.k = output.num_spec_tokens_to_schedule
            request.left -= len(tokens)
            if request.left <= 0:
                del self.requests[name], tokens[int(request.left) + len(tokens) or 1 :]
                self.finished_req_ids.add(name)
                self.admit()
        told = SimpleNamespace(spec_decoding_stats=stats) if stats else None
        outputs = [SimpleNamespace(new_token_ids=tokens) for tokens in result.sampled_token_ids]
        return {0: SimpleNamespace(outputs=outputs, scheduler_stats=told)}

    def forget(self) -> None:
        """What the rest of an engine does to caches."""
        if self.memory:
            self.memory.count(1)
            json.dumps({str(at): [Fraction(at, 7), {"a": at}] for at in range(1, 30)}, default=str, indent=1)

    def run(self) -> list[float]:
        """Microseconds in the hooks of each step."""
        spent: list[float] = []
        ahead: list[tuple[Any, int]] = []
        for number in range(COLD_STEPS if self.memory else STEPS):
            self.forget()
            start = perf_counter_ns()
            if not self.hooks.in_flight:
                self.hooks.begin()
            took = perf_counter_ns() - start
            output = self.schedule()
            self.forget()
            start = perf_counter_ns()
            self.hooks.scheduled(self, output)
            self.finished_req_ids = set()
            ahead.append((output, took + perf_counter_ns() - start))
            if len(ahead) < 2:
                continue
            output, took = ahead.pop(0)
            result = self.result(output)
            self.forget()
            start = perf_counter_ns()
            if not self.hooks.counted:
                self.hooks.completed(self, output, result)
            took += perf_counter_ns() - start
            outputs = self.apply(output, result)
            self.forget()
            start = perf_counter_ns()
            self.hooks.applied(self, output, result, outputs)
            spent.append((took + perf_counter_ns() - start) / 1000)
            if not number % 50:  # as often as the control thread, and not the hooks' work
                self.digest.run()
        assert not self.failures, self.failures
        return sorted(spent)


def main() -> None:
    """Print a line for each load: with the scheduler's counts (and ends, or none) and without, warm and cold."""
    for (stats, ends), cold in product(((True, True), (True, False), (False, True)), (False, True)):
        for load in LOADS:
            times = Replay(load, stats=stats, cold=cold, ends=ends).run()
            print(
                json.dumps(
                    {
                        "requests": load, "stats": stats, "cold": cold, "ends": ends, "steps": len(times),
                        "p50_us": round(times[len(times) // 2], 1), "p99_us": round(times[len(times) * 99 // 100], 1),
                        "python": platform.python_version(), "machine": platform.machine(),
                    }
                )
            )  # fmt: skip


if __name__ == "__main__":
    main()
