"""The hooks inside the engine's step loop: choose k when a step is scheduled, note its facts when it completes.

Knows the scheduler's objects by their attributes alone and imports nothing of vLLM. A failure in here is logged once,
takes the hooks out and hands the scheduler its boot schedule back; it never reaches the engine.

Between two steps a processor forgets Python code and data, so what costs here is how much of both is touched. A step
that goes the long way arms the policy for those that can be like it. Unless something is new these go a short way: they
share its facts, and leave counts to the next long way and sums to the digest in the control thread.

Step time. A synchronous engine schedules a step when the one before is complete: from schedule() to the end of
update_from_output(). With asynchronous scheduling or pipeline stages the step was scheduled while another still ran:
from the end of the one update to that of the other. In between the next step was launched, and where that takes the
host longer than the GPU has still to do, it is what the time went to: with prompts in it, launched without a whole
graph, 10 ms more at 256 requests on an H200 (benchmarks/results/h200/mixed.json). So it is noted whether there were.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from paceline_engine.census import Census, drafted_with, fates
from paceline_engine.digest import FEW_RECORDS, MAX_RECORDS, PREFILL, Digest, Facts, InFlight, Regime, tokens_in
from paceline_engine.policy import LivePolicy, Phase
from paceline_engine.protocol import MAX_K
from paceline_engine.samples import IDLE

log = logging.getLogger("vllm.paceline")
CONTEXT_STEPS = 256
"""Steps between two looks at contexts if no prompt comes: 2,048 tokens at k = 7. Buckets are 8,192 wide and more."""
MAX_IN_FLIGHT = 64
"""More steps than any pipeline holds; beyond it the oldest is a step whose completion never came."""


class StepHooks:
    """What the scheduler subclass calls. All methods belong to the step loop's thread."""

    __slots__ = (
        "__dict__",
        "_alike",
        "_boundary",
        "_census",
        "_clock",
        "_context_due",
        "_digest",
        "_facts",
        "_fates",
        "_idle",
        "_ks",
        "_live",
        "_looked",
        "_on_failure",
        "_records",
        "_regime",
        "_running",
        "_skips",
        "_started",
        "active",
        "counted",
        "in_flight",
        "policy",
    )

    def __init__(
        self,
        policy: LivePolicy,
        digest: Digest,
        *,
        live: bool,
        lag: int = 1,
        counted: bool = False,
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`live`: choose k, else only measure. `lag`: steps from making a draft to verifying it (pipeline stages).

        `counted`: the engine counts drafts itself, so that nobody else has to look at every request.
        """
        self.counted = counted
        self.policy = policy
        self.active = True
        self.in_flight: deque[tuple[Any, InFlight]] = deque(maxlen=MAX_IN_FLIGHT)
        """Each with the scheduler's own output object, by which the completion is recognised."""
        self._digest = digest
        self._records = digest.records
        self._live = live
        self._looked = False
        """Whether its counts have been seen to be by position."""
        self._on_failure = on_failure
        self._clock = clock
        self._started = 0.0
        self._boundary = 0.0
        """When the tokens of the last step were applied."""
        self._idle = True
        self._ks: deque[tuple[int, Mapping[str, int]]] = deque(maxlen=lag)
        """Of the last steps that sampled, k and for whom. Those that went the short way drafted the same."""
        self._regime = Regime(0, Phase.TABLE, 0, policy.verification, IDLE)
        """Of the last step."""
        self._facts: Facts = (self._regime, 0, 0, 0, None)
        self._alike = 0
        """Facts of the steps that are armed, and their requests."""
        self._skips = False
        """Whether the engine tells steps whose drafts nobody could use."""
        self._context_due = 0
        """Decode steps until contexts are looked at anew."""
        self._fates: tuple[Sequence[int], Sequence[int]] | None = None
        self._running = 0
        """Requests running when a step was composed last: until the next is, there can only be fewer."""
        self._census = Census()

    def begin(self) -> None:
        """Before the scheduler schedules; not needed while a step is in flight."""
        self._started = self._clock()

    def scheduled(self, scheduler: Any, output: Any) -> None:
        """When the step is composed and before its drafts are reserved: set its k, remember its facts."""
        try:
            policy = self.policy
            left = policy.left
            if (
                left
                and not output.scheduled_new_reqs
                and policy.plan is policy.adopted
                and (len(output.num_scheduled_tokens) == self._alike or self._fits(output))
                and policy.verification is self._facts[4]
                and not output.scheduled_cached_reqs.resumed_req_ids
                and not (self._skips and output.skip_drafts)
            ):
                policy.left = left - 1
                self._running = len(scheduler.running)
                output.num_spec_tokens_to_schedule = policy.k_in_force
                in_flight = self.in_flight
                started = None if in_flight else self._started
                in_flight.append((output, (self._facts, output.total_num_scheduled_tokens, None, started)))
            elif self.active and output.num_scheduled_tokens:
                self._scheduled(scheduler, output)
        except Exception as error:
            self._fail(scheduler, error)

    def completed(self, scheduler: Any, output: Any, result: Any) -> None:
        """Before the scheduler trims and applies a step's tokens; needed only of an engine that counts no drafts."""
        try:
            if self.active and result is not None:
                self._fates = fates(scheduler, output, result) if output.num_scheduled_tokens else None
        except Exception as error:
            self._fail(scheduler, error)

    def applied(self, scheduler: Any, output: Any, result: Any, outputs: Any) -> None:
        """When the scheduler has applied the step's tokens; `outputs` is what it made of them."""
        try:
            now = self._clock()
            emitted = 0
            stats = None
            if self.counted:
                for told in outputs.values():
                    emitted += len(told.outputs)
                    if (statistics := told.scheduler_stats) is not None:
                        stats = statistics.spec_decoding_stats
            in_flight = self.in_flight
            if (
                stats is not None
                and in_flight
                and (step := in_flight[0])[0] is output
                and self._looked
                and step[1][0][4] is self.policy.verification
                and not in_flight[-1][1][0][3]
                and (running := len(scheduler.running))
                and running == self._running
                and not scheduler.finished_req_ids
                and len(self._records) < MAX_RECORDS
            ):
                in_flight.popleft()
                before, self._boundary = self._boundary, now
                self._records.append((step[1], before, now, emitted, stats))
            elif self.active and result is not None:
                self._applied(scheduler, output, outputs, now, emitted, stats)
        except Exception as error:
            self._fail(scheduler, error)

    def _fail(self, scheduler: Any, error: Exception) -> None:
        if not self.active:
            return
        self.active = self._looked = self.counted = False
        self.in_flight = deque()
        if self._live:
            scheduler.dynamic_sd_lookup = list(self.policy.boot)
        with suppress(Exception):  # it may be what failed
            self.policy.settle()
        self.policy.left = 0
        try:
            self._on_failure(error)
        except Exception:
            log.exception("Paceline: failed in the step loop, took itself out and cannot say so in /state")

    def _fits(self, output: Any) -> bool:
        """Whether the step of another number of requests is else like the one before it; if so, make its facts."""
        requests = len(output.num_scheduled_tokens)
        table = self.policy.adopted.table
        fits: bool = 0 < requests < len(table) and table[requests] == self.policy.k_in_force
        if fits:
            self._alike, self._facts = requests, (self._regime, requests, requests, 0, self._facts[4])
        return fits

    def _scheduled(self, scheduler: Any, output: Any) -> None:
        """The long way: any step."""
        policy = self.policy
        self._running = len(scheduler.running)
        if policy.armed:
            self._context_due -= policy.settle()
        sampling, decoding, prompt_tokens = self._census.count(scheduler, output)
        k, phase = output.num_spec_tokens_to_schedule, Phase.TABLE
        if sampling and self._live:
            k, phase = policy.choose(len(output.num_scheduled_tokens), sampling)
            output.num_spec_tokens_to_schedule = k
        elif sampling:
            policy.observe(k)
        k_before = drafted_with(output, self._ks) if self._ks else k
        if sampling:  # a step of prompt chunks alone drafts nothing that is ever verified
            self._ks.append((k, output.num_scheduled_tokens))
        tokens = output.total_num_scheduled_tokens - prompt_tokens
        contexts = None
        if not decoding or tokens - decoding >= (MAX_K + 0.5) * decoding:
            excluded = PREFILL
            self._context_due = 0
        elif self._idle:
            excluded = IDLE
        elif phase is Phase.SETTLING:
            excluded = "settling"
        elif k != k_before:
            excluded = "transition"
        elif k and getattr(output, "skip_drafts", False):  # nobody could use them (V2 runner since vLLM 0.33)
            excluded = "undrafted"
        else:
            excluded = ""
            if not self._context_due:
                self._context_due = CONTEXT_STEPS
                contexts = output.scheduled_cached_reqs.num_computed_tokens
            self._context_due = 0 if prompt_tokens else self._context_due - 1
        if excluded and phase is Phase.PROBE:
            policy.lost()
        regime = self._regime
        how = (k, phase, k_before, policy.verification, excluded)
        if how != (regime.k, regime.phase, regime.k_before, regime.verification, regime.excluded):
            self._regime = regime = Regime(*how)
        steady = self._live and not excluded and all(k == made for made, _ in self._ks) and not self._census.prefilling
        plain = None if regime.probing else regime.verification
        facts = (regime, sampling, decoding, prompt_tokens, plain)
        if steady and (spare := min(policy.calm_steps, self._context_due)) > 0:
            policy.arm(spare)
            self._alike = sampling
            self._facts = facts
            self._skips = hasattr(output, "skip_drafts")
        started = None if self.in_flight else self._started
        self.in_flight.append((output, (facts, tokens, contexts, started)))
        self._idle = False
        self._digest.recorder.prompt_tokens += prompt_tokens

    def _applied(self, scheduler: Any, output: Any, outputs: Any, now: float, emitted: Any, stats: Any) -> None:
        """The long way: any step."""
        in_flight = self.in_flight
        if in_flight and in_flight[0][0] is output:
            step = in_flight.popleft()[1]
        elif output.num_scheduled_tokens:
            step = self._overtaken(output, now)
        else:
            return
        running = len(scheduler.running)
        known = self.counted and stats is not None
        fates = stats if self.counted else self._fates
        if known:
            emitted += stats.num_accepted_tokens
            if not self._looked:  # counts by position or not: where not, they are counted here from the next step on
                self._looked = self.counted = hasattr(stats, "num_draft_tokens_per_pos")
        if not known or running != self._running or scheduler.finished_req_ids:
            # Somebody stopped, so something may have been cut off: else, who got tokens got one and those accepted.
            emitted = [told.outputs for told in outputs.values()]
            if len(self._records) >= FEW_RECORDS:
                emitted = tokens_in(emitted)
        before, self._boundary = self._boundary, now
        facts, since = step[0], before if step[3] is None else step[3]
        launched = bool(in_flight and in_flight[-1][1][0][3])
        if facts[4] is not self.policy.verification and facts[0] is not None:
            regime = facts[0].judged(self.policy, now - since, mixed=facts[3] > 0 or launched)
            step = ((regime, *facts[1:]), *step[1:])
        if idle := not (running or in_flight):
            self._idle = True
            self._context_due -= self.policy.settle()
        if len(self._records) < MAX_RECORDS:
            self._records.append((step, before, now, emitted, fates, idle, launched))
        else:
            self._digest.missed_tokens += emitted
            self._digest.missed_steps += 1  # last: whoever reads between the two finds nothing new yet

    def _overtaken(self, output: Any, now: float) -> InFlight:
        """A completed step that is not the oldest in flight: the completion of those before it never came."""
        while self.in_flight:
            step = self.in_flight.popleft()
            if step[0] is output:
                return step[1]
        return (None, 0, 0, 0, None), 0, None, now
