"""What one object's task carries from pass to pass: a saving of work, never truth.

A new process starts with none of it, sees the rest in the cluster and in the engines, and carries on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.beheld import Beheld
from paceline_operator.calm import Calm
from paceline_operator.effective.fleet import Known
from paceline_operator.events import Recorder
from paceline_operator.firsttokens import FirstTokens
from paceline_operator.history import Absence, Load
from paceline_operator.history.own import Own
from paceline_operator.history.question import Question
from paceline_operator.newest import Newest
from paceline_operator.plan import Applied, ChildKey
from paceline_operator.profiling.prior import Absent
from paceline_operator.proposing import Plain
from paceline_operator.rollout.contract import Answers
from paceline_operator.rollout.evidence import Watch
from paceline_operator.rollout.proposal import Proposal
from paceline_operator.safety.detect import Progress
from paceline_operator.safety.incident import Incident
from paceline_operator.scaling.motion import Motion
from paceline_operator.scaling.values import Past
from paceline_operator.sightings import Sighting
from paceline_operator.tuning.model import Memory


@dataclass
class Remembered:
    """Of one object, by UID: another object of the same name starts with a new one."""

    uid: str = ""
    generation: int = 0
    """Of the spec whose children are all applied."""
    applied: dict[ChildKey, Applied] = field(default_factory=dict)
    token: str = ""
    """Digest of the token Secret written last."""
    refusals: set[str] = field(default_factory=set)
    """UIDs of pods whose refusal of the token was answered with a new Secret: once each."""
    missing: dict[str, str] = field(default_factory=dict)
    """Pod UID -> event about a missing Secret that was answered."""
    forgotten: str = ""
    """Key version whose Secret was deleted after a rotation."""
    tuner: Memory = field(default_factory=Memory)
    tuned: object = None
    """What the tuner was asked about last: settings and engines."""
    tuned_at: float = 0.0
    holding: str = ""
    """Why k holds since then; empty where it does not."""
    first_tokens: FirstTokens = field(default_factory=FirstTokens)
    effective: Mapping[str, Known] = field(default_factory=dict)
    """Pod -> what its engine did lately, declared against effective."""
    sightings: dict[str, Sighting] = field(default_factory=dict)
    """Pod -> what its engine answered last."""
    scaling: Past = field(default_factory=Past)
    """What replicas are decided by."""
    scaling_told_at: float = 0.0
    motion: Motion = field(default_factory=Motion)
    """Pods that come and go by scaling."""
    calm: Calm | None = None
    """What may be believed without another look."""
    beheld: Beheld | None = None
    """Children that need not be listed again while nothing is told of them."""
    waiting: tuple[float, Mapping[str, Any]] | None = None
    """What of status may wait (calm.minor), and since when (monotonic)."""
    newest: Newest = field(default_factory=Newest)
    """What of the object was written last: older views are not believed."""
    unsaved: ServingStatus | None = None
    """Status that could not be written: the decisions in it must not be lost."""
    in_force: SpeculativeServing | None = None
    """What the stable pods run, as the last full pass found it."""
    accepted: ServingSpec | None = None
    """What was asked for, proposals over it and no remedy, as it found."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Pod -> when its engine's tokens grew last."""
    trial: tuple[str, float, float] = ("", 0.0, 0.0)
    """Since when the rung in trial is up; its seconds when this process saw that first; when that was (monotonic)."""
    contract: tuple[Answers, Answers] = (Answers(), Answers())
    """Of speculating pods and of plain ones, between rollouts."""
    contract_at: float | None = None
    hung: Mapping[str, float] = field(default_factory=dict)
    """Pod -> seconds for which its engine stands still with requests running, as found last."""
    unkept: list[Incident] = field(default_factory=list)
    """Records that could not be written yet."""
    unkept_tries: int = 0
    """In how many passes in a row they could not."""
    frozen: bool = False
    """Pods with two templates serve, as it found: k stays as it is."""
    look_at: float | None = None
    """When children are to be looked at again though nothing wakes the object (monotonic)."""
    watch: Watch = field(default_factory=Watch)
    """What was seen of a canary and of the pods beside it."""
    proposals: tuple[Proposal, ...] = ()
    """What a restart would bring, as found last."""
    plain: Mapping[int, Plain] = field(default_factory=dict)
    """Load bucket -> what engines without a drafter take there."""
    own: Own = field(default_factory=Own)
    """Our own readings of the load."""
    asked: Question | None = None
    asking: asyncio.Task[Load | Absence] | None = None
    """The question to Prometheus that is on its way."""
    history: Load | Absence | None = None
    recalled_at: float | None = None
    """When it was asked for last (monotonic)."""
    recall_error: type[Exception] | None = None
    """What history failed with last, as the log has said."""
    profile: tuple[str, ProfileSpec | Absent] | None = None
    """The SpeculationProfile that the serving names, as it was read last."""
    profile_read_at: float = 0.0
    recorder: Recorder = field(default_factory=Recorder)
