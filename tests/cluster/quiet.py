"""A minute in which nothing changes, on a control plane of its own whose audit log tells who wrote what.

Namespace `idle`: one operator, two servings at rest whose engines (the plugin's own server) are read each second.
Namespace `two`: two operators with one Lease. All of it runs in one thread, with which its daemons die.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline_operator.clients.keys import key_version
from tests.cluster.audited import AuditedPlane, Write
from tests.cluster.operators import KEY, Place, account, start, wait_for_leader
from tests.cluster.stand_ins import SPEC, AtRest, control, pod_of, run_pod, token
from tests.harness.objects import merged

CRDS = Path(__file__).resolve().parents[2] / "crds"
MINUTE_SECONDS = 60.0
SETTLE_SECONDS = 6.0
"""Without a write: then the beginning is over."""
NET = f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"
"""Of this process: others test beside it."""
ADDRESSES = {"chat": f"{NET}.9", "rich": f"{NET}.10"}
RICH: dict[str, Any] = merged(
    SPEC,
    {
        "autoscaling": {"mode": "Builtin", "minReplicas": 1, "maxReplicas": 3, "targetRunningRequests": 8},
        "metrics": {"prometheus": {"url": f"http://{NET}.10:9090"}},
        "slo": {"tpotMilliseconds": 40, "ttftP95Milliseconds": 500},
        "rollout": {"proposals": "Apply", "maintenanceWindows": [{"start": "02:00", "durationMinutes": 1}]},
    },
)
"""With every loop that looks at the clock: scaling, history (of a Prometheus that is away), windows, limits."""


@dataclass
class Sight:
    """What was seen at one moment."""

    holder: str
    transitions: int
    leads: tuple[bool, ...]
    versions: dict[str, str]


class QuietMinute:
    """Start it, do something else, `wait()` for it; the operators still run then."""

    def __init__(self, folder: Path) -> None:
        self.cluster = AuditedPlane(folder / "plane")
        self.idle, self.two = Place(self.cluster, "idle"), Place(self.cluster, "two")
        self.sights: list[Sight] = []
        self._thread = threading.Thread(target=self._run, name="quiet minute")
        self._over, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin in the background."""
        self._thread.start()

    def wait(self) -> None:
        """Until the minute is over; raises what went wrong on the way."""
        self._over.wait()
        if self._error:
            raise self._error

    def end(self) -> None:
        """Stop everything."""
        self._ended.set()
        self._thread.join()

    def written(self) -> list[Write]:
        """Writing requests of operators in the minute, by the audit log, Leases left out."""
        return [write for write in self._minute() if write.resource != "leases"]

    def renewals(self) -> Counter[str]:
        """Namespace -> how often its operators wrote their Lease in the minute."""
        return Counter(write.namespace for write in self._minute() if write.resource == "leases")

    def _minute(self) -> list[Write]:
        accounts = [f"{place.namespace}:paceline" for place in (self.idle, self.two)]
        found = [write for account in accounts for write in self.cluster.writes(account)]
        return [write for write in found if self.begin <= write.at <= self.finish]

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                self.cluster.start()
                stack.callback(self.cluster.stop)
                self._prepare(stack)
                self._watch()
            except BaseException as error:
                self._error = error
            self._over.set()
            self._ended.wait()

    def _prepare(self, stack: ExitStack) -> None:
        cluster = self.cluster
        cluster.kubectl("apply", "--server-side", "-f", CRDS)
        cluster.established("-f", CRDS)
        for place in (self.idle, self.two):
            cluster.kubectl("create", "namespace", place.namespace)
        idle, two = (account(cluster, place.namespace, watch=place.namespace) for place in (self.idle, self.two))
        self.alone = start(cluster, "alone", "idle", idle, watch="idle")
        self.pair = [start(cluster, name, "two", two, watch="two") for name in ("first", "second")]
        self.idle.serve("chat", **SPEC)
        self.two.serve("chat", **SPEC)
        self.idle.serve("rich", **RICH)
        for name, address in ADDRESSES.items():
            secret = token(self.idle, f"{name}-token-{key_version(KEY.encode())}")
            stack.enter_context(control(address, AtRest(), (secret,)))
            run_pod(self.idle, pod_of(self.idle, name), address)
            self.idle.condition(name, "MetricsAvailable", "MetricsFound")
        pod_of(self.two, "chat")
        wait_for_leader(self.alone)
        wait_for_leader(*self.pair)
        self._settle()

    def _settle(self) -> None:
        """Until nothing was written for a while: otherwise the end of the beginning would be counted."""
        last, since = self.versions(), time.monotonic()
        deadline = since + 60
        while time.monotonic() - since < SETTLE_SECONDS:
            assert time.monotonic() < deadline, "it does not come to rest"
            assert not self._ended.wait(0.5), "the tests ended first"
            now = self.versions()
            if now != last:
                last, since = now, time.monotonic()

    def versions(self) -> dict[str, str]:
        """resourceVersions in both namespaces."""
        return {f"{place.namespace}/{key}": v for place in (self.idle, self.two) for key, v in place.versions().items()}

    def _watch(self) -> None:
        self.writes_before = [operator.writes() for operator in (self.alone, *self.pair)]
        self.passes_before = self._passes()
        self.begin = datetime.now(UTC)
        deadline = time.monotonic() + MINUTE_SECONDS
        while time.monotonic() < deadline:
            lease = self.two.lease()
            leads = tuple(operator.leads() for operator in self.pair)
            self.sights.append(Sight(lease["holderIdentity"], lease["leaseTransitions"], leads, self.versions()))
            assert not self._ended.wait(0.5), "the tests ended first"
        self.finish = datetime.now(UTC)
        self.writes_after = [operator.writes() for operator in (self.alone, *self.pair)]
        self.passes = self._passes() - self.passes_before

    def _passes(self) -> float:
        return self.alone.metrics()[("paceline_reconcile_duration_seconds_count", "ok")]
