"""One run of the operator: its fleet, its claim to the Lease, its HTTP port. What was seen, main tells it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

from paceline_operator import health, metrics, naming
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.keys import KeyFile
from paceline_operator.clients.kube import (
    CONCURRENCY,
    CONNECT_SECONDS,
    READ_SECONDS,
    Kube,
    KubeError,
    UnavailableError,
    connect,
)
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.clients.session import Session
from paceline_operator.clients.watch import Watch
from paceline_operator.clock import SystemClock
from paceline_operator.draft import Hands
from paceline_operator.experimenting import ExperimentPass
from paceline_operator.exported import ENGINES
from paceline_operator.fleet import Fleet, Outcome, Pass, Trigger
from paceline_operator.gauges import SERVINGS
from paceline_operator.judge import judge
from paceline_operator.kinds import OPTIONAL
from paceline_operator.leadership import Leadership, Terms
from paceline_operator.plan import CHILD_KINDS
from paceline_operator.reconcile import ServingPass
from paceline_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

ObjectKey = tuple[str, str, str]
"""(kind, namespace, name)"""
OVERDUE_LIMIT_SECONDS = 300.0
"""A pass ends within fleet.PASS_LIMIT_SECONDS: twice that and more means that it does not."""
BEAT_SECONDS = 1.0
SILENCE_LIMIT_SECONDS = 30.0
"""An event loop that did not run for so long does not."""
KINDS_SECONDS = 5.0
"""Between two looks at which kinds the cluster has."""
UNREACHABLE_SECONDS = 30.0
"""Without an answer of the API server, six looks in vain: then this process is not ready."""
KINDS = (naming.KIND_SERVING, naming.KIND_EXPERIMENT, naming.KIND_PROFILE)
PLURALS = (naming.PLURAL_SERVING, naming.PLURAL_EXPERIMENT, naming.PLURAL_PROFILE)
"""Of our own kinds. Of those that the cluster does not have, the log says so, and the others are served."""
CHILDREN = (*CHILD_KINDS, "Pod")
"""Kinds that are watched for what belongs to a serving: of an event of theirs, its label alone is read."""


class Operator:
    """One process: its fleet, its claim to the Lease and its HTTP port."""

    def __init__(self, config: OperatorSettings) -> None:
        """Raises ValueError or OSError where the configuration, or the cluster's address, cannot be used."""
        self.stop_flag = asyncio.Event()
        """Set: kopf ends its run."""
        self.started = False
        self.config = config
        self._clock = SystemClock()
        self._keys = KeyFile(config.master_key_file)
        api = connect()
        self._kube = Kube(api, may_write=lambda: self._leadership.holds())
        duration = config.lease_seconds
        # Limits and connections of its own: a renewal that hangs must fail in time for another attempt.
        self._lease_kube = Kube(api, concurrency=2, connect_seconds=duration / 6, read_seconds=duration / 3)
        self._session = Session(api, 0, CONNECT_SECONDS, READ_SECONDS)
        self._engines = EngineClient()
        self._prometheus = PrometheusClient(config.prometheus_url, config.prometheus_token_file)
        self._hands = Hands(
            *(self._kube, self._engines, self._keys, config.defaults, self._clock, self._prometheus),
            servings=lambda: len(self.fleet),
        )
        self.fleet: Fleet[ObjectKey] = Fleet(
            self._prepare, self._clock, looks=CONCURRENCY, resync_seconds=config.resync_seconds
        )
        self._leadership = Leadership(
            self._lease_kube,
            self._clock,
            config.namespace,
            config.identity,
            self._lead,
            self._yield,
            Terms(duration=duration, renew=duration * 2 / 15, deadline=duration * 2 / 3, poll=duration * 2 / 15),
        )
        self._seen: dict[ObjectKey, int] = {}
        """What an object's last event said, status left out, as a hash."""
        self._beat = self._contact = self._clock.monotonic()
        """When the event loop ran last, and when the API server answered last, whatever it said."""
        self._known: frozenset[str] | None = None
        """Kinds of ours that the cluster had before kopf looked for them: one that came meanwhile is a change."""
        self._tasks: list[asyncio.Task[None]] = []
        self._http: ThreadingHTTPServer | None = None

    async def start(self) -> None:
        """Open the HTTP port and contend for the Lease. kopf looks for kinds once this is done."""
        metrics.watch_fleet(self.fleet.overdue, self.fleet.__len__)
        self._http = health.serve(self.config.http_host, self.config.http_port, self.check, self.check_ready)
        with suppress(KubeError):
            self._known = await self._served()
        loop = asyncio.get_running_loop()
        watches = [
            self._watch(kind, namespace).run()
            for namespace in sorted(self.config.watch_namespaces) or ("",)
            for kind in CHILDREN
        ]
        work = (self._leadership.run(), self._heart(), self._watch_kinds(), self._sweep(), *watches)
        self._tasks = [loop.create_task(coroutine) for coroutine in work]
        self.started = True

    async def stop(self) -> None:
        """Stop acting, release the Lease, close everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engines.close()
        self._prometheus.close()
        for api in (self._kube, self._lease_kube, self._session):
            await api.close()
        if self._http:
            await asyncio.to_thread(self._http.shutdown)
            self._http.server_close()

    def object_event(self, kind: str, event: str | None, metadata: Mapping[str, Any]) -> None:
        """Something happened to an object of ours. A change of status alone is our own write, and wakes nobody; nor is
        it news that it is listed as it is known (event None), as all are when kopf begins another watch.

        Also at deletion: the pass finds that the object is gone, or that another has its name.
        """
        key = (kind, metadata["namespace"], metadata["name"])
        telling = ("uid", "generation", "deletionTimestamp", "labels", "annotations")
        seen = hash(repr([metadata.get(name) for name in telling]))
        known = key in self.fleet and self._seen.get(key) == seen
        if not self._watches(key[1]) or (known and event in ("MODIFIED", None)):
            return
        if event == "DELETED":
            self._seen.pop(key, None)
        else:
            self._seen[key] = seen
        self.fleet.add(key)

    def child_event(self, metadata: Mapping[str, Any], kind: str = "Pod", gone: bool = False) -> None:
        """Something happened to a child, or a pod: it wakes the serving that its label names."""
        namespace, serving = metadata.get("namespace"), (metadata.get("labels") or {}).get(naming.LABEL_SERVING)
        if namespace and serving:
            key = (naming.KIND_SERVING, str(namespace), str(serving))
            if key in self.fleet and self._hands.versions.tell(key[1:], kind, metadata, gone):
                self.fleet.wake(key)

    def _watch(self, kind: str, namespace: str) -> Watch:
        told = partial(self.child_event, kind=kind)
        gone = partial(told, gone=True)
        return Watch(self._session, kind, namespace, naming.LABEL_SERVING, told, self._anew, gone=gone)

    def _anew(self) -> None:
        """A watch may have missed something."""
        self._hands.versions.anew()
        self.fleet.wake_all()

    def _watches(self, namespace: str) -> bool:
        return not self.config.watch_namespaces or namespace in self.config.watch_namespaces

    def check(self) -> str:
        """What is wrong with this process, empty where nothing is. Called from the HTTP thread."""
        if (silent := self._clock.monotonic() - self._beat) > SILENCE_LIMIT_SECONDS:
            return f"the event loop has not run for {silent:.0f} s"
        if any(task.done() for task in self._tasks):
            return "the Lease is not contended for any more, or something is not watched any more"
        with suppress(RuntimeError):  # the fleet changed while it was looked at: it moves
            if (late := self.fleet.stuck()) > OVERDUE_LIMIT_SECONDS:
                return f"a pass is {late:.0f} s late, and no other has begun meanwhile"
        return ""

    def check_ready(self) -> str:
        """The same, and whether the API server answers. Called from the HTTP thread."""
        if (silent := self._clock.monotonic() - self._contact) > UNREACHABLE_SECONDS:
            return f"the API server has not answered for {silent:.0f} s"
        return self.check()

    def _prepare(self, key: ObjectKey) -> Pass:
        kind, namespace, name = key
        if kind == naming.KIND_SERVING:
            return _as_pass(ServingPass((namespace, name), self._hands))
        if kind == naming.KIND_EXPERIMENT:
            return _as_experiment(ExperimentPass((namespace, name), self._hands))

        async def run(_: Trigger) -> Outcome:
            return Outcome(gone=not await judge(self._kube, self._clock, kind, namespace, name))

        return run

    async def _lead(self, anew: bool) -> None:
        if anew:  # another may have acted: what was known of each object need not hold
            self.fleet.forget()
        self._hands.versions.anew()  # what took the Lease from us may have kept watches from telling anything, too
        self.fleet.start()

    async def _yield(self) -> None:
        await self.fleet.stop()
        ENGINES.clear()
        SERVINGS.clear()

    async def _heart(self) -> None:
        while True:
            self._beat = self._clock.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    async def _sweep(self) -> None:
        """Take up objects that no watch told of. Their passes find those that are gone."""
        while True:
            await asyncio.sleep(self.config.resync_seconds)
            for kind in KINDS:
                for namespace in self.config.watch_namespaces or ("",):
                    with suppress(KubeError):
                        for place in await self._kube.names(kind, namespace):
                            key = (kind, *place)
                            if key not in self.fleet:
                                logger.warning("Object that no watch told of: object=%s", key)
                                self.fleet.add(key)

    async def _served(self) -> frozenset[str]:
        """Plurals of ours that the cluster has. Raises KubeError."""
        try:
            served = await self._kube.served(naming.API_VERSION)
        except UnavailableError:
            raise
        except KubeError:  # it refuses: so it is there
            self._contact = self._clock.monotonic()
            raise
        self._contact = self._clock.monotonic()
        return served & frozenset(PLURALS)

    async def _watch_kinds(self) -> None:
        """End the run where the cluster's kinds of ours change: kopf may look for them at its start only.

        Optional kinds are not watched: where they come or go, each serving takes a look.
        """
        changes = 0
        while True:
            with suppress(KubeError):
                found = [kind for kind in OPTIONAL if await self._kube.serves(kind)]
                # Counted, for a pass may see a kind gone that is there again at this look as it was at the last one.
                if self._kube.kinds_changed != changes:
                    changes = self._kube.kinds_changed
                    logger.info("Optional kinds changed: now=%s", sorted(found))
                    self.fleet.wake_all()
            with suppress(KubeError):
                served = await self._served()
                if served != self._known:
                    before = "unknown" if self._known is None else sorted(self._known)
                    logger.warning("Kinds changed, watching begins anew: before=%s now=%s", before, sorted(served))
                    self.stop_flag.set()
                self._known = served
            await asyncio.sleep(KINDS_SECONDS)


def _as_pass(serving: ServingPass) -> Pass:
    async def run(trigger: Trigger) -> Outcome:
        result = await serving.run(full=trigger is not Trigger.PERIOD, believing=trigger is Trigger.WAKE)
        return Outcome(after=result.after, gone=result.gone, comes=result.comes)

    return run


def _as_experiment(experiment: ExperimentPass) -> Pass:
    async def run(_: Trigger) -> Outcome:
        result = await experiment.run()
        return Outcome(after=result.after, gone=result.gone)

    return run
