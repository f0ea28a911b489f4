"""Children and conditions beyond those of every serving: each has a function, and a pass asks them all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import checked, modelcache, traffic, verdicts
from paceline_operator.api.autoscaling import AutoscalingMode
from paceline_operator.api.conditions import ConditionType
from paceline_operator.api.engine import Preflight
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.events import Event
from paceline_operator.plan import WORKLOAD_KINDS, Object, Observation, key_of
from paceline_operator.preflight.security import weaknesses
from paceline_operator.resources import Defaults, Tokens, cache, scaledobject
from paceline_operator.rolling import Rolled
from paceline_operator.verdicts import Verdict


@dataclass(frozen=True)
class Asked:
    """What an extra may look at."""

    serving: SpeculativeServing
    """As asked for: spec with accepted proposals laid over it. `rolled.in_force` is what the stable pods run."""
    rolled: Rolled
    raw: Object
    look: Observation
    previous: ServingStatus
    defaults: Defaults
    tokens: Tokens


@dataclass(frozen=True)
class Extra:
    """What one adds to the pass."""

    manifests: Sequence[Object] = ()
    """Applied before the pods' workloads."""
    verdicts: Sequence[Verdict] = ()
    events: Sequence[Event] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    """Of ServingStatus, by attribute name."""
    withdrawn: Sequence[ConditionType] = ()
    """Conditions that are about nothing any more."""
    after: float | None = None
    """Seconds to the next look; None: when something changes."""
    frozen: bool = False
    """k is to stay as it is, as while pods are replaced."""


def _routing(asked: Asked) -> Extra:
    rolled = asked.rolled
    held = not any(manifest["kind"] in WORKLOAD_KINDS for manifest in rolled.manifests)
    given = (asked.serving, rolled.in_force, asked.look, asked.defaults, asked.tokens)
    return Extra(traffic.manifests(*given, held=held))


def _cache(asked: Asked) -> Extra:
    if asked.serving.spec.model.cache is None:
        return Extra(withdrawn=[ConditionType.MODEL_AVAILABLE], fields={"model_cache": None})
    look, job = asked.look, asked.rolled.job
    pods = [*look.pods, *look.plain, *look.pullers]
    there = (look.children or {}).get(key_of(job)) if job else None
    found = modelcache.view(asked.serving, pods, look.pulls, there, asked.previous.model_cache)
    manifests = [one for one in (cache.build(asked.serving), job) if one is not None]
    return Extra(manifests, [found.verdict], fields={"model_cache": found.status}, after=found.after)


def _preflight(asked: Asked) -> Extra:
    """Of what the stable pods run, and of the Job before those that are asked for."""
    wishes = (asked.serving.spec.engine.preflight, asked.rolled.in_force.spec.engine.preflight)
    if all(wish is Preflight.DISABLED for wish in wishes):
        return Extra(withdrawn=[ConditionType.PREFLIGHT_PASSED])
    look = asked.look
    return Extra(verdicts=[checked.verdict([*look.pods, *look.plain, *look.pullers])])


def _scaling(asked: Asked) -> Extra:
    keda = asked.serving.spec.autoscaling.mode is AutoscalingMode.KEDA
    return Extra([scaledobject.build(asked.serving)] if keda else [])


def _security(asked: Asked) -> Extra:
    """Of the template that the stable pods run."""
    manifests = {manifest["metadata"]["name"]: manifest for manifest in asked.rolled.manifests}
    stable = manifests[asked.rolled.decision.stable.revision]["data"]["template"]
    found = weaknesses(stable, asked.rolled.in_force.spec.engine)
    return Extra(verdicts=[verdicts.pod_security([(one.field, one.weakens) for one in found])])


BUILDERS: tuple[Callable[[Asked], Extra], ...] = (_routing, _scaling, _preflight, _cache, _security)


def gather(asked: Asked) -> Extra:
    """Of all builders, in their order."""
    found = [build(asked) for build in BUILDERS]
    return Extra(
        manifests=[manifest for one in found for manifest in one.manifests],
        verdicts=[verdict for one in found for verdict in one.verdicts],
        events=[event for one in found for event in one.events],
        fields={name: value for one in found for name, value in one.fields.items()},
        frozen=any(one.frozen for one in found),
        withdrawn=[kind for one in found for kind in one.withdrawn],
        after=min((one.after for one in found if one.after is not None), default=None),
    )
