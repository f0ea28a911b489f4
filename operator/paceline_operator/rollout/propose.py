"""What a restart would bring: K, drafter, adaptive verification at boot, graphs, method, schedule, replicas. Pure.

Each proposal has its gain as an interval, or none where it was not measured; what the restart costs; and the numbers.
A gain is over the k in force at each load, weighted by the time that the load had. Nothing is proposed for a gain
within `LEAST_GAIN`: being tunable, or having adaptive verification booted, may cost that much, and more is a reason to
go back to a boot without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import CudagraphMode
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.speculation import AdaptiveVerification, Method
from paceline_operator.preflight.legality import check
from paceline_operator.rollout import boots, foreseen, tier
from paceline_operator.rollout.known import COVERED, Known, over
from paceline_operator.rollout.proposal import Proposal, overlay

LEAST_GAIN = 0.01
TRAINED_METHODS = (Method.DSPARK,)
"""Their drafts may have a trained confidence head."""
VERIFICATION_LOAD = 48
"""Requests from which adaptive verification with such a head gained in published runs (vllm#52362: +6 to +70 % from 64
on, -5 to -8 % up to 32)."""
UNUSED_SHARE = 0.99
"""Of the busy time in which something does not pay."""


def propose(known: Known) -> tuple[Proposal, ...]:
    """Those beyond doubt, the surest gain first; then what was not measured: that is told, and never done unasked."""
    if known.restart_seconds is None:
        return ()
    found: dict[str, Proposal] = {}
    for rule in RULES:
        for one in rule(known):
            if (one.gain is None or one.gain_low > LEAST_GAIN) and _can_work(known.spec, one):
                found.setdefault(one.key, one)
    return tuple(sorted(found.values(), key=lambda one: (one.gain is None, -one.gain_low)))


def _can_work(spec: ServingSpec, one: Proposal) -> bool:
    try:
        changed = ServingSpec.model_validate(overlay(spec.model_dump(mode="json", by_alias=True), one.changes))
    except ValueError:
        return False
    return not check(changed)


def _without_drafter(known: Known) -> Iterator[Proposal]:
    if not known.spec.speculation.enabled:
        return
    off = {"speculation.enabled": False}
    if known.without_drafter is not None:
        text = (
            f"restart without a drafter: {known.without_drafter}, by an engine without one at the loads of the last "
            "hours (ratioToNoDrafter); the drafter's memory becomes KV cache"
        )
        yield from known.proposal(off, Reason.NO_DRAFTER, known.without_drafter, text)
    elif known.off_for_long:
        text = (
            "restart without a drafter: k was 0 for nearly all decode time of the last hours, and k=0 still pays a "
            "draft pass and holds the drafter's memory; what a restart gives is not measured (ratioToNoDrafter is "
            "unknown without plain pods, routing.plain)"
        )
        yield from known.proposal(off, Reason.NO_DRAFTER, None, text)


def _earlier_boot(known: Known) -> Iterator[Proposal]:
    """A boot that served before gave more at today's loads: the way back from no drafter, another method, another K, a
    boot without adaptive verification or without a schedule whose price was more than it brought."""
    shares, now = known.shares(), known.given()
    if not shares or not known.past or known.now is None or known.held:
        return
    for record in known.past[1:]:
        wanted = boots.changes(known.past[0].fields, record.fields)
        gain = over(shares, {one.from_requests: one for one in record.loads}, now)
        if gain is None or not wanted or not tier.may_return(record, known.now):
            continue
        to = ", ".join(f"{path} {json.dumps(value)}" for path, value in wanted.items())
        text = (
            f"go back to {to}: until {record.left_at} it gave {gain} against what is in force, at the loads of the "
            "last hours"
        )
        yield from known.proposal(wanted, _reason_of(wanted), gain, text)


def _reason_of(wanted: Mapping[str, object]) -> Reason:
    if wanted.get("speculation.enabled") is True:
        return Reason.DRAFTER_PAYS
    if wanted.get("speculation.enabled") is False:
        return Reason.NO_DRAFTER
    if "speculation.method" in wanted or "speculation.draft" in wanted:
        return Reason.METHOD_PAYS
    if "speculation.adaptiveVerification" in wanted:
        return Reason.VERIFICATION_AT_BOOT
    return Reason.GRAPH_MODE if "engine.cudagraphMode" in wanted else Reason.MAX_TOKENS


def _verification(known: Known) -> Iterator[Proposal]:
    """Adaptive verification: booted where a trained head and the load speak for it, not booted where it never pays."""
    speculation, shares = known.spec.speculation, known.shares()
    if not speculation.enabled or not shares:
        return
    unset = speculation.adaptive_verification is AdaptiveVerification.AUTO and speculation.method in TRAINED_METHODS
    if unset and sum(share for load, share in shares.items() if load >= VERIFICATION_LOAD) >= COVERED:
        text = (
            f"restart with adaptive verification: nearly always {VERIFICATION_LOAD} requests or more run, where it was "
            "published to pay with a trained confidence head. What it gives here is not measured"
        )
        on = {"speculation.adaptiveVerification": AdaptiveVerification.ENABLED.value}
        yield from known.proposal(on, Reason.VERIFICATION_AT_BOOT, None, text)
    if speculation.adaptive_verification is not AdaptiveVerification.ENABLED:
        return
    pays = {row.from_requests for row in known.verified if row.high_permille > 1000}
    never = {row.from_requests for row in known.verified} - pays
    if sum(share for load, share in shares.items() if load in never) < UNUSED_SHARE:
        return
    text = (
        "restart without adaptive verification: at no load of the last hours was it better than verifying all, and "
        "being booted has a price of its own. What a boot without it gives is not measured"
    )
    change = {"speculation.adaptiveVerification": AdaptiveVerification.DISABLED.value}
    yield from known.proposal(change, Reason.VERIFICATION_AT_BOOT, None, text)


def _graphs(known: Known) -> Iterator[Proposal]:
    mode = known.spec.engine.cudagraph_mode
    if mode not in (CudagraphMode.NONE, CudagraphMode.PIECEWISE):
        return
    text = (
        f"restart with vLLM's own choice of CUDA graphs in place of {mode.value}, with which decode steps have no full "
        "graph. What that gives is not measured"
    )
    yield from known.proposal({"engine.cudagraphMode": None}, Reason.GRAPH_MODE, None, text)


def _replicas(known: Known) -> Iterator[Proposal]:
    if known.ttft_lowered is None:
        return
    text = (
        f"add replicas: the time to first token still exceeds its limit with k lowered by {known.ttft_lowered} steps "
        "of the ladder"
    )
    yield from known.proposal({"replicas": known.pods + 1}, Reason.TTFT_LIMIT, None, text)


RULES: tuple[Callable[[Known], Iterator[Proposal]], ...] = (
    _earlier_boot,
    _without_drafter,
    foreseen.larger_k,
    foreseen.smaller_k,
    foreseen.boot_table,
    foreseen.fixed_k,
    _verification,
    _graphs,
    _replicas,
)
