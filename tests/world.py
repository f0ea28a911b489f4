"""One serving in a fake cluster, and the hands of its passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline_operator import naming
from paceline_operator.clients.keys import KeyFile, key_version
from paceline_operator.clock import FakeClock
from paceline_operator.draft import Hands
from paceline_operator.reconcile import ServingPass
from tests.fakes import FakeEngines, FakeKube, Object
from tests.servings import DEFAULTS

SPEC: Object = {"model": {"source": "hf://owner/target"}, "speculation": {"method": "ngram"}, "replicas": 1}
KEY = "k" * 40


class World:
    """The serving `demo` in namespace `team`; `serving` are its passes in the process that runs."""

    def __init__(self, folder: Path) -> None:
        self.kube, self.engines, self.clock = FakeKube(), FakeEngines(), FakeClock(seconds=1000.0)
        self.keys = folder / "keys"
        self.keys.write_text(KEY)
        self.fleet = 1
        """How many objects this operator looks after."""
        self.hands = Hands(
            *(self.kube, self.engines, KeyFile(self.keys), DEFAULTS, self.clock),  # type: ignore[arg-type]
            servings=lambda: self.fleet,
        )
        self.apply(SPEC)
        self.restart()

    def restart(self) -> None:
        """Another process: nothing is remembered."""
        self.serving = ServingPass(("team", "demo"), self.hands)

    def apply(self, spec: Object, **metadata: Any) -> Object:
        """Somebody writes the spec: another generation."""
        key = (naming.KIND_SERVING, "team", "demo")
        before = self.kube.objects.get(key, {"metadata": {"generation": 0}})
        meta = {**before["metadata"], "name": "demo", "namespace": "team", **metadata}
        meta["generation"] = before["metadata"]["generation"] + 1
        body = {"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, "metadata": meta, "spec": spec}
        return self.kube.put(body | ({"status": before["status"]} if "status" in before else {}))

    def pod(
        self, name: str, *, ready: bool = True, ip: str = "10.0.0.1", key: str = KEY, track: str = "", **status: Any
    ) -> Object:
        """A pod of the serving that runs, with the token Secret of `key`."""
        secret = f"demo-token-{key_version(key.encode())}"
        labels = naming.labels("demo") | (naming.track_labels(track) if track else {})
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        return self.kube.put(
            {
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "team", "labels": labels},
                "spec": {"nodeName": "node", "volumes": [{"name": "token", "secret": {"secretName": secret}}]},
                "status": {"phase": "Running", "podIP": ip, "conditions": conditions, **status},
            }
        )

    @property
    def status(self) -> Object:
        """As stored."""
        status: Object = self.kube.find(naming.KIND_SERVING, "demo")["status"]
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason)"""
        found = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def message(self, kind: str) -> str:
        """Of a condition."""
        return str(next(c for c in self.status["conditions"] if c["type"] == kind)["message"])

    def events(self, reason: str) -> list[str]:
        """Messages of the Events with this reason."""
        return [b["message"] for (k, _, _), b in self.kube.objects.items() if k == "Event" and b["reason"] == reason]

    def writes(self) -> list[tuple[str, str]]:
        """(verb, kind) of the writes since the last call, Events left out."""
        made = [(verb, kind) for verb, kind, _ in self.kube.writes if kind != "Event"]
        self.kube.writes.clear()
        return made
