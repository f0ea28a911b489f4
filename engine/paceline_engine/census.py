"""Who is in a step: requests that sample, those of them in their prompt, and what became of their drafts.

Part of the step loop's path; knows the scheduler's objects by their attributes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from operator import sub
from typing import Any

from paceline_engine.protocol import MAX_K
from paceline_engine.windows import positions


class Census:
    """Counts the requests of each step without looking at those that decode."""

    def __init__(self) -> None:
        self.prefilling: set[str] = set()
        """Requests seen with prompt tokens left to compute: the only ones that a step can schedule without sampling."""

    def count(self, scheduler: Any, output: Any) -> tuple[int, int, int]:
        """(requests that will sample, those of them that had a token before, prompt tokens) of a step.

        Only requests that are new, resumed or known to be in their prompt are looked at: decoding ones cost nothing.
        """
        scheduled = output.num_scheduled_tokens
        sampling = decoding = len(scheduled)
        prompt_tokens = 0
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if not (self.prefilling or output.scheduled_new_reqs or resumed):
            return sampling, decoding, prompt_tokens
        still = set()
        looked_at: Iterable[str] = [new.req_id for new in output.scheduled_new_reqs]
        if self.prefilling or resumed:
            looked_at = self.prefilling.union(resumed, looked_at)
        for req_id in looked_at:
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
        self.prefilling = still
        return sampling, decoding, prompt_tokens


def drafted_with(output: Any, before: Sequence[tuple[int, Mapping[str, int]]]) -> int:
    """The k of the drafts in a step: of the last step `before` that had the same requests.

    Pipeline stages work on requests in turns, unless there are too few to share: then it is the step just before.
    """
    if len(before) > 1:
        who = next(iter(output.scheduled_spec_decode_tokens or output.num_scheduled_tokens))
        return next((k for k, had in reversed(before) if who in had), before[0][0])
    return before[0][0]


def fates(scheduler: Any, output: Any, result: Any) -> tuple[Sequence[int], Sequence[int]]:
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
