"""What the rollout's state machine is asked, and what it answers. Values alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Rollout
from paceline_operator.api.status_rollout import Phase, RolloutStatus
from paceline_operator.events import Event
from paceline_operator.resources.revision import Revision
from paceline_operator.verdicts import Verdict


@dataclass(frozen=True)
class Track:
    """The workload of one track (stable or canary) as it is in the cluster."""

    revision: str
    """Name of the ControllerRevision whose template it has; empty where it does not say."""
    replicas: int
    """As asked for."""
    ready: int
    """Pods of this track that are ready."""
    settled: bool
    """Its controller has seen it, and all its pods have the template and are available."""
    renewed: bool
    """Its controller has seen it, and none of its pods has another template; some may not be ready."""
    unplaced_since: datetime | None = None
    """The scheduler finds no node for one of its pods, since then."""


@dataclass(frozen=True)
class CanaryPod:
    """The one pod of the canary."""

    ready_since: datetime | None = None
    unschedulable_since: datetime | None = None
    """The scheduler finds no node for it, since then."""
    crash: str = ""
    """How its container ended, where it did."""
    refused: str = ""
    """What its preflight found, where that keeps it from starting."""
    weightless: str = ""
    """Why its weights do not come, where another attempt would not change that."""
    stuck: str = ""
    """Why a container cannot even start: an image that is not there, a missing Secret, an init container that fails."""


@dataclass(frozen=True)
class Judgement:
    """What was found about a canary. `good` None: too little is known."""

    good: bool | None
    reason: Reason
    message: str


UNKNOWN = Judgement(None, Reason.CANARY_UNJUDGED, "nothing was measured yet")
BROKEN = frozenset({Reason.REQUESTS_FAILED, Reason.OUTPUT_CONTRACT, Reason.ENGINE_HUNG})
"""What ends the trial of a rung of the safety ladder, which need not be faster than anything."""


def of_trial(found: Judgement) -> Judgement:
    """What of a judgement counts for a rung of the safety ladder."""
    if found.good is False and found.reason in BROKEN:
        return found
    return Judgement(None, Reason.REMEDY_TRIED, "it is judged by how long it stays up")


@dataclass(frozen=True)
class Situation:
    """All that a decision depends on."""

    replicas: int
    rollout: Rollout
    wanted: Revision
    """What spec and accepted proposals ask for."""
    own: bool
    """All that `fields` names are the operator's own proposals."""
    proposal: str
    """Which, where it is one (Proposal.key)."""
    fields: tuple[str, ...]
    """What differs between the stable pods and `wanted`."""
    stable: Track | None
    canary: Track | None
    pod: CanaryPod | None
    """None: no pod of the canary is there, not even one that ends."""
    judgement: Judgement
    watched_seconds: float
    """For which evidence of the canary was gathered, by this process's own clock that cannot jump."""
    memory: RolloutStatus
    retry: str
    """Value of the annotation that asks for another try; empty where there is none."""
    startup_seconds: float
    """In which an engine must be ready."""
    now: datetime
    occupied: str = ""
    """Whose object stands where the canary's workload would be; empty: nobody's."""
    urgent: str = ""
    """Why all pods are to have `wanted` now, canary, windows and budget or not; empty: they are not."""
    trial: bool = False
    """`wanted` is a rung of the safety ladder: its canary is judged by how long it stays up, and costs no restart of
    the day."""


@dataclass(frozen=True)
class Ask:
    """What a track's workload should be."""

    revision: str
    replicas: int


@dataclass(frozen=True)
class Decision:
    """What to make of both tracks, what to remember and what to tell."""

    stable: Ask
    canary: Ask | None
    memory: RolloutStatus
    verdicts: tuple[Verdict, ...] = ()
    events: tuple[Event, ...] = ()
    after: float | None = None
    """Seconds to the next look where time alone changes something."""

    @property
    def frozen(self) -> bool:
        """Pods with two templates serve: k and replicas stay as they are."""
        return self.memory.phase in (Phase.CANARY, Phase.PROMOTING, Phase.ROLLING)
