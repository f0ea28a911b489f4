"""Ends and standstills of engines, from what pods and engines tell. Pure.

`/health` does not see a hang, and a crashed `vllm serve` exits 0: so restarts are what counts, and token progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from paceline_operator.clock import moment, rfc3339

Raw = Mapping[str, Any]
HANG_SECONDS = 60.0
"""No token in so long with requests running is a standstill: the slowest steps known take a second, a first compilation
half a minute, and vLLM's own executor gives up after 300 s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)."""
HANG_STEPS = 50
"""And at least so many of the engine's own usual steps: a slow engine is not a hang."""
HANG_LOOKS = 3
"""And in so many looks: an operator that was itself stopped for a while has seen nothing."""
NODE_ENDS = frozenset({"Unknown", "ContainerStatusUnknown"})
"""Reasons of containerd and of the kubelet for a container that they lost sight of, as when a node starts anew."""
EVICTIONS = frozenset({"Evicted", "Preempting"})
"""Reasons of a pod that the kubelet ended for its node's sake, or because a volume grew beyond its limit
(pkg/kubelet/eviction: Reason), or to make room for a critical pod (pkg/kubelet/preemption): its containers say `Error`
and 137, as if the engine had been killed. Any other reason of a pod is its node's: it is shut down
(pkg/kubelet/nodeshutdown: nodeShutdownReason), or started anew and would not have the pod again."""


class Kind(StrEnum):
    """Of a fault."""

    CRASH = "Crash"
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    NEVER_READY = "NeverReady"
    EVICTED = "Evicted"


@dataclass(frozen=True)
class End:
    """One end of an engine's container."""

    pod: str
    uid: str
    restarts: int
    """Of the container when it was seen: with the uid, what tells two ends apart."""
    at: datetime | None
    started: datetime | None
    reason: str
    exit_code: int | None
    message: str
    was_ready: bool
    """Whether it lived long enough to have served: a container that ends while it boots never was."""
    track: str = ""
    of_pod: bool = False
    """The pod ended as a whole: `reason` and `message` are the pod's."""

    @property
    def key(self) -> str:
        """The same for the same end, seen again."""
        return f"{self.uid}/{self.restarts}"

    @property
    def is_the_engine_s(self) -> bool:
        """Not one that came with its node."""
        return self.reason in EVICTIONS if self.of_pod else self.reason not in NODE_ENDS

    @property
    def kind(self) -> Kind:
        """By Kubernetes' word, and by whether it ever served."""
        if self.of_pod:
            return Kind.EVICTED
        if self.reason == "OOMKilled":
            return Kind.OUT_OF_MEMORY
        return Kind.CRASH if self.was_ready else Kind.NEVER_READY

    @property
    def lived_seconds(self) -> float | None:
        """Time to failure; None where a clock does not say, or went back."""
        if self.at is None or self.started is None or self.at < self.started:
            return None
        return (self.at - self.started).total_seconds()


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one engine, over the passes: when its count of tokens last grew, by the operator's monotonic clock."""

    tokens: int
    boot_id: str
    since: float
    step_seconds: float | None = None
    """A usual step, as measured while it moved."""
    looks: int = 0
    """That found it standing since then."""


def ends(
    pods: Sequence[Raw], container: str, track_label: str, startup_seconds: float, served: Collection[str] = ()
) -> list[End]:
    """Ends of `container` that pods still tell of: of the state now, else the state before. Nothing is raised for a
    field that is absent or of another type.

    `served`: pods whose engine was seen to answer; of others, a container that lived `startup_seconds` is taken to have
    served.
    """
    return [
        replace(end, was_ready=end.was_ready or end.pod in served)
        for pod in pods
        for status in _dicts(_dict(pod.get("status")).get("containerStatuses"))
        if status.get("name") == container and (end := _end(pod, status, track_label, startup_seconds)) is not None
    ]


def ended(pod: Raw) -> str:
    """How the containers of a pod ended last, in words; empty where none did. A crashed `vllm serve` may exit 0."""
    found = []
    for status in _dicts(_dict(pod.get("status")).get("containerStatuses")):
        if (end := _end(pod, status, "", 0.0)) is not None:
            at = f" at {rfc3339(end.at)}" if end.at else ""
            code = "?" if end.exit_code is None else end.exit_code
            how = f"{end.reason or 'ended'}, exit code {code}"
            found.append(f"{status.get('name')} ended{at}: {how} ({_count(status.get('restartCount'))} restarts)")
    return "; ".join(found)


def progress(
    before: Mapping[str, Progress],
    seen: Mapping[str, tuple[int, str, int, float | None]],
    alive: Collection[str],
    now: float,
) -> dict[str, Progress]:
    """`before` brought up to date with `seen`: engine -> (tokens, boot id, requests running, usual step seconds).

    An engine without requests, or one that booted anew, begins anew. One of `alive` that did not answer keeps its
    clock: silence is no progress. Others are forgotten.
    """
    kept: dict[str, Progress] = {engine: one for engine, one in before.items() if engine in alive}
    for engine, (tokens, boot_id, running, step) in seen.items():
        old = before.get(engine)
        usual = step if step is not None else (old.step_seconds if old else None)
        stands = old is not None and running > 0 and (tokens, boot_id) == (old.tokens, old.boot_id)
        since, looks = (old.since, old.looks + 1) if old and stands else (now, 0)
        kept[engine] = Progress(tokens, boot_id, since, usual, looks)
    return kept


def hangs(
    found: Mapping[str, Progress], running: Mapping[str, int], now: float, seconds: float = HANG_SECONDS
) -> dict[str, float]:
    """Engine -> seconds without a token, for those that stand still with requests running when last asked."""
    return {
        engine: now - one.since
        for engine, one in found.items()
        if running.get(engine, 0) > 0
        and one.looks >= HANG_LOOKS
        and now - one.since >= max(seconds, HANG_STEPS * (one.step_seconds or 0.0))
    }


def _end(pod: Raw, status: Raw, track_label: str, startup_seconds: float) -> End | None:
    state, last = _dict(status.get("state")), _dict(status.get("lastState"))
    terminated = _dict(state.get("terminated")) or _dict(last.get("terminated"))
    if not terminated:
        return None
    meta = _dict(pod.get("metadata"))
    at, started = moment(terminated.get("finishedAt")), moment(terminated.get("startedAt"))
    lived = (at - started).total_seconds() if at and started else 0.0
    code = terminated.get("exitCode")
    of_pod = _dict(pod.get("status"))
    is_of_pod = bool(of_pod.get("reason"))
    said = of_pod if is_of_pod else terminated
    now_running = isinstance(state.get("running"), Mapping)
    restarts = status.get("restartCount")
    return End(
        pod=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        # Once the next container runs, the count says one more: an end keeps its number.
        restarts=_count(restarts) - (1 if now_running else 0),
        at=at,
        started=started,
        reason=str(said.get("reason", "")),
        exit_code=code if isinstance(code, int) else None,
        message=str(said.get("message", "")),
        was_ready=lived >= startup_seconds,
        track=str(_dict(meta.get("labels")).get(track_label, "")),
        of_pod=is_of_pod,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _dict(value: Any) -> Raw:
    return value if isinstance(value, Mapping) else {}


def _dicts(value: Any) -> Iterator[Raw]:
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()
