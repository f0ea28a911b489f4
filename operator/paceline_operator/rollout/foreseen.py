"""Ks that were never drafted, or not in this boot: what they would give, from what was measured beside them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.runner import without_schedule
from paceline_operator.api.speculation import Method
from paceline_operator.api.status import GoodputRow
from paceline_operator.rollout import boots, tier
from paceline_operator.rollout.known import COVERED, Gain, Known, over
from paceline_operator.rollout.proposal import Proposal

NESTED_METHODS = frozenset(
    {Method.NGRAM, Method.NGRAM_GPU, Method.SUFFIX, Method.DRAFT_MODEL, Method.EAGLE, Method.EAGLE3, Method.MTP}
)
"""Their first positions do not depend on how many follow: another K can be foreseen. Block drafters are as good as
their block is long, and no longer (vllm#41834)."""
LARGEST_K = 16
PERSISTENCE_DOUBT = 0.9
COST_DOUBT = 1.25
"""By which the acceptance of a position that was never drafted is lowered, and the cost of one raised, for the lower
end of a gain."""
UNUSED_SHARE = 0.99
"""Of the busy time in which a smaller K would do."""
NO_GAIN = Gain(0.0, 0.0, 0.0)


def _can_nest(known: Known) -> bool:
    return known.spec.speculation.enabled and known.spec.speculation.method in NESTED_METHODS


def larger_k(known: Known) -> Iterator[Proposal]:
    """One more step of the ladder upwards, foreseen from the last position's acceptance and the last steps' cost."""
    speculation, shares, rows = known.spec.speculation, known.shares(), known.rows()
    k = speculation.max_tokens
    larger = min(LARGEST_K, -(-k * 4 // 3))
    if not (_can_nest(known) and known.live and shares and larger > k):
        return
    gains = []
    for load, share in shares.items():
        at = rows.get(load, {})
        # Where a smaller k is best today, it stays: the new one comes on top of the ladder.
        best = max(at, key=lambda one: at[one].goodput_milli_tokens_per_second, default=0)
        gains.append((share, _foreseen(at, k, larger) if best == k else NO_GAIN))
    ends = ("value", "low", "high")
    total = Gain(*(sum(share * max(0.0, getattr(gain, end)) for share, gain in gains) for end in ends))
    if total.value <= 0:
        return
    text = (
        f"restart with maxTokens {larger}: {total}, foreseen from the acceptance at position {k} and the cost "
        f"of the last positions, at the loads of the last hours at which k={k} is the best of the ladder"
    )
    changes: dict[str, object] = {"speculation.maxTokens": larger}
    if known.spec.tuning.ladder is not None:
        changes["tuning.ladder"] = sorted({*known.spec.tuning.ladder, larger}, reverse=True)
    yield from known.proposal(changes, Reason.MAX_TOKENS, total, text)


def _foreseen(at: Mapping[int, GoodputRow], k: int, larger: int) -> Gain:
    """Gain of a k that was never drafted over the largest that was."""
    row, below = at[k], max((other for other in at if other < k), default=None)
    survival = [share / 1000 for share in row.survival_permille]
    if below is None or len(survival) != k or k < 2 or survival[-2] <= 0:
        return NO_GAIN
    lasts = min(1.0, survival[-1] / survival[-2])
    dearer = (row.step_microseconds - at[below].step_microseconds) / (k - below)
    slope = max(0.0, dearer / max(1, row.step_microseconds))

    def gain(persistence: float, cost: float) -> float:
        more = sum(survival[-1] * persistence**position for position in range(1, larger - k + 1))
        length = row.acceptance_length_milli / 1000
        return (length + more) / length / (1 + cost * (larger - k)) - 1

    return Gain(
        gain(lasts, slope),
        gain(PERSISTENCE_DOUBT * lasts, COST_DOUBT * slope),
        gain(min(1.0, lasts / PERSISTENCE_DOUBT), slope / COST_DOUBT),
    )


def smaller_k(known: Known) -> Iterator[Proposal]:
    """Graphs, key-value slots and, of some methods, drafts for ks that are never the best."""
    speculation, shares, rows = known.spec.speculation, known.shares(), known.rows()
    if not speculation.enabled or not known.live or not shares or known.spec.tuning.ladder is not None:
        return
    used = {bucket.from_requests: bucket.recommended_k if bucket.recommended_k is not None else bucket.k
            for bucket in known.buckets if bucket.observed}  # fmt: skip
    covered = sum(share for load, share in shares.items() if load in used and load in rows)
    largest = max((used[load] for load in shares if load in used), default=0)
    if covered < UNUSED_SHARE or not 0 < largest < speculation.max_tokens:
        return
    text = (
        f"restart with maxTokens {largest}: no larger k was the best at any load of the last hours; graphs and slots "
        "of the key-value cache are held for them. What that gives is not measured"
    )
    yield from known.proposal({"speculation.maxTokens": largest}, Reason.MAX_TOKENS, None, text)


def boot_table(known: Known) -> Iterator[Proposal]:
    """Tier Restart without the plugin: the tuner's table as vLLM's own schedule."""
    spec, shares, rows = known.spec, known.shares(), known.rows()
    plugged = spec.engine.plugin.injection is not PluginInjection.NONE
    if not spec.speculation.enabled or plugged or not shares or not rows or without_schedule(spec):
        return
    best = {load: max(at, key=lambda k: at[k].goodput_milli_tokens_per_second) for load, at in rows.items()}
    dense = [max(best.values())] * (spec.engine.max_num_seqs + 1)
    for load in sorted(best):
        dense[load:] = [best[load]] * max(0, len(dense) - load)
    table = tier.translated(dense)
    if spec.tuning.table is not None and table == tuple((row.from_requests, row.k) for row in spec.tuning.table):
        return
    now = {bucket.from_requests: bucket.k for bucket in known.buckets}
    then = {load: next(k for start, k in reversed(table) if start <= load) for load in rows}
    new = {load: boots.load_of(load, rows[load][k]) for load, k in then.items() if k in rows[load]}
    before = {load: boots.load_of(load, rows[load][now[load]]) for load in new if now.get(load) in rows[load]}
    gain = over(shares, new, before)
    if gain is None:
        return
    text = (
        "restart with the table that was measured as the boot schedule "
        f"({', '.join(f'from {start}: k {k}' for start, k in table)}): {gain} at the loads of the last hours"
    )
    changed = {"tuning.mode": "Manual", "tuning.table": [{"fromRequests": start, "k": k} for start, k in table]}
    yield from known.proposal(changed, Reason.BOOT_TABLE, gain, text)


def fixed_k(known: Known) -> Iterator[Proposal]:
    """Tier Restart without a schedule: the one k that gives most, of those whose steps can be foreseen.

    A step of n requests with k drafts verifies as many tokens as one of n' = n (k+1) / (K+1) requests with K: what that
    one took, drafts of all K included, is more than what this one takes.
    """
    speculation, shares, rows = known.spec.speculation, known.shares(), known.rows()
    k = speculation.max_tokens
    if not (_can_nest(known) and shares and without_schedule(known.spec)):
        return
    at = {load: found[k] for load, found in rows.items() if k in found and len(found[k].survival_permille) == k}
    if not at:
        return
    goodput: dict[int, dict[int, float]] = {}
    for load, row in at.items():
        goodput[load] = {k: row.goodput_milli_tokens_per_second / 1000}
        for smaller in range(1, k):
            like = min(other for other in at if other >= load * (smaller + 1) / (k + 1))
            length = 1 + sum(row.survival_permille[:smaller]) / 1000
            step = min(COST_DOUBT * at[like].step_microseconds, row.step_microseconds)
            goodput[load][smaller] = 1e6 * load * length / max(1, step)
    known_shares = {load: share for load, share in shares.items() if load in goodput}
    covered = sum(known_shares.values())
    best = tier.fixed(goodput, known_shares) if covered >= COVERED else None
    if best is None or best == k:
        return
    ratios = (share * goodput[load][best] / max(1e-9, goodput[load][k]) for load, share in known_shares.items())
    value = sum(ratios) / covered - 1
    gain = Gain(value * COST_DOUBT, value, value * COST_DOUBT**2)
    text = (
        f"restart with maxTokens {best}, the one k for all loads ({without_schedule(known.spec)}): at least "
        f"{100 * value:.1f} % more goodput, foreseen from steps that verify as many tokens"
    )
    yield from known.proposal({"speculation.maxTokens": best}, Reason.MAX_TOKENS, gain, text)
