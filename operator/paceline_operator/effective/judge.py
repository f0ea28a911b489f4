"""One engine, declared against effective: the first thing that is not as asked, with what to do about it.

What a boot already decides (method, schedule, verification) comes from the engine's own word. The rest needs evidence:
without traffic, or with speculation off on purpose, nothing is an alarm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline_engine.protocol import State
from paceline_operator.api.conditions import Reason
from paceline_operator.effective.decay import decayed
from paceline_operator.effective.declared import DRAFTLESS_METHODS, Declared
from paceline_operator.effective.seen import DRAFTS, Seen
from paceline_operator.effective.shift import fallen, interval

COLLAPSED_SHARE, RECOVERED_SHARE = 0.02, 0.04
"""Of first draft tokens accepted: below the one, beyond doubt, a drafter has stopped working (its weights lost, or not
of this target); above the other it works again. The poorest published workload accepts 0.4."""
FIRING_SHARE = 0.5
"""Of request-steps that must have a draft before its fate is anybody's concern."""
IDLE_SHARE, BUSY_SHARE = 0.9, 0.5
"""Of steps at k=0 from which speculation counts as off by decision, and below which no more."""
MISSED_SHARE, GRAPHED_SHARE = 0.2, 0.1
"""Of decode steps without a full graph from which that is told, and below which no more."""
SURPLUS_SHARE = 0.75
"""Of the way from the k asked for to the largest from which an engine does not heed k."""
MIN_STEPS = 200.0
"""Steps, drafts or request-steps before a share of them is one."""
TEXT = 300
"""Of an engine's own words."""
_REFUSED = re.compile(r"[^\n]{0,300}adaptive (?:draft )?verification[^\n]{0,300}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of one engine. Messages carry no number that goes on changing: they stay while the reason does."""

    status: bool | None
    """SpeculationEffective; None = Unknown."""
    reason: Reason
    effective: str
    """What the engine does instead of, or in line with, what was declared."""
    remedy: str = ""


def judge(declared: Declared | None, state: State | None, seen: Seen, before: Finding | None) -> Finding:
    """Of an engine that answers: `state` None where it has no plugin, and its counters are all that is known.

    `declared` None: its command line cannot be read; then only what needs none is judged. `before`: the last finding.
    """
    if state is None:
        found = _without_plugin(declared, seen, before)
    else:
        found = _at_boot(declared, state) or _from_samples(declared, state, seen, before)
    kept = before is not None and (before.status, before.reason) == (found.status, found.reason)
    return before if kept and before is not None else found


def refused(declared: Declared | None, last_words: str) -> Finding | None:
    """Of an engine that does not run: vLLM ends at its start where it cannot verify adaptively."""
    said = _REFUSED.search(last_words) if declared is not None and declared.verification else None
    return _verification_refused(f"the engine ended: {said[0].strip()[:TEXT]}") if said else None


def _verification_refused(why: str) -> Finding:
    return Finding(
        False,
        Reason.VERIFICATION_REFUSED,
        why,
        "set speculation.adaptiveVerification to Disabled, or remove what the message says it does not go with",
    )


def _at_boot(declared: Declared | None, state: State) -> Finding | None:
    able = state.capabilities
    if (able.max_k == 0 and declared is None) or (declared is not None and not declared.method):
        return Finding(True, Reason.OFF_BY_DECISION, "it has no drafter, as asked")
    if declared is None:
        return None
    if able.max_k == 0:
        return Finding(
            False,
            Reason.NOT_SPECULATING,
            "the engine has no drafter",
            "look at its log: what took --speculative-config away?",
        )
    if declared.method and able.method and able.method != declared.method:
        return Finding(
            False,
            Reason.METHOD_FELL_BACK,
            f"it drafts with method {able.method[:TEXT]}",
            "name that method in speculation.method, or a draft that fits the declared one; the engine's log says why",
        )
    if declared.verification and not able.adaptive_verification.present:
        return _verification_refused(able.adaptive_verification.reason[:TEXT])
    if len(declared.ks) > 1 and set(able.ladder) == {able.max_k}:
        return Finding(
            False,
            Reason.SCHEDULE_DROPPED,
            f"k {able.max_k} at every load: {able.live_k.reason[:TEXT]}",
            "take away what vLLM drops the schedule for (data parallelism, a method that cannot vary k), or set "
            "speculation.maxTokens to the one k that is best for your load",
        )
    return None


def _from_samples(declared: Declared | None, state: State, seen: Seen, before: Finding | None) -> Finding:
    method = state.capabilities.method
    if seen.smaller >= MIN_STEPS and seen.surplus > SURPLUS_SHARE * seen.smaller:
        return Finding(
            False,
            Reason.K_IGNORED,
            f"more drafts are verified than were asked for, up to k {state.capabilities.max_k}",
            "upgrade vLLM: the V2 model runner heeds k from 0.32 on",
        )
    verification = state.adaptive_verification
    if verification is not None and verification.starved:
        return Finding(
            False,
            Reason.DRAFTER_COLLAPSED,
            "drafts are paid for, and adaptive verification admits almost none of them",
            "in mode Auto the tuner leaves adaptive verification by itself; else set it to Disabled",
        )
    if found := _of_drafts(method, seen, before):
        return found
    missing = declared is not None and declared.full_graphs
    limit = GRAPHED_SHARE if _was(before, Reason.GRAPHS_MISSED) else MISSED_SHARE
    if missing and seen.decoded >= MIN_STEPS and seen.missed > limit * seen.decoded:
        return _graphs_missed(state)
    if what := fallen(seen.shift, _was(before, Reason.ACCEPTANCE_SHIFTED)):
        return Finding(True, Reason.ACCEPTANCE_SHIFTED, f"{what} than an hour before")
    if what := decayed(seen.decay, _was(before, Reason.ACCEPTANCE_SHIFTED)):
        return Finding(True, Reason.ACCEPTANCE_SHIFTED, what, "use a draft made for long contexts, or a smaller k")
    return _effective(seen)


def _without_plugin(declared: Declared | None, seen: Seen, before: Finding | None) -> Finding:
    busy = seen.on + seen.off >= MIN_STEPS
    if declared is not None and not declared.method:
        return Finding(True, Reason.OFF_BY_DECISION, "it has no drafter, as asked")
    if not busy:
        return before or _quiet()
    if DRAFTS not in seen.counters:
        return Finding(
            False,
            Reason.COUNTERS_ABSENT,
            "tokens come without any count of drafts: the engine does not speculate",
            "look at its command line and log: what took --speculative-config away?",
        )
    if declared is not None and seen.smaller >= MIN_STEPS and seen.surplus > SURPLUS_SHARE * seen.smaller:
        return Finding(
            False,
            Reason.SCHEDULE_DROPPED,
            f"about k {declared.max_k} is drafted where the schedule asks for less",
            "the engine's log says why vLLM dropped num_speculative_tokens_per_batch_size",
        )
    return _of_drafts(declared.method if declared else "", seen, before) or _effective(seen)


def _of_drafts(method: str, seen: Seen, before: Finding | None) -> Finding | None:
    """What is wrong with drafts, or why there are none; None where nothing is."""
    share = interval(seen.accepted, seen.verified)
    was = _was(before, Reason.DRAFTER_COLLAPSED)
    collapsed = share[0] < RECOVERED_SHARE if was else share[1] < COLLAPSED_SHARE
    if seen.verified and collapsed and (was or seen.drafts > FIRING_SHARE * seen.request_steps):
        text_alone = "the texts have nothing to copy from: use a method with a draft model, or maxTokens 1"
        pair = "draft and target do not fit: compare tokenizer, model version and quantisation, and reload the draft"
        return Finding(
            False,
            Reason.DRAFTER_COLLAPSED,
            "drafts are made and paid for, but almost none is accepted",
            text_alone if method in DRAFTLESS_METHODS else pair,
        )
    idle = BUSY_SHARE if _was(before, Reason.OFF_BY_DECISION) else IDLE_SHARE
    if seen.off > idle * (seen.on + seen.off):
        return Finding(True, Reason.OFF_BY_DECISION, "k is 0 at the present load by the table in force")
    if seen.request_steps >= MIN_STEPS and seen.drafts == 0:
        if method in DRAFTLESS_METHODS:
            return Finding(None, Reason.NO_DRAFTS_YET, "its texts gave nothing to draft from")
        return Finding(
            False,
            Reason.NOT_SPECULATING,
            "k is above 0 at its load and no request has a draft",
            "look at the engine's log; requests with sampling options that vLLM does not draft for have none",
        )
    return None


def _graphs_missed(state: State) -> Finding:
    graphs = state.capabilities.graph_requests
    if graphs:
        limits = ", ".join(f"k {k} up to {graphs[k]} requests" for k in sorted(graphs, reverse=True)[:8])
        effective = f"decode steps at its load run without a full graph (there are graphs for {limits})"
        remedy = "let the capture sizes cover (k+1) x maxNumSeqs; capture needs memory beside memoryUtilization's share"
    else:
        effective = "no decode step replays a full graph"
        remedy = "the engine's log says what took full graphs away; the V1 model runner has none with a schedule"
    return Finding(False, Reason.GRAPHS_MISSED, effective, remedy)


def _effective(seen: Seen) -> Finding:
    if seen.verified < MIN_STEPS / 4:
        return _quiet()
    return Finding(True, Reason.EFFECTIVE, "drafts are made and accepted")


def _quiet() -> Finding:
    return Finding(None, Reason.NO_DRAFTS_YET, "no request decoded enough to tell")


def _was(before: Finding | None, reason: Reason) -> bool:
    return before is not None and before.reason is reason
