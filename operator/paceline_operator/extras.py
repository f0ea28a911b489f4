"""Children and conditions beyond those of every serving: each has a function, and a pass asks them all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import traffic
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.events import Event
from paceline_operator.plan import Object, Observation
from paceline_operator.resources import Defaults, Tokens
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


def _routing(asked: Asked) -> Extra:
    return Extra(traffic.manifests(asked.serving, asked.rolled.in_force, asked.look, asked.defaults, asked.tokens))


BUILDERS: tuple[Callable[[Asked], Extra], ...] = (_routing,)


def gather(asked: Asked) -> Extra:
    """Of all builders, in their order."""
    found = [build(asked) for build in BUILDERS]
    return Extra(
        manifests=[manifest for one in found for manifest in one.manifests],
        verdicts=[verdict for one in found for verdict in one.verdicts],
        events=[event for one in found for event in one.events],
        fields={name: value for one in found for name, value in one.fields.items()},
    )
