"""How often the control port may be asked, by each peer and by all of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from math import ceil

from paceline_engine.backend import Refusal

PEER_RATE, PEER_BURST = 100.0, 1000.0
"""Requests a second from one address, and at once. An operator sends three a second; each takes about a millisecond of
the step loop's interpreter, so a peer gone wild gets a tenth of it at most."""
TOTAL_RATE, TOTAL_BURST = 200.0, 2000.0
MAX_PEERS = 256
"""Addresses remembered: the least recent one is forgotten first."""


class TooMany(Refusal):
    """Come again in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.retry_after = max(1, ceil(seconds))
        super().__init__(429, "TooMany", f"too many requests: at most {PEER_RATE:g} a second from one address")


class _Bucket:
    """So many requests at once, so many a second after that."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def wait(self, now: float) -> float:
        """Seconds until a request is free; 0: take it with `take`."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1.0 - self._left) / self._rate)

    def take(self) -> None:
        """One less."""
        self._left -= 1.0


class Limiter:
    """How often may be asked: by each peer, and by all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = _Bucket(TOTAL_RATE, TOTAL_BURST, clock())
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()

    def check(self, peer: str) -> None:
        """Count a request of `peer`; raises TooMany where it comes too soon, and then it is not counted."""
        with self._lock:
            now = self._clock()
            bucket = self._peers.pop(peer, None) or _Bucket(PEER_RATE, PEER_BURST, now)
            self._peers[peer] = bucket
            if len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
            if wait := max(bucket.wait(now), self._total.wait(now)):
                raise TooMany(wait)
            bucket.take()
            self._total.take()
