"""The hooks inside the engine's step loop: choose k when a step is scheduled, note its facts when it completes.

Knows the scheduler's objects by their attributes alone and imports nothing of vLLM. A failure in here is logged once,
takes the hooks out and hands the scheduler its boot schedule back; it never reaches the engine.

Between two steps a processor forgets Python code and data, so what costs here is how much of both is touched. A step
like the one before it goes a short way, and whatever can wait is left to the digest in the control thread.

Step time. A synchronous engine schedules a step when the one before is complete: from schedule() to
update_from_output(). With asynchronous scheduling or pipeline stages the step was scheduled while another still ran:
from completion to completion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from paceline_engine.census import Census, fates
from paceline_engine.digest import FEW_RECORDS, MAX_RECORDS, PREFILL, Digest, Regime
from paceline_engine.policy import LivePolicy, Phase
from paceline_engine.protocol import MAX_K
from paceline_engine.samples import STALL_FACTOR

CONTEXT_STEPS = 16
"""Steps between two looks at every request's context: it grows by a few tokens a step, buckets are thousands wide."""
MAX_IN_FLIGHT = 64
"""More steps than any pipeline holds; beyond it the oldest is a step whose completion never came."""


class StepHooks:
    """What the scheduler subclass calls. All methods belong to the step loop's thread."""

    __slots__ = (
        "__dict__",
        "_boundary",
        "_calm",
        "_census",
        "_clock",
        "_context_due",
        "_counted",
        "_digest",
        "_fates",
        "_idle",
        "_ks",
        "_live",
        "_looked",
        "_now",
        "_on_failure",
        "_plan",
        "_records",
        "_regime",
        "_requests",
        "_running",
        "_started",
        "_table",
        "active",
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
        self.policy = policy
        self.active = True
        self.in_flight: deque[tuple[Any, ...]] = deque(maxlen=MAX_IN_FLIGHT)
        """Of each: the scheduler's own output object, by which the completion is recognised; the regime; requests that
        sample; those of them that had a token before; tokens of those; prompt tokens; contexts; when it was scheduled,
        None where another step was in flight."""
        self._digest = digest
        self._records = digest.records
        self._live = live
        self._counted = counted
        self._looked = False
        """Whether the engine's counts have been seen to be by position."""
        self._on_failure = on_failure
        self._clock = clock
        self._started = 0.0
        self._now = 0.0
        """When the tokens of the step that is being applied were there; the next, those of the one before."""
        self._boundary = 0.0
        self._idle = True
        self._ks: deque[int] = deque(maxlen=lag)
        self._regime = Regime(0, Phase.TABLE, 0, policy.verification, "idle")
        """Of the last step."""
        self._plan = policy.plan
        self._table = policy.plan.table
        self._calm = 0
        """As many steps after a burst the regime stays the same, if nothing else happens; 0: it does not."""
        self._context_due = 0
        """Decode steps until contexts are looked at anew."""
        self._fates: tuple[Sequence[int], Sequence[int]] | None = None
        self._running = self._requests = 0
        """Requests running, and all there are, before the tokens of a step are applied."""
        self._census = Census()

    def begin(self) -> None:
        """Before the scheduler schedules; not needed while a step is in flight."""
        self._started = self._clock()

    def scheduled(self, scheduler: Any, output: Any) -> None:
        """When the step is composed and before its drafts are reserved: set its k, remember its facts."""
        if not self.active:
            return
        try:
            requests = len(output.num_scheduled_tokens)
            policy = self.policy
            regime = self._regime
            since = policy.since_burst
            if (
                since < self._calm
                and 0 < requests < len(self._table)
                and self._table[requests] == (k := regime.k)
                and policy.plan is self._plan
                and policy.verification is regime.verification
                and not output.scheduled_new_reqs
                and not (cached := output.scheduled_cached_reqs).resumed_req_ids
                and not getattr(output, "skip_drafts", False)
            ):
                policy.since_burst = since + 1
                policy.steps_by_k[k] += 1
                output.num_spec_tokens_to_schedule = k
                contexts = None
                if not self._context_due:
                    self._context_due = CONTEXT_STEPS
                    contexts = cached.num_computed_tokens
                self._context_due -= 1
                in_flight = self.in_flight
                started = None if in_flight else self._started
                in_flight.append(
                    (output, regime, requests, requests, output.total_num_scheduled_tokens, 0, contexts, started)
                )
            elif requests:
                self._scheduled(scheduler, output)
        except Exception as error:
            self._fail(scheduler, error)

    def completed(self, scheduler: Any, output: Any, result: Any) -> None:
        """When the step's tokens are there, before the scheduler trims and applies them."""
        if not self.active:
            return
        try:
            self._now = self._clock()
            self._running = len(scheduler.running)
            self._requests = len(scheduler.requests)
            if not self._counted and result is not None:
                self._fates = fates(scheduler, output, result) if output.num_scheduled_tokens else None
        except Exception as error:
            self._fail(scheduler, error)

    def applied(self, scheduler: Any, output: Any, result: Any, outputs: Any) -> None:
        """When the scheduler has applied the step's tokens; `outputs` is what it made of them."""
        if not self.active or result is None:
            return
        try:
            in_flight = self.in_flight
            if in_flight and in_flight[0][0] is output:
                _, regime, sampling, decoding, tokens, prompt_tokens, contexts, since = in_flight.popleft()
            elif output.num_scheduled_tokens:
                _, regime, sampling, decoding, tokens, prompt_tokens, contexts, since = self._overtaken(output)
            else:
                return
            running = len(scheduler.running)
            fates = self._fates
            emitted: Any = -1
            if self._counted:
                emitted = 0
                fates = None
                for told in outputs.values():
                    emitted += len(told.outputs)
                    if told.scheduler_stats is not None:
                        fates = told.scheduler_stats.spec_decoding_stats
                if fates is None:
                    emitted = -1
                elif self._looked or self._look(fates):
                    emitted += fates.num_accepted_tokens
            if emitted < 0 or running != self._running or len(scheduler.requests) != self._requests:
                # Somebody stopped, so something may have been cut off: else, who got tokens got one and those accepted.
                # The lists are final: the engine makes new ones in every step.
                emitted = result.sampled_token_ids
                if len(self._records) >= FEW_RECORDS:
                    emitted = sum(map(len, emitted))
            now = self._now
            if since is None:
                since = self._boundary
            self._boundary = now
            if regime is not None and (regime.probing or regime.verification is not self.policy.verification):
                regime = self._judged(regime, now - since, mixed=prompt_tokens > 0)
            idle = not (running or in_flight)
            if idle:
                self._idle = True
                self._calm = 0
            if len(self._records) < MAX_RECORDS:
                self._records.append(
                    (regime, sampling, decoding, tokens, prompt_tokens, contexts, since, now, emitted, fates, idle)
                )
            else:
                self._digest.missed_steps += 1
                self._digest.missed_tokens += emitted
        except Exception as error:
            self._fail(scheduler, error)

    def _fail(self, scheduler: Any, error: Exception) -> None:
        self.active = False
        self.in_flight = deque()
        if self._live:
            scheduler.dynamic_sd_lookup = list(self.policy.boot)
        self._on_failure(error)

    def _scheduled(self, scheduler: Any, output: Any) -> None:
        """The long way: any step."""
        policy = self.policy
        sampling, decoding, prompt_tokens = self._census.count(scheduler, output)
        k, phase = output.num_spec_tokens_to_schedule, Phase.TABLE
        if sampling and self._live:
            self._plan = policy.plan
            self._table = self._plan.table
            k, phase = policy.choose(len(output.num_scheduled_tokens), sampling)
            output.num_spec_tokens_to_schedule = k
        elif sampling:
            policy.observe(k)
        k_before = self._ks[0] if self._ks else k
        if sampling:  # a step of prompt chunks alone drafts nothing that is ever verified
            self._ks.append(k)
        tokens = output.total_num_scheduled_tokens - prompt_tokens
        contexts = None
        if not decoding or tokens - decoding >= (MAX_K + 0.5) * decoding:
            excluded = PREFILL
            self._context_due = 0
        elif self._idle:
            excluded = "idle"
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
        facts = (k, phase, k_before, policy.verification, excluded)
        if facts != (regime.k, regime.phase, regime.k_before, regime.verification, regime.excluded):
            self._regime = regime = Regime(*facts)
        steady = self._live and not excluded and self._ks.count(k) == len(self._ks) and not self._census.prefilling
        self._calm = policy.calm_steps if steady else 0
        started = None if self.in_flight else self._started
        self.in_flight.append((output, regime, sampling, decoding, tokens, prompt_tokens, contexts, started))
        self._idle = False
        self._digest.recorder.prompt_tokens += prompt_tokens

    def _overtaken(self, output: Any) -> tuple[Any, ...]:
        """A completed step that is not the oldest in flight: the completion of those before it never came."""
        while self.in_flight:
            step = self.in_flight.popleft()
            if step[0] is output:
                return step
        return output, None, 0, 0, 0, 0, None, self._now

    def _look(self, stats: Any) -> bool:
        """Whether the engine counts drafts by position; if not, they are counted here from the next step on."""
        self._looked = self._counted = hasattr(stats, "num_draft_tokens_per_pos")
        return True

    def _judged(self, regime: Regime, seconds: float, *, mixed: bool) -> Regime:
        """What a step that may be lost to a burst, or during which verification changed, counts as.

        Whether it stood still is the digest's to say, but that is too late for the burst: this is near enough. A
        `mixed` step is as long as its prompts are, and is taken to count.
        """
        changed = regime.verification is not self.policy.verification
        if regime.probing and (changed or (not mixed and seconds > STALL_FACTOR * regime.shortest)):
            self.policy.lost()
        elif regime.probing and not mixed:
            regime.shortest = min(regime.shortest, seconds)
        return regime.changed() if changed else regime
