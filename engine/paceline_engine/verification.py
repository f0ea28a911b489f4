"""Adaptive verification (AV) of one engine, driven from its core: what was asked goes to all ranks before a step.

The control thread asks; the step loop sends, before it schedules. A call is put into the same ordered queue as the
steps, in front of the next one, and nobody waits for it: vLLM reads the replies in the order of the calls, so they are
in when that step's are. So all tensor-parallel ranks change between the same two steps and no step is lost. Counts come
back with every reply, and with a call without a change every REPORT_SECONDS while the engine steps; an idle engine is
left alone and shows the last ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

from paceline_engine import worker
from paceline_engine.protocol import Verification, VerificationPolicy, VerificationState
from paceline_engine.worker import Findings, Report

log = logging.getLogger("vllm.paceline")
REPORT_SECONDS = 5.0
"""A call takes every rank some 50 us of its own time; at this rate it cannot be measured."""
STARVED_DRAFTS = 1024
STARVED_SHARE = 0.02
"""Of so many drafts made since the last look fewer than this share was verified. What is verified gives the estimate of
survival its labels: so few never turn it round. A new request's drafts are verified until its first confidences are on
the host, whatever the estimate says, which in answers of a few hundred tokens is near 1 % of all."""
ORDERED = frozenset({"UniProcExecutor", "MultiprocExecutor"})
"""Executors, with what derives from them, that keep calls and steps in one order (vLLM 0.32 and 0.33: v1/executor)."""


def ordered(executor: Any) -> bool:
    """Whether a call through `executor` takes its place among the steps."""
    return not ORDERED.isdisjoint(cls.__name__ for cls in type(executor).__mro__)


def inspect(executor: Any, ks: tuple[int, ...], max_requests: int) -> Findings:
    """Look at the workers' live objects, before the first step. Raises what the executor raises.

    Only the first rank replies where that can be asked for: if the package is missing in the workers, replies of the
    others would be left unread and later calls of vLLM's own would get them.
    """
    one = {"unique_reply_rank": 0} if "unique_reply_rank" in signature(executor.collective_rpc).parameters else {}
    found = executor.collective_rpc(worker.inspect, args=(ks, max_requests), **one)
    return found if one else found[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Asked:
    """A policy's word on AV; None: as the engine booted."""

    policy: VerificationPolicy | None = None
    generation: int = 0


class VerificationControl:
    """AV as the step loop applies it and as `GET /state` shows it."""

    def __init__(
        self, executor: Any, *, on_mode: Callable[[Verification], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_mode` is told the mode in force, now and at every change, in the step loop's thread."""
        self.due = False
        """Whether `act` has something to do: all that the step loop looks at in a step."""
        self.state = VerificationState(mode=Verification.ADAPTIVE)
        self._executor = executor
        self._on_mode = on_mode
        self._clock = clock
        self._reported = clock()
        self._asked = self._sent = self._settled = Asked()
        self._mark = Report(Verification.ADAPTIVE)
        """Counts at the last look for starvation."""
        on_mode(self.state.mode)

    @property
    def settled(self) -> bool:
        """Whether the ranks have answered to what was asked last, with or without success."""
        return self._settled is self._asked

    def ask(self, policy: VerificationPolicy | None, generation: int) -> None:
        """Have `policy` in force from the next step on. From the control thread."""
        self._asked = Asked(policy, generation)
        self.due = True

    def tick(self) -> None:
        """Have the counts fetched if it is time. From the control thread, every half second or so."""
        if self._clock() - self._reported >= REPORT_SECONDS:
            self.due = True

    def act(self) -> None:
        """Send what is due. From the step loop, before it schedules; never raises and never waits."""
        self.due = False
        self._reported = self._clock()
        asked = self._asked
        change, self._sent = asked is not self._sent, asked
        call, args = (worker.verify, (asked.policy,)) if change else (worker.report, ())
        try:
            replies = self._executor.collective_rpc(call, args=args, non_block=True)
            replies.add_done_callback(partial(self._answered, asked if change else None))
        except Exception as error:
            self._failed(asked if change else None, f"the change was not sent: {type(error).__name__}: {error}")

    def _answered(self, change: Asked | None, replies: Any) -> None:
        """In the step loop, when the replies are read: with those of the first step that the call was in front of."""
        try:
            reports: list[Report] = replies.result()
            first = reports[0]
        except Exception as error:
            self._failed(change, f"the workers did not answer: {type(error).__name__}: {error}")
            return
        update: dict[str, Any] = {"drafted": first.drafted, "verified": first.verified}
        if change is not None:
            errors = [f"rank {rank}: {told.error}" for rank, told in enumerate(reports) if told.error]
            if errors:
                self._failed(change, "; ".join(errors))
                if len(errors) < len(reports):  # ranks that differ must not run on
                    self.ask(None, 0)
            else:
                self._settled = change
                update |= {
                    "cap": change.policy.cap if change.policy else None,
                    "generation": change.generation,
                    "ranks": len(reports),
                    "error": "",
                }
        if first.mode is not self.state.mode:
            log.info("Paceline: adaptive verification: %s, generation %d", first.mode, update.get("generation", 0))
            update |= {"mode": first.mode, "starved": False}
            self._mark = first
            self._on_mode(first.mode)
        elif first.drafted - self._mark.drafted >= STARVED_DRAFTS:
            update["starved"] = self._starved(first)
            self._mark = first
        self.state = self.state.model_copy(update=update)

    def _starved(self, now: Report) -> bool:
        drafted, verified = now.drafted - self._mark.drafted, now.verified - self._mark.verified
        starved = verified < STARVED_SHARE * drafted
        if starved and not self.state.starved:
            log.warning("Paceline: %d of %d drafts were verified: they are paid for in vain", verified, drafted)
        return starved

    def _failed(self, change: Asked | None, error: str) -> None:
        if change is None:  # counts come again
            return
        self._settled = change
        self.state = self.state.model_copy(update={"error": error[:500]})
        log.error("Paceline: adaptive verification stays %s: %s", self.state.mode, error)
