"""The tuning part of a pass: read the engines, decide, push what changed, and say so. No Kubernetes in it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import act, metrics, observe, sightings, told
from paceline_operator.api.conditions import ConditionType
from paceline_operator.api.learned import ProfileKey
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import ServingStatus
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.effective.declared import last_words, of_pod
from paceline_operator.events import Event
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Target
from paceline_operator.profiling.key import key_of
from paceline_operator.profiling.prior import prior
from paceline_operator.safety.detect import ended
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Engine, Settings, Step
from paceline_operator.verdicts import Verdict, is_plain, is_ready

logger = logging.getLogger(__name__)

EARLY_SHARE = 0.1
"""A pass that comes this share of the interval too early, for whatever reason it came, is the one that was due."""


@dataclass(frozen=True)
class Retuned:
    """What is to be told, and the seconds to the next time (None: no engine is there)."""

    after: float | None
    engines: Sequence[Engine] = ()
    """What they answered; empty where they were not asked."""
    fields: dict[str, Any] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()
    events: Sequence[Event] = ()
    step: Step | None = None
    """What the tuner made of it; None where it did not look."""
    key: ProfileKey | str | None = None
    """What the engines' numbers hold for, or why that is not known."""


async def retune(
    client: EngineClient,
    clock: Clock,
    memory: Remembered,
    spec: ServingSpec,
    settings: Settings,
    previous: ServingStatus,
    targets: Sequence[Target],
    pods: Sequence[Object],
) -> Retuned:
    """One pass of the tuner over `targets`; before its interval is over only where one of these or the profile changed.

    `spec`, which the pods were booted with, is what `settings` are of.

    The tuner counts its passes (a move needs two windows): a burst of events must not become one of decisions.
    """
    now = clock.monotonic()
    ready = tuple((pod["metadata"]["name"], is_ready(pod)) for pod in pods)
    asked = (settings, tuple(targets), ready, memory.profile)
    left = memory.tuned_at + settings.interval_seconds - now
    if asked == memory.tuned and left > settings.interval_seconds * EARLY_SHARE:
        return Retuned(after=left if targets else None)
    if memory.holding:
        metrics.HELD_SECONDS.labels(memory.holding).inc(now - memory.tuned_at)
    memory.tuned, memory.tuned_at = asked, now
    answers = await observe.engines(client, targets, pods, memory.tuner)
    how = {pod["metadata"]["name"]: ended(pod) for pod in pods}
    declared = {pod["metadata"]["name"]: of_pod(pod) for pod in pods}
    engines, memory.sightings, news = sightings.look(memory.sightings, answers, how, rfc3339(clock.now()))
    urls = {target.pod: target.serving_url for target in targets}
    engines, memory.first_tokens = await observe.first_tokens(client, engines, urls, settings, memory.first_tokens, now)
    key = key_of(spec, engines)
    started = prior(*memory.profile, key) if memory.profile else None
    if started is not None:
        settings = started.into(settings)
    first = memory.tuner.state is None
    step = decide.step(settings, memory.tuner, engines, known_generation=previous.policy_generation, now=now)
    memory.tuner = step.memory
    if first:
        step = dataclasses.replace(step, decisions=(*told.untold(step, previous), *step.decisions))
    if step.policy and step.push_to:
        to = [target for target in targets if target.pod in step.push_to]
        refusals = await act.push(client, clock, step.policy, to)
        step = _acknowledged(step, [pod for pod, refusal in refusals.items() if not refusal])
    for decision in step.decisions:
        metrics.DECISIONS.labels(decision.reason).inc()
    for error in step.errors:
        metrics.TUNER_ERRORS.labels(error.partition(":")[0]).inc()
        logger.error("Part of a decision failed and was left out, the others went on: error=%s", error)
    memory.holding = step.metrics_reason if step.holding else ""
    fields, conditions = told.status(step, engines, previous, rfc3339(clock.now()))
    words = {pod["metadata"]["name"]: last_words(pod) for pod in pods}
    # Plain pods were not asked to speculate.
    asked_to = {pod["metadata"]["name"] for pod in pods if not is_plain(pod)}
    speculating = [engine for engine in engines if engine.name in asked_to]
    memory.effective, effective = told.effective(memory.effective, speculating, declared, words)
    # From the beginning of this pass: one engine that hangs must not keep the others waiting for the next.
    after = max(0.0, settings.interval_seconds - (clock.monotonic() - now)) if targets else None
    found = [*conditions, effective]
    # Engines that are gone for a while do not make a prior undone.
    if started is not None and (started.verdict.status is not None or not _applied(previous)):
        found.append(started.verdict)
    return Retuned(after, engines, fields, found, news, step, key)


def _applied(previous: ServingStatus) -> bool:
    return any(one.type == ConditionType.PROFILE_APPLIED and one.status == "True" for one in previous.conditions)


def _acknowledged(step: Step, pods: Sequence[str]) -> Step:
    """`step`, knowing already what the next reading of `pods` would tell."""
    return dataclasses.replace(
        step,
        acknowledged=tuple(sorted({*step.acknowledged, *pods})),
        generations={**step.generations, **dict.fromkeys(pods, step.generation)},
        k_by_engine={pod: k for pod, k in step.k_by_engine.items() if pod not in pods},
    )
