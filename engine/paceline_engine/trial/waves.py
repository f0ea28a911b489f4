"""One run of `vllm bench serve`: how many requests it gets, and its arguments. Pure.

Warm-ups go by waves, measurements by how long a request took in them.
"""

from __future__ import annotations

import math

WAVES = 2
"""Of a warm-up: the first waits for what is compiled, the second tells how long a request takes."""
MOST_REQUESTS = 100_000
WARM_UP_SEED = 2**30
"""Apart from every measurement's: prompts of a warm-up are in the prefix cache."""


def requests(concurrency: int, seconds: float, latency: float) -> int:
    """How many make up `seconds`, where one takes `latency` seconds: whole waves, two at least."""
    waves = round(min(seconds / latency, MOST_REQUESTS)) if latency > 0 else WAVES
    return max(WAVES * concurrency, min(waves * concurrency, MOST_REQUESTS))


def warm_up_seed(load: int) -> int:
    """Of the warm-up at `load` requests."""
    return WARM_UP_SEED + load


def wave_latency(latencies: list[float], concurrency: int) -> float:
    """Seconds of a request once everything is warm: the median of the last wave; infinite where there is none."""
    last = sorted(one for one in latencies[-concurrency:] if one > 0)
    return last[len(last) // 2] if last else math.inf


def arguments(load: int, requests: int, seed: int, folder: str, name: str) -> list[str]:
    """Of one run, beside those that all share. The result goes to `folder`/`name`."""
    counts = ["--num-prompts", str(requests), "--max-concurrency", str(load), "--seed", str(seed)]
    return [*counts, "--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", name]
