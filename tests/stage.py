"""The fake cluster with a controller that makes pods of Deployments, and engines that work: a stage for rollouts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from paceline_engine.protocol import CostCell
from paceline_operator import naming
from paceline_operator.clock import rfc3339
from tests.fakes import Object
from tests.world import World


class Stage(World):
    """The world with a controller that makes pods of Deployments, and engines that work."""

    def __init__(self, folder: Path, room: int = 9) -> None:
        super().__init__(folder)
        self.room, self.bad = room, False
        self._names = itertools.count(1)

    def pods(self, track: str) -> list[Object]:
        """Of one track, but for those that failed."""
        found = [body for (kind, _, _), body in self.kube.objects.items() if kind == "Pod"]
        found = [pod for pod in found if pod["status"].get("phase") != "Failed"]
        return [pod for pod in found if pod["metadata"]["labels"].get(naming.LABEL_TRACK) == track]

    def deployments(self) -> dict[str, Object]:
        """By name."""
        return {name: body for (kind, _, name), body in self.kube.objects.items() if kind == "Deployment"}

    def revision(self, name: str = "demo") -> str:
        """Of a Deployment."""
        return str(self.kube.find("Deployment", name)["metadata"]["annotations"][naming.ANNOTATION_REVISION])

    def control(self) -> None:
        """One step: a pod goes or comes in each Deployment, and its status is told."""
        for track in (naming.TRACK_STABLE, naming.TRACK_CANARY):
            name = "demo" if track == naming.TRACK_STABLE else "demo-canary"
            deployment = self.deployments().get(name)
            pods = self.pods(track)
            if deployment is None:
                for pod in pods:
                    self.kube.drop("Pod", pod["metadata"]["name"])
                continue
            revision, replicas = self.revision(name), deployment["spec"]["replicas"]
            stale = [pod for pod in pods if pod["metadata"]["annotations"]["revision"] != revision]
            if stale or len(pods) > replicas:
                self.kube.drop("Pod", (stale or pods)[0]["metadata"]["name"])
            elif len(pods) < replicas:
                self._born(track, revision)
            self._placed()
            pods = self.pods(track)
            fresh = [pod for pod in pods if pod["metadata"]["annotations"]["revision"] == revision]
            ready = sum(pod["status"]["conditions"][0]["status"] == "True" for pod in pods)
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": len(pods),
                "updatedReplicas": len(fresh),
                "availableReplicas": ready,
            }

    def _born(self, track: str, revision: str) -> None:
        number = next(self._names)
        pod = self.pod(f"demo-{track}-{number}", ready=False, ip=f"10.0.0.{number}")
        pod["metadata"]["labels"] = {**naming.labels("demo"), naming.LABEL_TRACK: track}
        pod["metadata"]["annotations"] = {"revision": revision}
        pod["status"]["phase"] = "Pending"
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]

    def _placed(self) -> None:
        pods = [*self.pods(naming.TRACK_STABLE), *self.pods(naming.TRACK_CANARY)]
        now = rfc3339(self.clock.now())
        placed = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        for pod in pods:
            if pod in placed:
                continue
            if len(placed) < self.room:
                pod["status"] |= {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
                }
                placed.append(pod)
            elif len(pod["status"]["conditions"]) == 1:
                unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                pod["status"]["conditions"].append({**unplaced, "lastTransitionTime": now})

    def changed(self) -> list[tuple[str, str]]:
        """Writes since the last call but those to status: engines that work have numbers to tell."""
        return [(verb, kind) for verb, kind in self.writes() if verb != "STATUS"]

    def engines_work(self) -> None:
        """What each did since it was asked last; a bad canary gives half the tokens."""
        for track in (naming.TRACK_STABLE, naming.TRACK_CANARY):
            for pod in self.pods(track):
                number = int(pod["metadata"]["name"].rpartition("-")[2])
                emitted = 400 + (number + int(self.clock.monotonic())) % 5
                self.engines.cells[pod["metadata"]["name"]] = (
                    cell(emitted // 2 if self.bad and track == naming.TRACK_CANARY else emitted),
                )

    async def go(self, passes: int = 1, *, seconds: float = 10.0, kill: bool = False) -> None:
        """Passes with everything around them; no pod of the serving is ever taken from more than one at a time."""
        for _ in range(passes):
            self.control()
            self.engines_work()
            await self.serving.run(full=True)
            if kill:
                self.restart()
            self.clock.advance(seconds)

    async def until(self, phase: str, passes: int = 40, **options: Any) -> None:
        """Until status says so."""
        for _ in range(passes):
            if self.status.get("rollout", {}).get("phase") == phase:
                return
            await self.go(**options)
        raise AssertionError(f"{phase} was never reached; it is {self.status['rollout']}")


def cell(emitted: int) -> CostCell:
    return CostCell(
        load=4, context=0, k_drafted=1, k_verified=1, probe=False, steps=100, request_steps=400, emitted=emitted,
        seconds=1.0, seconds_squared=0.01, histogram={},
    )  # fmt: skip
