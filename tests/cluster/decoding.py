"""A stand-in that decodes: the simulated engine of the tuner's tests behind the plugin's own control server."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from paceline_engine.protocol import Policy, PolicyAck, Samples, State
from tests.unit.simulated import SimulatedEngine, fixed

LADDER = (5, 3, 1, 0)
BOOT = (5, 5, 5, 5, 3, 3, 1, 1, 0)
"""Dense table: max_num_seqs 8."""
SPEC: dict[str, Any] = {
    "engine": {"maxNumSeqs": len(BOOT) - 1},
    "speculation": {"method": "ngram", "maxTokens": LADDER[0]},
}
WINDOW_SECONDS = 20.0
"""Of decoding that each reading brings."""


def step_seconds(_: int, k: int) -> float:
    """Drafts cost: each drafted token half a step."""
    return 0.010 * (1 + 0.5 * k)


class Decoding:
    """What a control server asks of a Backend. `running` and `waiting` may be set while it runs; drafts are poor, so
    that k=0 is best at every load."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.engine = SimulatedEngine(step_seconds, fixed((0.25, 0.1, 0.03, 0.01, 0.0)), BOOT, LADDER, rng)
        self.waiting = 0
        self.pushed: list[tuple[float, Policy]] = []
        """(time.time(), policy)"""
        self.read: list[float] = []
        """time.time() of each reading."""
        self._lock = threading.Lock()

    @property
    def backend(self) -> Decoding:
        """As `Parts` has one."""
        return self

    @property
    def running(self) -> int:
        return self.engine.requests

    @running.setter
    def running(self, requests: int) -> None:
        self.engine.requests = requests

    def state(self) -> State:
        with self._lock:
            return self.engine.state()

    def samples(self, cursor: str | None) -> Samples:
        with self._lock:
            found = self.engine.run(WINDOW_SECONDS)
            if cursor is None:  # of a reader that is new: all since its boot, as the plugin has it
                found = self.engine.since_boot(found)
            self.read.append(time.time())
            return found.model_copy(update={"gauges": found.gauges.model_copy(update={"waiting": self.waiting})})

    def push(self, body: bytes) -> PolicyAck:
        policy = Policy.model_validate_json(body)
        with self._lock:
            self.engine.push(policy)
            self.pushed.append((time.time(), policy))
            return PolicyAck(generation=self.engine.generation, applied=True)

    def housekeep(self) -> None:
        pass

    def close(self) -> None:
        pass
