"""What passes make of a serving, without a cluster: the children that they would have."""

from __future__ import annotations

from datetime import UTC, datetime

from paceline_operator import extras, resources, rolling
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.plan import Object, Observation
from paceline_operator.rollout.accept import accept
from paceline_operator.rollout.situation import UNKNOWN
from tests.servings import DEFAULTS, TOKENS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = Observation(pods=(), children={}, missing_secrets={})


def raw_of(serving: SpeculativeServing) -> Object:
    """As much of the stored object as the pure part of a pass reads."""
    meta = serving.metadata
    return {"metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}}


def roll(serving: SpeculativeServing, look: Observation = NOTHING) -> rolling.Rolled:
    """The rollout part of a pass that remembers nothing."""
    accepted = accept(serving.spec, ServingStatus().rollout, (), NOW)
    return rolling.roll(serving, raw_of(serving), look, accepted, UNKNOWN, 0.0, DEFAULTS, TOKENS, NOW)


def children(serving: SpeculativeServing) -> list[Object]:
    """All children in the order in which the first pass over a new serving applies them, the token Secret first."""
    rolled = roll(serving)
    asked = extras.Asked(serving, rolled, raw_of(serving), NOTHING, ServingStatus(), DEFAULTS, TOKENS)
    secret = resources.token_secret(serving, TOKENS)
    around = resources.around(serving, DEFAULTS)
    return [*([secret] if secret else []), *around, *extras.gather(asked).manifests, *rolled.manifests]
