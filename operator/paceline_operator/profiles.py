"""The profile part of a pass: the SpeculationProfile that a serving names, read now and then, and what is learnt, told.

(Not `profile.py`: that is a module of the standard library.)
"""

from __future__ import annotations

from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.profiles import ProfileSpec, SpeculationProfile
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clients.kube import Kube, KubeError
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.draft import Draft, Hands
from paceline_operator.memory import Remembered
from paceline_operator.preflight import evidence
from paceline_operator.profiling import learn
from paceline_operator.profiling.prior import Absent, prior
from paceline_operator.retune import Retuned
from paceline_operator.tuning.state import TunerState
from paceline_operator.verdicts import Verdict

READ_SECONDS = 30.0
"""Between two looks at a profile: it matters at the start, and what is there then."""


async def named(kube: Kube, clock: Clock, memory: Remembered, draft: Draft, serving: SpeculativeServing) -> None:
    """Put the profile that `serving` names into `memory`; None where it names none."""
    ref = serving.spec.tuning.profile_ref
    if ref is None:
        memory.profile = None
        draft.withdrawn.add(ConditionType.PROFILE_APPLIED)
        return
    now = clock.monotonic()
    if memory.profile is None or memory.profile[0] != ref.name or now - memory.profile_read_at >= READ_SECONDS:
        memory.profile = ref.name, await read(kube, draft.namespace, ref.name)
        memory.profile_read_at = now


def missing(memory: Remembered) -> list[Verdict]:
    """That there is no profile to start from, in a pass in which the tuner, which tells the rest, does not look."""
    if memory.profile is None or not isinstance(memory.profile[1], Absent):
        return []
    return [prior(*memory.profile, "").verdict]


async def read(kube: Kube, namespace: str, name: str) -> ProfileSpec | Absent:
    """The spec of a profile, or why there is none to start from."""
    try:
        raw = await kube.get(naming.KIND_PROFILE, namespace, name)
    except KubeError as error:
        return Absent(Reason.PROFILE_UNREADABLE, f"SpeculationProfile {name} cannot be read: {error}")
    if raw is None:
        return Absent(Reason.PROFILE_NOT_FOUND, f"there is no SpeculationProfile {name} in namespace {namespace}")
    try:
        spec = SpeculationProfile.model_validate({**raw, "status": {}}).spec
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        return Absent(Reason.PROFILE_INVALID, f"SpeculationProfile {name}: {where}: {error.errors()[0]['msg']}")
    if wrong := next(evidence.of_profile(spec), None):
        return Absent(Reason.PROFILE_INVALID, f"SpeculationProfile {name}: {wrong}")
    return spec


def tell(hands: Hands, memory: Remembered, draft: Draft, tuned: Retuned) -> None:
    """What was learnt, in status."""
    if tuned.step is None or tuned.key is None or not isinstance(state := tuned.step.memory.state, TunerState):
        return
    status = draft.previous.model_copy(update=tuned.fields)
    now = rfc3339(hands.clock.now())
    draft.fields["learned"] = learn.learned(state, tuned.key, memory.plain, draft.previous, status, now)
