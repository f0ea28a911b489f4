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

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from operator import sub
from time import perf_counter
from typing import Any

from paceline_engine.digest import FEW_RECORDS, MAX_RECORDS, PREFILL, Digest, Regime
from paceline_engine.policy import LivePolicy, Phase
from paceline_engine.protocol import MAX_K
from paceline_engine.samples import STALL_FACTOR
from paceline_engine.windows import positions

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
        "_prefilling",
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
        self._prefilling: set[str] = set()
        """Requests seen with prompt tokens left to compute: the only ones that a step can schedule without sampling."""

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
                self._fates = _fates(scheduler, output, result) if output.num_scheduled_tokens else None
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
        sampling, decoding, prompt_tokens = self._census(scheduler, output)
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
        steady = self._live and not excluded and self._ks.count(k) == len(self._ks) and not self._prefilling
        self._calm = policy.calm_steps if steady else 0
        started = None if self.in_flight else self._started
        self.in_flight.append((output, regime, sampling, decoding, tokens, prompt_tokens, contexts, started))
        self._idle = False
        self._digest.recorder.prompt_tokens += prompt_tokens

    def _census(self, scheduler: Any, output: Any) -> tuple[int, int, int]:
        """(requests that will sample, those of them that had a token before, prompt tokens) of a step.

        Only requests that are new, resumed or known to be in their prompt are looked at: decoding ones cost nothing.
        """
        scheduled = output.num_scheduled_tokens
        sampling = decoding = len(scheduled)
        prompt_tokens = 0
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if not (self._prefilling or output.scheduled_new_reqs or resumed):
            return sampling, decoding, prompt_tokens
        still = set()
        for req_id in self._prefilling.union(resumed, (new.req_id for new in output.scheduled_new_reqs)):
            request = scheduler.requests.get(req_id)
            if request is None:
                continue
            tokens = scheduled.get(req_id)
            if tokens is None:
                still.add(req_id)
                continue
            prompt_tokens += tokens
            decoding -= 1
            if request.num_computed_tokens + tokens < request.num_tokens + request.num_output_placeholders:
                still.add(req_id)
                sampling -= 1
        self._prefilling = still
        return sampling, decoding, prompt_tokens

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


def _fates(scheduler: Any, output: Any, result: Any) -> tuple[Sequence[int], Sequence[int]]:
    """Draft tokens (verified, accepted) by position, counted as the engine would: aborted requests are not looked at.

    With --disable-log-stats, the one place that looks at every request of a decoding step, so the loops are in C.
    """
    drafts, sampled, alive = output.scheduled_spec_decode_tokens, result.sampled_token_ids, scheduler.requests
    if not drafts or not sampled:
        return (), ()
    if not drafts.keys() <= alive.keys():
        drafts = {req_id: tokens for req_id, tokens in drafts.items() if req_id in alive}
    if len(drafts) == len(sampled) and not output.num_invalid_spec_tokens:
        lengths = set(map(len, drafts.values()))
        k = lengths.pop()
        if not lengths and k <= MAX_K:  # everybody drafted alike, so it does not matter whose tokens are whose
            got = bytes(map(len, sampled))
            most = list(accumulate(map(got.count, range(k + 1))))  # requests that got at most 0, 1, ... k tokens
            return [len(got) - most[0]] * k, [len(got) - requests for requests in most[1:]]
    tokens = map(len, drafts.values())
    if output.num_invalid_spec_tokens:  # a grammar cut them before verification
        tokens = map(sub, tokens, map(output.num_invalid_spec_tokens.get, drafts, repeat(0)))
    emitted = map(len, map(sampled.__getitem__, map(result.req_id_to_index.__getitem__, drafts)))
    pairs = Counter(zip(tokens, emitted, strict=True))
    return positions({(n, out - 1): count for (n, out), count in pairs.items() if out})
