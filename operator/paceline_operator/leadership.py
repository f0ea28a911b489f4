"""Who acts: one process at a time holds a Lease, and says so before it does anything.

A Lease that did not change for its duration, by this process's own monotonic clock, is free: the wall clocks of
machines are never compared. Who holds it steps down on its own before others may take it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from paceline_operator import metrics, naming
from paceline_operator.clients.kube import ConflictError, Kube, KubeError, Object
from paceline_operator.clock import Clock

logger = logging.getLogger(__name__)

LEASE_NAME = naming.FIELD_MANAGER
SHORTEST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Terms:
    """Times of the Lease, seconds. Who dies has a successor at most `duration + poll` after its last renewal."""

    duration: float = 15.0
    renew: float = 5.0
    """Between two renewals by the holder."""
    deadline: float = 10.0
    """Since the last renewal: then the holder stops acting, `duration - deadline` before another may begin."""
    poll: float = 2.0
    """Between two looks of those who wait, and between two attempts of a holder that could not renew."""


class Leadership:
    """Takes, renews and releases the Lease; `lead` and `yield_` are awaited on the way in and out."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        namespace: str,
        identity: str,
        lead: Callable[[], Awaitable[None]],
        yield_: Callable[[], Awaitable[None]],
        terms: Terms = Terms(),
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._identity = identity
        self._lead = lead
        self._yield = yield_
        self._terms = terms
        self._seen: tuple[object, float] = (None, clock.monotonic())
        """The Lease as it was when it last changed, and when that was."""
        self._renewed = 0.0
        self._free_at = 0.0
        """When another's Lease expires unless it is renewed before."""
        self._attempts: set[asyncio.Task[bool]] = set()
        """The present one, and those given up whose requests have not ended."""
        self.leading = False

    async def run(self) -> None:
        """Contend for the Lease until cancelled; then stop acting and release it."""
        try:
            while True:
                seconds = await self._round()
                await asyncio.sleep(seconds)
        finally:
            for attempt in self._attempts:
                attempt.cancel()
            if self.leading:
                await self._step_down("the process ends")
                if self._attempts:  # a renewal on its way would come between the release's reading and its writing
                    await asyncio.wait(self._attempts, timeout=self._terms.poll)
                await self._release()

    async def _round(self) -> float:
        """One attempt to take or renew; seconds to the next.

        A request that hangs cannot be called back: it is left to itself, and what it may still write holds only where
        nobody else wrote before. Time counts from before the request: the server may have written at any time since.
        """
        asked = self._clock.monotonic()
        since = self._renewed if self.leading else asked
        try:
            held = await self._attempt(self._hold(), since + self._terms.deadline - asked)
        except (KubeError, TimeoutError) as error:
            logger.warning("Lease not read or written: lease=%s/%s error=%r", self._namespace, LEASE_NAME, error)
            left = self._renewed + self._terms.deadline - self._clock.monotonic()
            if self.leading and left <= 0:
                await self._step_down("the Lease could not be renewed")
            return min(self._terms.poll, left) if self.leading else self._terms.poll
        if held:
            self._renewed = asked
            if not self.leading:
                logger.info("Took the Lease: lease=%s/%s identity=%s", self._namespace, LEASE_NAME, self._identity)
                self.leading = True
                metrics.LEADER.set(1)
                await self._lead()
            return self._terms.renew
        if self.leading:
            await self._step_down("another process holds the Lease")
        # Exactly when it expires, or soon again: it may have been given back.
        return min(self._terms.poll, max(self._free_at - self._clock.monotonic(), SHORTEST_PAUSE_SECONDS))

    async def _attempt(self, work: Coroutine[Any, Any, bool], seconds: float) -> bool:
        """`work`, or TimeoutError after `seconds`, whatever its request is doing then."""
        attempt = asyncio.create_task(work)
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        await asyncio.wait([attempt], timeout=seconds)
        if attempt.done():
            return attempt.result()
        attempt.cancel()
        raise TimeoutError(f"no answer within {seconds:.1f} s")

    async def _hold(self) -> bool:
        """Create, renew or take over; False where another holds it."""
        lease = await self._kube.get("Lease", self._namespace, LEASE_NAME)
        now = self._clock.monotonic()
        try:
            if lease is None:
                await self._kube.create(self._body(None))
                return True
            spec = lease.get("spec") or {}
            version = lease["metadata"].get("resourceVersion")
            if version != self._seen[0]:
                self._seen = (version, now)
            holder = spec.get("holderIdentity")
            self._free_at = self._seen[1] + float(spec.get("leaseDurationSeconds") or self._terms.duration)
            if holder and holder != self._identity and now < self._free_at:
                return False
            await self._kube.replace(self._body(lease))
        except ConflictError:
            return False  # another was faster
        return True

    def _body(self, before: Object | None) -> Object:
        micro = self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((before or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": micro, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + bool(before)}
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._terms.duration),
            "renewTime": micro,
        }
        metadata = {"name": LEASE_NAME, "namespace": self._namespace}
        if before:
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _step_down(self, why: str) -> None:
        logger.warning("Stepping down: identity=%s why=%s", self._identity, why)
        self.leading = False
        metrics.LEADER.set(0)
        await self._yield()

    async def _release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for it to expire."""
        try:
            await self._attempt(self._give_back(), self._terms.poll)
        except (KubeError, TimeoutError) as error:
            logger.warning("Lease not released, it expires by itself: error=%r", error)

    async def _give_back(self) -> bool:
        lease = await self._kube.get("Lease", self._namespace, LEASE_NAME)
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._identity:
            return False
        lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        await self._kube.replace(lease)
        return True
