"""Who acts: one process at a time holds a Lease, and says so before it does anything.

A Lease that did not change for its duration, by this process's own monotonic clock, is free: the wall clocks of
machines are never compared. Who holds it steps down on its own before others may take it. Who takes it again, and sees
that nobody had it in between, carries on with what it knew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from paceline_operator import metrics, naming
from paceline_operator.clients.kube import ConflictError, Kube, KubeError, NotFoundError, Object
from paceline_operator.clock import Clock

logger = logging.getLogger(__name__)

LEASE_NAME = naming.FIELD_MANAGER
SHORTEST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Terms:
    """Times of the Lease, seconds. Who dies has a successor at most `duration + poll` after its last renewal."""

    duration: float = 15.0
    renew: float = 2.0
    """Between two renewals by the holder: as often as client-go's leaderelection, so that some may fail."""
    deadline: float = 10.0
    """Since the last renewal: then the holder stops acting, `duration - deadline` before another may begin."""
    poll: float = 2.0
    """Between two looks of those who wait, and between two attempts of a holder that could not renew."""


class Leadership:
    """Takes, renews and releases the Lease; `lead` and `yield_` are awaited on the way in and out.

    `lead` is told whether others may have acted since this process did last: then nothing that it knew holds.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        namespace: str,
        identity: str,
        lead: Callable[[bool], Awaitable[None]],
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
        self._held: Object | None = None
        """The Lease as this process wrote it last, where nobody is known to have written since."""
        self._tenure: object = None
        """Of the last time that this process acted: what every other holder would have changed."""
        self._attempts: set[asyncio.Task[bool]] = set()
        """The present one, and those given up whose requests have not ended."""
        self.leading = False

    def holds(self) -> bool:
        """Whether nobody else can have taken the Lease yet. Not so of a process that was stopped in a pass and goes on:
        its clock has moved before its tasks know."""
        return self.leading and self._clock.monotonic() - self._renewed < self._terms.deadline

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
            now = self._clock.monotonic()
            left = self._renewed + self._terms.deadline - now
            if self.leading and left <= 0:
                await self._step_down("the Lease could not be renewed")
            if not self.leading:
                return self._terms.poll
            # From the attempt's beginning: one that took long has waited already.
            return max(SHORTEST_PAUSE_SECONDS, min(self._terms.poll - (now - asked), left))
        if held:
            self._renewed = asked
            if not self.leading:
                anew = self._tenure is None or self._tenure != _tenure(self._held)
                self._tenure = _tenure(self._held)
                logger.info(
                    "Took the Lease: lease=%s/%s identity=%s anew=%s",
                    self._namespace, LEASE_NAME, self._identity, anew,
                )  # fmt: skip
                self.leading = True
                metrics.LEADER.set(1)
                await self._lead(anew)
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
        if self.leading and self._held is not None:
            # One request, as client-go does it: the Lease is as this process left it, else this is a conflict.
            held, self._held = self._held, None
            try:
                self._held = await self._kube.replace(self._body(held))
            except (ConflictError, NotFoundError):
                pass  # somebody wrote or deleted it, or an earlier attempt of ours came through after all: look
            else:
                return True
        lease = await self._kube.get("Lease", self._namespace, LEASE_NAME)
        now = self._clock.monotonic()
        try:
            if lease is None:
                self._held = await self._kube.create(self._body(None))
                return True
            spec = lease.get("spec") or {}
            version = lease["metadata"].get("resourceVersion")
            if version != self._seen[0]:
                self._seen = (version, now)
            holder = spec.get("holderIdentity")
            self._free_at = self._seen[1] + float(spec.get("leaseDurationSeconds") or self._terms.duration)
            if holder and holder != self._identity and now < self._free_at:
                return False
            self._held = await self._kube.replace(self._body(lease))
        except ConflictError:
            if self.leading:  # an attempt of ours that was given up may have come through: the next one looks
                raise
            return False  # another was faster
        return True

    def _body(self, before: Object | None) -> Object:
        micro = self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((before or {}).get("spec") or {})
        others = spec.get("holderIdentity") != self._identity
        # Also where a process of the same name had it: its work is not this one's.
        if others or (not self.leading and _tenure(before) != self._tenure):
            taken = int(spec.get("leaseTransitions") or 0) + bool(before)
            spec |= {"acquireTime": micro, "leaseTransitions": taken % 2**31}  # of 32 bits, whoever wrote it last
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


def _tenure(lease: Object | None) -> object:
    """Changes whenever the Lease is taken, by whomever."""
    spec = (lease or {}).get("spec") or {}
    return spec.get("holderIdentity"), spec.get("acquireTime"), spec.get("leaseTransitions")
