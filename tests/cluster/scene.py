"""An operator behind a proxy, with servings that meet faults; and a minute in which it is cut off."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import naming
from tests.cluster.audited import AuditedPlane
from tests.cluster.lives import Lives, looked_at, unlike
from tests.cluster.operators import Operator, Place, account, start, wait_for_leader
from tests.cluster.proxy import Proxy
from tests.harness.objects import Change, merged

HOME, HERE, FRESH, FAR = "home", "here", "fresh", "far"
"""Namespaces: of the operator, of servings that meet faults, of those that a spec is applied to afterwards, and of
those whose operator is cut off."""
CUT_SECONDS = 60.0
SMALL: Change = {"model": {"source": "hf://owner/target"}, "speculation": {"method": "ngram"}}
LIVE: Change = merged(SMALL, {"tuning": {"minGainPercent": 2}, "rollout": {"maxSurge": 1}})
SCALED: Change = merged(LIVE, {"replicas": 2})
BOOT: Change = merged(SMALL, {"speculation": {"maxTokens": 3}})


@dataclass
class Scene:
    """One operator behind a proxy, which can be killed and started again."""

    plane: AuditedPlane
    namespace: str
    watched: tuple[str, ...]
    resync_seconds: int
    proxy: Proxy = field(init=False)
    operator: Operator = field(init=False)

    def __post_init__(self) -> None:
        self.proxy = Proxy(self.plane)
        watch = ",".join(self.watched)
        self.config = self.proxy.kubeconfig(account(self.plane, self.namespace, watch=watch))
        self.start()

    def start(self) -> None:
        """Also once more, after a kill: the same name, so that its own Lease is free to it."""
        name = f"operator-{self.namespace}"
        more = {"PACELINE_RESYNC_SECONDS": self.resync_seconds}
        watch = ",".join(self.watched)
        self.operator = start(self.plane, name, self.namespace, self.config, watch=watch, more=more)
        wait_for_leader(self.operator)

    def end(self) -> None:
        """kopf may trace what ends a watch; our own code raises nothing."""
        self.operator.daemon.stop()
        self.proxy.close()
        assert "/paceline_operator/" not in self.operator.log(), self.operator.log()

    def kill(self) -> None:
        self.operator.daemon.stop(grace_seconds=0)

    @property
    def lives(self) -> Lives:
        return Lives(self.plane, self.watched)

    def quiet(self) -> None:
        """Faults are over."""
        self.proxy.rule = lambda _: None
        self.proxy.lines = lambda event: [(0.0, event)]
        self.proxy.answers = lambda _, answer: answer

    def apply(self, namespace: str, specs: dict[str, Change]) -> None:
        """Create or replace."""
        there = self.lives.servings()
        wanted = {(namespace, name): spec for name, spec in specs.items()}
        new = {key: spec for key, spec in wanted.items() if key not in there}
        answers = self.lives.create(new) | self.lives.replace({k: s for k, s in wanted.items() if k not in new})
        assert {status for status, _ in answers.values()} <= {200, 201}, answers

    def settled(self, namespace: str, names: Any) -> None:
        late = self.lives.wait(looked_at, [(namespace, name) for name in names])
        assert not late, f"no whole pass over {late}\n{self.operator.daemon.tail()}"

    def like_fresh(self, specs: dict[str, Change]) -> None:
        """Servings in HERE have the children that new ones with their specs get in FRESH."""
        self.apply(FRESH, specs)
        self.settled(FRESH, specs)
        place = Place(self.plane, HERE)

        def difference() -> list[str]:
            children = self.lives.children()
            return [line for name in specs for line in unlike(children[HERE, name], children[FRESH, name])]

        try:
            place.wait("children as of a fresh apply", lambda: not difference())
        except TimeoutError:
            raise AssertionError("\n".join(difference())) from None
        self.lives.delete([(FRESH, name) for name in specs])

    def pods(self, namespace: str = HERE) -> dict[str, set[str]]:
        """Serving -> UIDs of its pods."""
        found: dict[str, set[str]] = {}
        for pod in Place(self.plane, namespace).list("Pod"):
            if "deletionTimestamp" not in pod["metadata"]:
                found.setdefault(pod["metadata"]["labels"][naming.LABEL_SERVING], set()).add(pod["metadata"]["uid"])
        return found

    def with_pods(self, names: Any, namespace: str = HERE) -> dict[str, set[str]]:
        """`pods`, once each serving has its one."""
        place = Place(self.plane, namespace)
        place.wait("a pod of each", lambda: all(len(self.pods(namespace).get(name, ())) == 1 for name in names))
        found = self.pods(namespace)
        return {name: found[name] for name in names}


class Cut:
    """A minute without a network between an operator and its API server, while other tests run."""

    def __init__(self, plane: AuditedPlane) -> None:
        self.scene = Scene(plane, FAR, (FAR,), resync_seconds=300)
        self.place = Place(plane, FAR)
        self.scene.apply(FAR, dict.fromkeys(("stays", "changes", "goes"), SMALL))
        self.scene.settled(FAR, ("stays", "changes", "goes"))
        self.before = self.scene.with_pods(("stays", "changes", "goes"), FAR)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.scene.proxy.cut()
        begun = time.monotonic()
        self.scene.apply(FAR, {"changes": LIVE, "comes": SMALL})
        self.place.kubectl("delete", naming.PLURAL_SERVING, "goes")
        self.place.kubectl("delete", "service", "stays")
        self.led = [self.scene.operator.leads() for _ in range(int(CUT_SECONDS)) if not time.sleep(1)]
        self.made_meanwhile = self.place.get("Deployment", "comes")
        self.seconds = time.monotonic() - begun
        self.scene.proxy.mend()

    def wait(self) -> None:
        self._thread.join()

    def end(self) -> None:
        self._thread.join()
        self.scene.end()
