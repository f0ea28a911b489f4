"""Operators that are killed, one after the other, in a namespace that no other operator looks after."""

from __future__ import annotations

import itertools

from tests.cluster.operators import Operator, Place, account, start, wait_for_leader

LEASE_SECONDS = 5


class Relay:
    """One operator after the other: each is killed with SIGKILL, and another takes its place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._kubeconfig = account(place.cluster, place.namespace, watch=place.namespace)
        self._count = itertools.count(1)
        self.operator = self._start()

    def _start(self) -> Operator:
        watch = self.place.namespace
        name = f"relay-{watch}-{next(self._count)}"
        started = start(self.place.cluster, name, watch, self._kubeconfig, watch=watch, lease_seconds=LEASE_SECONDS)
        wait_for_leader(started)
        return started

    def kill(self) -> None:
        """The one there is; the next leads once the Lease of the first has run out."""
        self.operator.daemon.process.kill()
        self.operator.daemon.process.wait()
        self._without_traceback()
        self.operator = self._start()

    def end(self) -> None:
        """The last one."""
        self.operator.daemon.stop()
        self._without_traceback()

    def _without_traceback(self) -> None:
        assert "Traceback" not in self.operator.log(), self.operator.log()
