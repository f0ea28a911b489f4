"""All engines of a serving, declared against effective: the condition SpeculationEffective and what is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline_engine.protocol import Samples, State
from paceline_operator.api.conditions import Reason
from paceline_operator.effective.declared import Declared
from paceline_operator.effective.judge import Finding, judge, refused
from paceline_operator.effective.seen import RUNNING, Seen, counted, sampled

SHOWN = 3
GRAVEST = (
    Reason.VERIFICATION_REFUSED,
    Reason.METHOD_FELL_BACK,
    Reason.SCHEDULE_DROPPED,
    Reason.K_IGNORED,
    Reason.COUNTERS_ABSENT,
    Reason.NOT_SPECULATING,
    Reason.DRAFTER_COLLAPSED,
    Reason.GRAPHS_MISSED,
    Reason.ACCEPTANCE_SHIFTED,
    Reason.EFFECTIVE,
    Reason.OFF_BY_DECISION,
    Reason.NO_DRAFTS_YET,
)
"""All that is found; the first that any engine has is the condition's reason."""


@dataclass(frozen=True)
class Pod:
    """One engine as this pass saw it: with the plugin's answer, with vLLM's counters, or with neither."""

    name: str
    declared: Declared | None = None
    state: State | None = None
    samples: Samples | None = None
    counters: Mapping[str, float] | None = None
    last_words: str = ""
    """Of its container, where it ended."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of one engine."""

    seen: Seen = field(default_factory=Seen)
    finding: Finding | None = None


@dataclass(frozen=True)
class Outcome:
    """The condition: status (None = Unknown), reason and message; and what each engine was found to be."""

    status: bool | None
    reason: Reason
    message: str
    known: Mapping[str, Known]


def look(before: Mapping[str, Known], pods: Sequence[Pod]) -> Outcome:
    """One pass. Engines that are gone are forgotten; those that do not answer now say nothing."""
    known = {pod.name: _look(before.get(pod.name, Known()), pod) for pod in pods}
    found = {pod.name: one for pod in pods if (one := known[pod.name].finding) is not None and _speaks(pod, one)}
    if not found:
        return Outcome(None, Reason.HOLDING, "unknown: no engine answers, see MetricsAvailable", known)
    declared = {pod.name: pod.declared for pod in pods}
    reason = next(one for one in GRAVEST if one in {finding.reason for finding in found.values()})
    names = [name for name, one in found.items() if one.reason is reason]
    return Outcome(found[names[0]].status, reason, _message(names, declared, found), known)


def _look(past: Known, pod: Pod) -> Known:
    if pod.state is not None and pod.samples is not None:
        seen = sampled(past.seen, pod.state, pod.samples)
    elif pod.counters is not None:
        running = pod.counters.get(RUNNING, 0.0)
        requests = int(running) if 0 <= running < 1e6 else 0
        asked = (pod.declared.k_at(requests), max(pod.declared.ks)) if pod.declared else (0, 0)
        seen = counted(past.seen, pod.counters, asked)
    else:
        return Known(past.seen, refused(pod.declared, pod.last_words))
    before = past.finding if seen.boot == past.seen.boot else None
    return Known(seen, judge(pod.declared, pod.state, seen, before))


def _speaks(pod: Pod, finding: Finding) -> bool:
    return pod.state is not None or pod.counters is not None or finding.reason is Reason.VERIFICATION_REFUSED


def _message(names: Sequence[str], declared: Mapping[str, Declared | None], found: Mapping[str, Finding]) -> str:
    """Which pods, what was declared, what is, and the remedy, in the words of the first: they have one reason."""
    first = found[names[0]]
    if first.status is not False:
        return first.effective
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    asked = declared[names[0]]
    said = f"declared: {asked}; effective: {first.effective}" if asked else first.effective
    return f"{', '.join(names[:SHOWN])}{more}: {said}; {first.remedy}"
