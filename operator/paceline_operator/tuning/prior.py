"""What is believed before anything is measured: the ladder of candidate ks and the table an engine boots with."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import lcm

from paceline_operator.api.runner import without_schedule
from paceline_operator.api.serving import ServingSpec

TOKEN_BUDGET = 96
"""Drafted tokens a step up to which a k >= 2 is the prior: k * requests <= 96. Measured on an H200 with EAGLE drafts
and real acceptance (8B and dense 32B), the best k is 5 up to 16 requests, 3 at 32, 2 at 48 and 1 from 64 on."""
NESTING = 84
"""Least common multiple, of all k + 1 of a default ladder, that is not exceeded where that can be: the smaller it is,
the more steps find a CUDA graph (resources/capture.py). 84 keeps the worst share at 0.69 for any maxTokens up to 16."""
ALWAYS = 6
"""Common multiple of the k + 1 of 2, 1 and 0, at which every default ladder ends."""
LAST_LOAD_OF_ONE = 256
"""Requests up to which k=1 is the prior: it beat k=0 up to 256 with every acceptance but the poorest (k=0 from 192)."""


def ladder_of(spec: ServingSpec) -> tuple[int, ...]:
    """Candidate ks, descending: tuning.ladder as given, else chosen from speculation.maxTokens.

    The default keeps maxTokens and 0 and thins out between, each k about 0.6 of the one above (5 3 2 1 0; 7 5 3 2 1 0):
    neighbours closer than that differ by less than a tie band. Of the ks near 0.6 it takes one whose k + 1 nests with
    the others' (6 3 2 1 0; 15 7 5 3 2 1 0). The ks of tuning.table join it: graphs exist for the ladder alone. It never
    has more than maxNumSeqs entries (each must own a batch size of the boot schedule) unless the table does; a given
    ladder may have more, and `boot_table` refuses either. An engine that is given no schedule has a ladder of one.
    """
    if without_schedule(spec):
        return (spec.speculation.max_tokens,)
    if spec.tuning.ladder:
        return tuple(sorted(set(spec.tuning.ladder), reverse=True))
    ladder = _thinned(spec.speculation.max_tokens)
    asked = {row.k for row in spec.tuning.table or ()}
    spare = [k for k in ladder if k not in asked]  # what may give way: thin from below, then 0, then maxTokens
    while spare and len(asked) + len(spare) > max(1, spec.engine.max_num_seqs):
        inner = [k for k in spare if k not in (0, spec.speculation.max_tokens)]
        spare.remove(inner[-1] if inner else spare[-1])
    return tuple(sorted(asked | set(spare), reverse=True))


@lru_cache(maxsize=64)
def _thinned(max_tokens: int) -> tuple[int, ...]:
    """From `max_tokens` down to 0."""
    ladder = [max_tokens]
    while ladder[-1] > 0:
        ladder.append(_next(ladder))
    return tuple(ladder)


def _next(ladder: list[int]) -> int:
    """The k below the last: nearest to 0.6 of it among those that keep the common multiple small; 0 always does."""
    common = lcm(ALWAYS, *(k + 1 for k in ladder))
    limit = max(NESTING, lcm(ALWAYS, ladder[0] + 1))
    wanted = min(ladder[-1] - 1, -(-ladder[-1] * 6 // 10))
    nests = (k for k in range(ladder[-1]) if lcm(common, k + 1) <= limit)
    return min(nests, key=lambda k: (abs(k - wanted), k))


@lru_cache(maxsize=32)
def boot_table(ladder: tuple[int, ...], max_num_seqs: int) -> tuple[int, ...]:
    """Dense table of max_num_seqs + 1 entries (index: sampling requests) that descends through the whole ladder.

    An engine runs it before the first push and without the plugin, and captures graphs for exactly the ks it names:
    so each ladder k owns at least one batch size, and where there are few, the larger batch sizes are the ones that
    give way. Entry 0 (no request samples) equals entry 1. Raises ValueError for an empty or unordered ladder and for
    one with more ks than there are batch sizes.
    """
    if not ladder or any(a <= b for a, b in pairwise(ladder)) or ladder[-1] < 0:
        raise ValueError(f"a ladder must descend and end at 0 or above, got {list(ladder)}")
    if len(ladder) > max_num_seqs:
        raise ValueError(
            f"the ladder {list(ladder)} names {len(ladder)} ks, but maxNumSeqs is {max_num_seqs}: each k needs a batch "
            "size of its own in the boot schedule. Shorten tuning.ladder or raise engine.maxNumSeqs"
        )
    dense = [ladder[0]]
    for position, k in enumerate(ladder):
        start, below = len(dense), len(ladder) - 1 - position
        wanted = max_num_seqs if k == 0 or below == 0 else LAST_LOAD_OF_ONE if k == 1 else TOKEN_BUDGET // k
        end = min(max(wanted, start), max_num_seqs - below)
        dense.extend([k] * (end - start + 1))
    return tuple(dense)
