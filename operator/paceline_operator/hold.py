"""The pass over engines while pods are replaced: k stays as it is, and the canary is seen beside the other pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from paceline_engine.protocol import Policy, State, Verification, VerificationPolicy
from paceline_operator import act, naming, observe, rolling, sightings
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.rollout import OutputContract
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Target
from paceline_operator.retune import EARLY_SHARE, Retuned
from paceline_operator.rollout import evidence
from paceline_operator.rollout.contract import ASKED, counted, keeps, request
from paceline_operator.rollout.evidence import Watch
from paceline_operator.safety.detect import ended
from paceline_operator.tuning.engines import same
from paceline_operator.tuning.model import Engine, Memory, Settings
from paceline_operator.verdicts import Verdict, is_ready


async def hold(
    client: EngineClient,
    clock: Clock,
    memory: Remembered,
    settings: Settings,
    targets: Sequence[Target],
    pods: Sequence[Object],
    canaries: Collection[str],
    revision: str,
    contract: tuple[OutputContract, str] | None,
    why: str,
) -> Retuned:
    """One look at all engines, at most once an interval. `canaries`: pods of the canary, whose template is `revision`;
    `contract`: what they are asked besides, and the model's name; `why`: "while" k is held.

    The tuner rests. A pod that came meanwhile is given the table in force where it can have the same: the other
    template is judged, not a table that another load once asked for.
    """
    now = clock.monotonic()
    asked = ("hold", tuple(targets), tuple((pod["metadata"]["name"], is_ready(pod)) for pod in pods))
    left = memory.tuned_at + settings.interval_seconds - now
    if asked == memory.tuned and left > settings.interval_seconds * EARLY_SHARE:
        return Retuned(after=left if targets else None)
    memory.tuned, memory.tuned_at = asked, now
    found = await observe.engines(client, targets, pods, Memory(cursors=memory.watch.cursors))
    how = {pod["metadata"]["name"]: ended(pod) for pod in pods}
    engines, memory.sightings, news = sightings.look(memory.sightings, found, how, rfc3339(clock.now()))
    compared = [pod for pod in pods if _is_compared(pod)]
    ready = {pod["metadata"]["name"] for pod in compared if is_ready(pod)}
    if ready & set(canaries):
        serving = [target for target in targets if target.pod in ready]
        pages = await observe.pages(client, serving)
        names = rolling.names(compared)
        sides = [engine for engine in engines if engine.name in names]
        memory.watch = evidence.seen(memory.watch, revision, sides, pages, canaries, now)
        if contract:
            memory.watch = await _asked(client, memory.watch, *contract, serving, canaries)
    elif memory.watch.revision:
        memory.watch = replace(memory.watch, since=now)  # it is to be ready all the time that it is watched
    policy, late = carried_over(engines, canaries)
    if policy and late:
        await act.push(client, clock, policy, [target for target in targets if target.pod in late])
    text = f"k stays as it is while {why}"
    after = settings.interval_seconds if targets else None
    return Retuned(after, engines, verdicts=[Verdict(ConditionType.TUNED, None, Reason.FROZEN, text)], events=news)


async def _asked(
    client: EngineClient,
    watch: Watch,
    contract: OutputContract,
    model: str,
    targets: Sequence[Target],
    canaries: Collection[str],
) -> Watch:
    """One request to a pod of each side that was not asked often enough. No answer is none, and not a broken one."""
    found = list(watch.answers)
    for side, mine in enumerate((False, True)):
        of = next((target for target in targets if (target.pod in canaries) is mine), None)
        if of is not None and found[side].given < ASKED:
            answer = await client.complete(of.serving_url, request(contract, model))
            found[side] = counted(found[side], keeps(contract, answer)) if answer is not None else found[side]
    return replace(watch, answers=(found[0], found[1]))


def _is_compared(pod: Object) -> bool:
    """Not engines without a drafter, which are there for another purpose."""
    track = (pod["metadata"].get("labels") or {}).get(naming.LABEL_TRACK)
    return track in (naming.TRACK_STABLE, naming.TRACK_CANARY)


def carried_over(engines: Sequence[Engine], canaries: Collection[str]) -> tuple[Policy | None, tuple[str, ...]]:
    """The policy that the other pods have, and who lacks it though it booted for the same ks and requests. Pure."""
    states: Mapping[str, State] = {engine.name: engine.state for engine in engines if engine.state is not None}
    others = [state for name, state in states.items() if name not in canaries]
    newest = max(others, key=lambda state: state.generation, default=None)
    if newest is None or newest.generation == 0 or len(newest.table) < 2:
        return None, ()
    policy = Policy(
        generation=newest.generation,
        table=newest.table,
        probe=newest.probe,
        adaptive_verification=_verification(newest),
    )
    late = [
        name
        for name, state in states.items()
        if state.generation < newest.generation
        and state.capabilities.live_k.supported
        and state.capabilities.max_num_seqs == newest.capabilities.max_num_seqs
        and same(state.capabilities.ladder, newest.capabilities.ladder)
        and (state.adaptive_verification is None) == (newest.adaptive_verification is None)
    ]
    return policy, tuple(late)


def _verification(state: State) -> VerificationPolicy | None:
    found = state.adaptive_verification
    if found is None or found.generation == 0:
        return None
    return VerificationPolicy(mode=found.mode, cap=found.cap if found.mode is Verification.CAPPED else None)
