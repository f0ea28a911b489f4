"""From a SpeculationProfile that a serving names to the tuner's prior; or the reason why it is not used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline_engine.protocol import LOAD_EDGES
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.learned import ProfileKey
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.profiling.key import differing
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS
from paceline_operator.tuning.cost import MIN_STEPS
from paceline_operator.tuning.model import Profile, Settings
from paceline_operator.verdicts import Verdict

MILLION = 1e6


@dataclass(frozen=True)
class Absent:
    """Why the named profile cannot be read."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Prior:
    """What the tuner starts from, and what is told of it."""

    verdict: Verdict
    profile: Profile | None = None
    off_step_seconds: Mapping[int, float] = field(default_factory=dict)

    def into(self, settings: Settings) -> Settings:
        """`settings` that start from it."""
        off = self.off_step_seconds or settings.off_step_seconds
        return replace(settings, profile=self.profile, off_step_seconds=off)


def prior(name: str, found: ProfileSpec | Absent, engines: ProfileKey | str) -> Prior:
    """Of the profile `name` for engines with this key; used where both keys are equal in every field."""
    if isinstance(found, Absent):
        return _refused(found.reason, found.message)
    if isinstance(engines, str):
        message = f"SpeculationProfile {name} waits until the key of the engines is known: {engines}"
        return Prior(Verdict(ConditionType.PROFILE_APPLIED, None, Reason.KEY_UNKNOWN, message))
    if fields := differing(found.key, engines):
        return _refused(Reason.KEY_MISMATCH, f"SpeculationProfile {name} is not used: {'; '.join(fields)}")
    profile = profile_of(found)
    message = (
        f"SpeculationProfile {name}, measured at {found.measured_at} (workload {found.workload}), is the prior: "
        f"{len(profile.step_seconds)} step times and the acceptance of {len(profile.survival)} ks count for half of "
        "their minimum"
    )
    off = {row.from_requests: row.step_microseconds / MILLION for row in found.no_drafter}
    return Prior(Verdict(ConditionType.PROFILE_APPLIED, True, Reason.KEY_MATCHES, message), profile, off)


def profile_of(spec: ProfileSpec) -> Profile:
    """In the tuner's terms. Rows below the half that they would stand for, and other load buckets, are left out."""
    return Profile(
        step_seconds={
            (row.from_requests, row.k): row.step_microseconds / MILLION
            for row in spec.cost
            if row.context_tokens == 0 and row.steps >= MIN_STEPS / 2 and row.from_requests in LOAD_EDGES
        },
        survival={
            row.k: tuple(accepted / row.request_steps for accepted in row.accepted)
            for row in spec.acceptance
            if row.request_steps >= MIN_REQUEST_STEPS / 2
        },
        adaptive_loads=tuple(spec.adaptive_loads),
    )


def _refused(reason: Reason, message: str) -> Prior:
    return Prior(Verdict(ConditionType.PROFILE_APPLIED, False, reason, message))
