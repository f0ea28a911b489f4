"""Fields that travel together, so that few servings lead all of them through their lives. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Any

from paceline_operator.acceptance import accept
from paceline_operator.naming import API_VERSION, KIND_SERVING
from paceline_operator.resources import Defaults, Manifest, Tokens, render
from paceline_operator.tuning.decide import settings_of
from tests.cluster.transitions import SMALL, Journey, journeys
from tests.harness.fields import laid
from tests.harness.objects import Change, merged

TOGETHER = 12
"""Fields in one serving at most: a failure names them all."""
DEFAULTS = Defaults("engine:1", "cpu-engine:1", "plugin:1")


@dataclass(frozen=True)
class Bundle:
    """Fields that travel together in one serving: whole specs, in which all of them have a value, or none."""

    name: str
    journeys: tuple[Journey, ...]

    @cached_property
    def base(self) -> Change:
        """Without them, where they can be left out."""
        return reduce(merged, (journey.base for journey in self.journeys), SMALL)

    @cached_property
    def first(self) -> Change:
        """Each set to its first value."""
        return reduce(lambda spec, j: laid(spec, j.field.path, j.first), self.journeys, dict(self.base))

    @cached_property
    def second(self) -> Change:
        """Each set to its second value."""
        return reduce(lambda spec, j: laid(spec, j.field.path, j.second), self.journeys, dict(self.base))

    @property
    def frozen(self) -> set[str]:
        """Steps after which children stay as they were."""
        return {step for journey in self.journeys for step in journey.frozen}

    @property
    def refused_steps(self) -> set[str]:
        """Steps that the API server refuses."""
        return {step for journey in self.journeys for step in journey.refused_steps}


def bad_specs(journey: Journey) -> list[Change]:
    """Which the API server refuses for this field's sake."""
    alone = Bundle("", (journey,))
    found = [laid(alone.base, journey.field.path, value) for value in journey.refused]
    return [*found, *([laid(alone.first, journey.field.path, None)] if journey.field.required else [])]


def bundles() -> list[Bundle]:
    """All journeys, in few servings: together travels what makes a good spec together and leaves each its effect."""
    found: list[Bundle] = []
    for one in journeys():
        for i, there in enumerate(found):
            more = Bundle(there.name, (*there.journeys, one))
            special = any(each.alone for each in more.journeys)
            if len(there.journeys) < TOGETHER and not special and _good(more):
                found[i] = more
                break
        else:
            found.append(Bundle(f"bundle-{len(found)}", (one,)))
    return found


def _good(bundle: Bundle) -> bool:
    if not all(map(accepted, (bundle.base, bundle.first, bundle.second))):
        return False
    for each in reversed(bundle.journeys):
        without = laid(bundle.first, each.field.path, each.second)
        if not accepted(without) or effect(bundle.first, without) != alone(each):
            return False
    return True


def alone(journey: Journey) -> tuple[bool, bool]:
    """`effect` of a change from the first to the second value with nothing else around."""
    bundle = Bundle("", (journey,))
    return effect(bundle.first, bundle.second)


def accepted(spec: Change) -> bool:
    """Whether `Accepted` would be True, if the API server takes it."""
    return accept(_object(spec))[0] is not None


def effect(before: Change, after: Change) -> tuple[bool, bool]:
    """(whether any child differs, whether pods do) from one spec to another."""
    these, those = _rendered(before), _rendered(after)
    return these != those, _templates(these) != _templates(those)


def _rendered(spec: Change) -> list[Manifest]:
    return _render(json.dumps(spec, sort_keys=True))


@cache
def _render(text: str) -> list[Manifest]:
    serving, _ = accept(_object(json.loads(text)))
    assert serving is not None, text
    return render(serving, settings_of(serving.spec).boot_table, DEFAULTS, Tokens("v1", "token"))


def _templates(manifests: list[Manifest]) -> list[Any]:
    return [manifest["spec"]["template"] for manifest in manifests if manifest["kind"] == "Deployment"]


def _object(spec: Change) -> dict[str, Any]:
    meta = {"name": "chat", "namespace": "default", "uid": "1"}
    return {"apiVersion": API_VERSION, "kind": KIND_SERVING, "metadata": meta, "spec": spec}
