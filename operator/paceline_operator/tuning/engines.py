"""Who answers, who can be tuned, and who must be pushed to: the first links of the chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline_engine.protocol import MAX_K, Policy, Probe, Samples, State, Verification, VerificationPolicy
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import Tier
from paceline_operator.tuning.holdout import is_without_drafter
from paceline_operator.tuning.model import Engine, Settings

SILENT_SECONDS = 30.0
"""With running requests but no step at all, after which an engine's samples are stale. A long prompt on a CPU may take
ten seconds in one step."""
LARGEST = 1e15
"""A count or a number of seconds above this is nonsense."""
LARGEST_BIN = 1000
"""Of the step-time histogram: 1.05**1000 microseconds is longer than any engine ran."""
SHORTEST_STEP_SECONDS = 1e-9
"""A mean step time below this is nonsense; none at all is a cell without a clock."""
LARGEST_GENERATION = 2**52
"""What status says above this, no push ever said: generations count pushes, and engines take none above 2**53."""
GENERATIONS_AHEAD = 2**32
"""By which an engine may be ahead of what is known (status may be lost): one engine's word must not use them up."""
REASON_LENGTH = 500
"""Of an engine's own words: they end in conditions, whose length is limited."""
MORE_PASSES = 6
"""In a row that must offer another way to verify before it is used: each change of ways is a push."""
_SHOWN = 3
WITHOUT_PLUGIN = (Reason.PLUGIN_ABSENT, Reason.ENGINE_SERIES_MISSING)


@dataclass(frozen=True)
class Fleet:
    """The engines of one pass, sorted."""

    answering: tuple[Engine, ...]
    """With state and fresh samples, and a drafter."""
    holdouts: tuple[Engine, ...]
    """The same without a drafter."""
    live: tuple[Engine, ...]
    """Of these, the ones that take a table."""
    tiers: Mapping[str, tuple[Tier, str]]
    tier: Tier
    reason: Reason
    message: str
    """MetricsAvailable's reason and message."""


def sort(settings: Settings, engines: Sequence[Engine], silent: Mapping[str, float], pushed: int) -> Fleet:
    """Sort `engines`; `silent`: seconds for which each had running requests but made no step; `pushed`: the last
    generation that others than they know of."""
    answering, holdouts, failures = [], [], []
    tiers: dict[str, tuple[Tier, str]] = {}
    for engine in engines:
        reason, message = _failure(engine, silent.get(engine.name, 0.0), pushed)
        if reason is None and engine.state is not None and is_without_drafter(engine.state):
            holdouts.append(engine)
            tiers[engine.name] = Tier.OFF, "it has no drafter: what it does tells what speculation is worth"
        elif reason is None:
            answering.append(engine)
            tiers[engine.name] = _tier(settings, engine)
        else:
            failures.append((engine.name, reason, message))
            tiers[engine.name] = (Tier.RESTART if reason in WITHOUT_PLUGIN else Tier.UNKNOWN, f"{reason}: {message}")
    live = tuple(engine for engine in answering if tiers[engine.name][0] is Tier.LIVE)
    known = {tier for tier, _ in tiers.values()} - {Tier.UNKNOWN}
    tier = next((one for one in (Tier.RESTART, Tier.LIVE, Tier.OFF) if one in known), Tier.UNKNOWN)
    reason, message = _metrics(engines, [*answering, *holdouts], failures)
    return Fleet(tuple(answering), tuple(holdouts), live, tiers, tier, reason, message)


def verifications(fleet: Fleet) -> frozenset[Verification]:
    """What every live engine can be asked for; empty where any of them booted without adaptive verification."""
    modes = [
        frozenset(feature.modes) if feature.present and feature.supported else frozenset[Verification]()
        for engine in fleet.live
        if engine.state is not None
        for feature in (engine.state.capabilities.adaptive_verification,)
    ]
    return frozenset.intersection(*modes) if modes else frozenset()


@dataclass(frozen=True)
class Offer:
    """How the engines can be asked to verify. What one of them stops to offer is gone at once; what all offer again is
    there once they have done so for some passes: engines that go to and fro must not make a policy in each."""

    modes: frozenset[Verification] | None = None
    """None: no engine was there yet."""
    more: int = 0
    """Passes in a row that offered more."""


def offered(past: Offer, fleet: Fleet) -> Offer:
    """After one more pass."""
    if not fleet.live:
        return past
    now = verifications(fleet)
    if past.modes is None or now <= past.modes or past.more + 1 >= MORE_PASSES:
        return Offer(now)
    return Offer(past.modes & now, past.more + 1)


def listed(texts: Sequence[str]) -> str:
    """The first few of `texts`, and how many more there are."""
    return "; ".join([*texts[:_SHOWN], *([f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else [])])


def is_silent(engine: Engine) -> bool:
    """Whether an answer claims running requests but shows no step since the last one."""
    samples = engine.samples
    if samples is None or samples.reset or samples.gauges.running == 0:
        return False
    return not samples.cells and not samples.acceptance and not any(samples.excluded_steps.values())


def repriceable(fleet: Fleet) -> bool:
    """Whether every live engine takes measured costs in place of those it profiled."""
    features = [engine.state.capabilities.adaptive_verification for engine in fleet.live if engine.state is not None]
    return bool(features) and all(feature.repriceable for feature in features)


def graphs(fleet: Fleet) -> dict[int, int]:
    """k -> the most requests for which every live engine replays a full graph; empty where any of them has none."""
    each = [engine.state.capabilities.graph_requests for engine in fleet.live if engine.state is not None]
    if not each or not all(each):
        return {}
    return {k: min(found.get(k, 0) for found in each) for k in set().union(*each)}


def push(
    fleet: Fleet,
    current: Policy | None,
    table: tuple[int, ...],
    probe: Probe | None,
    verification: VerificationPolicy | None,
    known_generation: int,
) -> tuple[Policy | None, tuple[str, ...]]:
    """The policy that should be in force, and the engines that must be told it.

    A new generation only where the content changed, or where an engine would refuse the current one because it has a
    newer generation or another body under the same. Without an engine that takes it, everything stays.
    """
    states = {engine.name: engine.state for engine in fleet.live if engine.state is not None}
    if not states:
        return current, ()
    plain = probe is None and verification is None
    if current is None and plain and all(same(state.table, table) for state in states.values()):
        return None, ()
    wanted = (probe, verification)
    if (
        current is None
        or (current.probe, current.adaptive_verification) != wanted
        or not same(current.table, table)
        or _overtaken(fleet, current)
    ):
        seen = [engine.state.generation for engine in fleet.answering if engine.state is not None]
        newest = max([known_generation, current.generation if current else 0, *seen])
        current = Policy(generation=newest + 1, table=table, probe=probe, adaptive_verification=verification)
    late = tuple(name for name, state in states.items() if not runs(state, current))
    return current, late


def runs(state: State, policy: Policy | None) -> bool:
    """Whether an engine has acknowledged `policy` (None: the boot schedule)."""
    if policy is None:
        return state.generation == 0
    return state.generation == policy.generation and same(state.table, policy.table)


def same(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two dense tables say the same; entry 0 (no request samples) is never looked up."""
    return one == other or (len(one) == len(other) and tuple(one[1:]) == tuple(other[1:]))


def _overtaken(fleet: Fleet, policy: Policy) -> bool:
    return any(
        engine.state.generation > policy.generation
        or (engine.state.generation == policy.generation and not same(engine.state.table, policy.table))
        for engine in fleet.live
        if engine.state is not None
    )


def _failure(engine: Engine, silent: float, pushed: int) -> tuple[Reason | None, str]:
    if engine.failure is not None:
        return engine.failure, engine.failure_message
    if engine.state is None or engine.samples is None:
        return Reason.POD_NOT_ANSWERING, "no answer"
    if engine.samples.boot_id != engine.state.boot_id:
        return Reason.ENGINE_WARMING_UP, "it restarted while it was read"
    if not _plausible(engine.samples):
        return Reason.MALFORMED_ANSWER, "its samples hold numbers that cannot be"
    if engine.state.generation > pushed + GENERATIONS_AHEAD:
        return Reason.MALFORMED_ANSWER, "it claims a generation that was never pushed"
    if silent >= SILENT_SECONDS:
        return Reason.METRICS_STALE, "requests run, but no step was made for half a minute: the engine hangs"
    return None, ""


def _plausible(samples: Samples) -> bool:
    """Whether the arithmetic can bear the numbers: no count or time beyond what any engine reaches."""
    if samples.gauges.running > LARGEST or samples.to_seconds > LARGEST:
        return False
    for cell in samples.cells:
        steps, seconds, request_steps, bins = cell.steps, cell.seconds, cell.request_steps, cell.histogram
        if 0 < seconds < SHORTEST_STEP_SECONDS * steps or (steps and cell.first_tokens >= request_steps):
            return False
        if steps > LARGEST or request_steps > LARGEST or seconds > LARGEST or cell.seconds_squared > LARGEST:
            return False
        if cell.prompt_tokens > LARGEST or cell.emitted > LARGEST:
            return False
        if bins and not (min(bins) >= 0 and max(bins) <= LARGEST_BIN and max(bins.values()) <= LARGEST):
            return False
    for fate in samples.acceptance:
        if fate.request_steps > LARGEST or fate.drafts > LARGEST or len(fate.accepted) > MAX_K:
            return False
        if fate.accepted and (min(fate.accepted) < 0 or max(fate.accepted) > LARGEST):
            return False
        if fate.drafted and max(fate.drafted) > LARGEST:
            return False
    return True


def _tier(settings: Settings, engine: Engine) -> tuple[Tier, str]:
    assert engine.state is not None
    able = engine.state.capabilities
    if not able.live_k.supported:
        return Tier.RESTART, (settings.fixed or able.live_k.reason)[:REASON_LENGTH]
    if able.max_num_seqs != settings.max_num_seqs or not set(settings.ladder) <= set(able.ladder):
        return Tier.RESTART, (
            f"it booted for {able.max_num_seqs} requests and the ks {_listed(able.ladder)}, the spec says "
            f"{settings.max_num_seqs} and {_listed(settings.ladder)}: it waits to be replaced"
        )
    return Tier.LIVE, ""


def _listed(ks: Sequence[int]) -> str:
    return " ".join(map(str, ks[:MAX_K]))


def _metrics(
    engines: Sequence[Engine], answering: Sequence[Engine], failures: Sequence[tuple[str, Reason, str]]
) -> tuple[Reason, str]:
    if not engines:
        return Reason.NO_PODS, "no engine pod is there"
    said = listed([f"{name}: {reason}: {message}" for name, reason, message in failures])
    if answering:
        if not failures:
            return Reason.METRICS_FOUND, f"{len(answering)} of {len(engines)} engines answer"
        return Reason.METRICS_FOUND, f"{len(answering)} of {len(engines)} engines answer; {said}"
    reasons = [reason for _, reason, _ in failures]
    return max(reasons, key=lambda reason: (reasons.count(reason), -reasons.index(reason))), said
