"""What goes through a pass from hand to hand: the hands of all passes, and what one of them found and did so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import act
from paceline_operator.api.conditions import ConditionType
from paceline_operator.api.status import ServingStatus
from paceline_operator.beheld import Versions
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.keys import KeyFile
from paceline_operator.clients.kube import Kube, Object
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.clock import Clock
from paceline_operator.resources import Defaults
from paceline_operator.verdicts import Verdict


@dataclass(frozen=True)
class Hands:
    """What all passes share."""

    kube: Kube
    engines: EngineClient
    keys: KeyFile
    defaults: Defaults
    clock: Clock
    prometheus: PrometheusClient = field(default_factory=PrometheusClient)
    versions: Versions = field(default_factory=Versions)
    servings: Callable[[], int] = lambda: 1
    """How many objects are looked after now."""


@dataclass
class Draft:
    """What a pass found and did so far: it becomes status and events."""

    raw: Object
    previous: ServingStatus
    fields: dict[str, Any]
    verdicts: list[Verdict]
    report: act.Report
    stored: ServingStatus
    """As the API server has it; `previous` where that could be written."""
    withdrawn: set[ConditionType] = field(default_factory=set)

    def tells(self, kind: ConditionType) -> bool:
        """Whether there is a verdict of this type already."""
        return any(verdict.type is kind for verdict in self.verdicts)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name) of the object."""
        return self.namespace, self.name

    @property
    def namespace(self) -> str:
        """Of the object."""
        return str(self.raw["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.raw["metadata"]["name"])
