"""The operator's tuner around one engine: the same code, on a clock that stands while others are in charge."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from lane import Lane
from scale import SCALE

INTERVAL_SECONDS = 2


class Tuner:
    """The operator's tuner over one engine, in this process: it reads and pushes over HTTP while the engine steps."""

    def __init__(self, lane: Lane, engine: str) -> None:
        """Start as a fresh serving does: boot table, nothing known."""
        from paceline_operator.api.serving import ServingSpec
        from paceline_operator.replay.traces import Writer
        from paceline_operator.tuning.decide import settings_of
        from paceline_operator.tuning.model import Memory, Step

        options = lane.remotes[engine].options
        self.control = lane.remotes[engine].control
        spec: dict[str, Any] = {
            "model": {"source": "/models/target"},
            "speculation": {
                "method": "eagle", "draft": {"source": "/models/draft"}, "maxTokens": SCALE.ladder[0],
                "adaptiveVerification": "Enabled" if options.verification else "Disabled",
            },
            "engine": {"maxNumSeqs": options.seqs},
            "tuning": {"ladder": list(SCALE.ladder), "intervalSeconds": INTERVAL_SECONDS},
        }  # fmt: skip
        self.settings = settings_of(ServingSpec.model_validate(spec))
        trace = lane.out / f"closed_loop_{engine}.jsonl"
        self.write = Writer(trace.open("w"), engine, ServingSpec.model_validate(spec))
        """What it was given, for `paceline replay`."""
        self.memory = Memory()
        self.last: Step | None = None
        self.decisions: list[dict[str, Any]] = []
        self.pass_ms: list[float] = []
        self.failures: list[str] = []
        self.at = self.due = 0.0
        """Its clock, seconds in which it was in charge; and when it passes next."""

    def pass_(self, now: float) -> None:
        """Read, decide, push whatever policy comes out."""
        from paceline_engine.protocol import Samples, State
        from paceline_operator.tuning.decide import step
        from paceline_operator.tuning.model import Engine as Seen

        begun = time.perf_counter()
        cursor = self.memory.cursors.get("engine", "")
        state = State.model_validate(self.control("GET", "/state"))
        samples = Samples.model_validate(self.control("GET", f"/samples?cursor={cursor}"))
        seen = Seen("engine", state, samples)
        self.write(now, state.generation, [seen])
        self.last = step(self.settings, self.memory, [seen], known_generation=state.generation, now=now)
        self.memory = self.last.memory
        if self.last.policy and self.last.push_to:
            self.control("PUT", "/policy", self.last.policy.model_dump(by_alias=True, mode="json", exclude_none=True))
        self.pass_ms.append(1000 * (time.perf_counter() - begun))
        for made in self.last.decisions:
            self.decisions.append(
                {
                    "at_seconds": round(now, 1), "load": made.load, "reason": str(made.reason),
                    "message": made.message, "from": made.from_k, "to": made.to_k,
                    "verification": str(getattr(made, "verification", None) or ""),
                    "evidence": asdict(made.evidence) if made.evidence else None,
                }
            )  # fmt: skip
            print({name: told for name, told in self.decisions[-1].items() if name != "evidence"}, flush=True)

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Let it pass at its interval meanwhile; what a pass raises is kept, and the next one comes."""
        stop = threading.Event()
        begun = time.monotonic()

        def run() -> None:
            while not stop.wait(0.02):
                now = self.at + time.monotonic() - begun
                if now >= self.due:
                    self.due = max(self.due + INTERVAL_SECONDS, now)
                    try:
                        self.pass_(now)
                    except Exception:
                        self.failures.append(traceback.format_exc(limit=-4))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.at += time.monotonic() - begun

    @property
    def policy(self) -> dict[str, Any]:
        """What it has in force, for a harness that pinned something else to put back."""
        from paceline_engine.protocol import Policy

        policy = self.last.policy if self.last else None
        policy = policy or Policy(generation=1, table=self.settings.boot_table)
        return policy.model_dump(by_alias=True, mode="json", exclude_none=True)

    def skip_to(self, cursor: str) -> None:
        """See nothing of what happened before `cursor`."""
        self.memory = replace(self.memory, cursors={**self.memory.cursors, "engine": cursor})

    def told(self) -> dict[str, Any]:
        """What it did, and what a pass cost."""
        spent = sorted(self.pass_ms)
        cost = {"p50": spent[len(spent) // 2], "max": spent[-1], "passes": len(spent)} if spent else {}
        return {"decisions": self.decisions, "pass_ms": cost, "failed_passes": self.failures}
