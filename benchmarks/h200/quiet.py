"""A general plugin of vLLM for experiment.py: what dummy weights and engines that boot side by side need for adaptive
verification. `engine.py` does the same to an engine in its own process.

Dummy weights give flat draft distributions, which starve the estimator: it starts at the first rate. Step costs are
measured while no other engine boots or measures.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from pathlib import Path
from typing import Any

QUIET = "BENCH_QUIET"
QUIET_SECONDS = 200.0
FIRST_RATE = 0.78


def register() -> None:
    """Called by vLLM in each of its processes."""
    try:
        import vllm.v1.worker.gpu.spec_decode.acceptance_estimator as estimator
        from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager as Manager
    except ImportError as error:
        print(f"quiet: not in this vLLM: {error}", flush=True)
        return
    estimator._INIT_SLOPE = 0.0
    estimator._INIT_BIAS = math.log(FIRST_RATE / (1 - FIRST_RATE))
    inner = Manager.batches_to_profile
    if getattr(inner, "quiet", False):
        return

    def batches_to_profile(self: Any, capture_sizes: list[int]) -> Any:
        sign = Path(os.environ[QUIET])
        until = time.monotonic() + QUIET_SECONDS
        while not sign.exists() and time.monotonic() < until:
            time.sleep(0.1)
        with sign.with_name("measuring").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            print(f"profiling step costs, quiet: {sign.exists()}", flush=True)
            yield from inner(self, capture_sizes)

    batches_to_profile.quiet = True  # type: ignore[attr-defined]
    Manager.batches_to_profile = batches_to_profile
