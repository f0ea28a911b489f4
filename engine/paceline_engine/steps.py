"""The hooks inside the engine's step loop: choose k when a step is scheduled, measure the step when it completes.

Knows the scheduler's objects by their attributes alone and imports nothing of vLLM. A failure in here is logged once,
takes the hooks out and hands the scheduler its boot schedule back; it never reaches the engine.

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

from paceline_engine.policy import LivePolicy, Phase
from paceline_engine.protocol import MAX_K
from paceline_engine.samples import Recorder, Step
from paceline_engine.windows import positions

CONTEXT_STEPS = 16
"""Steps between two looks at every request's context: it grows by a few tokens a step, buckets are thousands wide."""
MAX_IN_FLIGHT = 64
"""More steps than any pipeline holds; beyond it the oldest is a step whose completion never came."""


class StepHooks:
    """What the scheduler subclass calls. All methods belong to the step loop's thread."""

    def __init__(
        self,
        policy: LivePolicy,
        recorder: Recorder,
        *,
        live: bool,
        lag: int = 1,
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`live`: choose k, else only measure. `lag`: steps from making a draft to verifying it (pipeline stages)."""
        self.policy = policy
        self.recorder = recorder
        self.active = True
        self._live = live
        self._on_failure = on_failure
        self._clock = clock
        self._boot = clock()
        self._started = 0.0
        self._completed = 0.0
        self._idle = True
        self._in_flight: deque[Step] = deque(maxlen=MAX_IN_FLIGHT)
        self._ks: deque[int] = deque(maxlen=lag)
        self._context = 0.0
        self._context_due = 0
        """Decode steps until the mean context is computed anew."""
        self._stats_have_positions = True
        self._unfinished = (0, 0)
        """Requests running, and all there are, before the tokens of a step are applied."""
        self._prefilling: set[str] = set()
        """Requests seen with prompt tokens left to compute: the only ones that a step can schedule without sampling."""

    @property
    def uptime(self) -> float:
        """Seconds since these hooks were made."""
        return self._clock() - self._boot

    def begin(self) -> None:
        """Before the scheduler schedules."""
        self._started = self._clock()

    def scheduled(self, scheduler: Any, output: Any) -> None:
        """When the step is composed and before its drafts are reserved: set its k, remember its facts."""
        if self.active and output.num_scheduled_tokens:
            try:
                self._scheduled(scheduler, output)
            except Exception as error:
                self._fail(scheduler, error)

    def completed(self, scheduler: Any, output: Any, result: Any) -> Step | None:
        """When the step's tokens are there, before the scheduler trims and applies them."""
        if self.active and output.num_scheduled_tokens:
            try:
                return self._complete(scheduler, output, result)
            except Exception as error:
                self._fail(scheduler, error)
        return None

    def applied(self, scheduler: Any, step: Step | None, result: Any, outputs: Any) -> None:
        """When the scheduler has applied the step's tokens; `outputs` is what it made of them."""
        if self.active and result is not None:
            try:
                self._applied(scheduler, step, result, outputs)
            except Exception as error:
                self._fail(scheduler, error)

    def _fail(self, scheduler: Any, error: Exception) -> None:
        self.active = False
        self._in_flight.clear()
        if self._live:
            scheduler.dynamic_sd_lookup = list(self.policy.boot)
        self._on_failure(error)

    def _scheduled(self, scheduler: Any, output: Any) -> None:
        sampling, decoding, prompt_tokens = self._census(scheduler, output)
        requests = len(output.num_scheduled_tokens)
        k, phase = output.num_spec_tokens_to_schedule, Phase.TABLE
        if sampling and self._live:
            k, phase = self.policy.choose(requests, sampling)
            output.num_spec_tokens_to_schedule = k
        elif sampling:
            self.policy.observe(k)
        k_before = self._ks[0] if self._ks else k
        if sampling:  # a step of prompt chunks alone drafts nothing that is ever verified
            self._ks.append(k)
        drafted = output.total_num_scheduled_tokens - prompt_tokens - decoding
        verified = int(drafted / decoding + 0.5) if decoding else 0
        context = 0.0
        if prompt_tokens or verified > MAX_K:
            excluded = "mixed"
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
                self._context = sum(output.scheduled_cached_reqs.num_computed_tokens) / requests
                self._context_due = CONTEXT_STEPS
            self._context_due -= 1
            context = self._context
        if excluded and phase is Phase.PROBE:
            self.policy.lost()
        overlapped = bool(self._in_flight)
        self._in_flight.append(
            Step(
                output,
                self._started,
                overlapped,
                sampling,
                decoding,
                k,
                phase,
                k_before,
                verified,
                context,
                self.policy.verification,
                excluded,
            )
        )
        self._idle = False
        self.recorder.prompt_tokens += prompt_tokens

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

    def _complete(self, scheduler: Any, output: Any, result: Any) -> Step | None:
        now = self._clock()
        step = None
        while self._in_flight:
            head = self._in_flight.popleft()
            if head.output is output:
                step = head
                break
        before, self._completed = self._completed, now
        self._unfinished = len(scheduler.running), len(scheduler.requests)
        if step is not None:
            step.seconds = max(0.0, now - (before if step.overlapped else step.started))
            if step.verification is not self.policy.verification:
                if not step.excluded and step.phase is Phase.PROBE:
                    self.policy.lost()
                step.excluded = step.excluded or "transition"
            elif step.decoding:
                step.request_steps = step.decoding
                if not self._counted_by_engine(scheduler):
                    step.drafted, step.accepted = _fates(scheduler, output, result)
        return step

    def _counted_by_engine(self, scheduler: Any) -> bool:
        """Whether the engine counts drafts itself: the same counts, for which nobody has to look at every request."""
        return self._stats_have_positions and getattr(scheduler, "log_stats", False)

    def _applied(self, scheduler: Any, step: Step | None, result: Any, outputs: Any) -> None:
        stats = _statistics(outputs) if self._counted_by_engine(scheduler) else None
        if stats and self._unfinished == (len(scheduler.running), len(scheduler.requests)):
            # Nobody stopped, so nothing was cut off: who got tokens got one, and those accepted.
            emitted = stats.num_accepted_tokens + sum([len(output.outputs) for output in outputs.values()])
        else:
            emitted = sum(map(len, result.sampled_token_ids))
        self.recorder.generation_tokens += emitted
        if step is not None:
            if step.request_steps and stats:
                self._take(stats, step)
            if not self.recorder.step(step, emitted) and not step.excluded and step.phase is Phase.PROBE:
                self.policy.lost()
        self._idle = not scheduler.running and not self._in_flight
        self.recorder.tick(self._clock() - self._boot, self._idle)

    def _take(self, stats: Any, step: Step) -> None:
        if hasattr(stats, "num_draft_tokens_per_pos"):
            step.drafted, step.accepted = stats.num_draft_tokens_per_pos, stats.num_accepted_tokens_per_pos
        else:
            self._stats_have_positions = False
            step.request_steps = 0


def _statistics(outputs: Any) -> Any:
    """What the engine counted in this step, given to one of its front ends; None where nothing was verified."""
    for output in outputs.values():
        if output.scheduler_stats is not None:
            return output.scheduler_stats.spec_decoding_stats
    return None


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
