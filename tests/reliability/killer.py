"""Kills an operator at one of its writes: before the API server has it, or after its answer and before that is seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.proxy import Answer, Answers, Fault, Proxy, Request, Rule

AFTER, BEFORE = "after", "before"


@dataclass(frozen=True)
class Call:
    """A request that changes something; the place of a crash."""

    method: str
    target: str
    """`resource/name`, `/subresource` after it where it is of one; of Events the resource alone."""

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


def call_of(request: Request) -> Call | None:
    """None of what changes nothing, and of the Lease."""
    path = request.target.partition("?")[0].strip("/").split("/")
    if not request.writes or "leases" in path or "namespaces" not in path:
        return None
    resource, *rest = path[path.index("namespaces") + 2 :]
    return Call(request.method, "/".join((resource, *rest)))


class Killer:
    """Counts writes of the operator behind `proxy`, Events too, and ends it at one. `kill` is SIGKILL to it."""

    def __init__(self, proxy: Proxy, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._lock, self._mine = threading.Lock(), threading.local()
        self._at: tuple[int, str] | None = None
        self._dead = threading.Event()
        self.calls: list[Call] = []
        """Since the last `arm`."""
        self.leases = 0
        """Writes of the Lease, from the beginning on."""
        self.seen: dict[str, Answer] = {}
        """Target of a read -> what the API server answered last."""
        self.victim: Call | None = None
        """The write at which it was killed since then."""
        self.rule: Rule = lambda _: None
        self.answers: Answers = lambda _, answer: answer
        """What else happens to requests and answers."""
        proxy.rule, proxy.answers = self._before, self._after

    def arm(self, at: tuple[int, str] | None) -> None:
        """Count from 1 anew, and kill at this write, BEFORE or AFTER; None: at none."""
        with self._lock:
            self._at, self.calls, self.victim = at, [], None

    @property
    def killed(self) -> bool:
        """And nobody was started in its place yet."""
        return self._dead.is_set()

    def revived(self) -> None:
        """Another process is about to start."""
        self._dead.clear()

    def _before(self, request: Request) -> Fault | None:
        self._mine.number = 0
        with self._lock:
            if self._dead.is_set():
                return Fault(0)
            self.leases += request.writes and "/leases/" in request.target
            call = call_of(request)
            if call is not None:
                self.calls.append(call)
                self._mine.number = len(self.calls)
                if self._at == (len(self.calls), BEFORE):
                    self._end(call)
                    return Fault(0)
        return self.rule(request)

    def _after(self, request: Request, answer: Answer) -> Answer | None:
        with self._lock:
            if not self._dead.is_set() and self._mine.number and self._at == (self._mine.number, AFTER):
                self._end(self.calls[self._mine.number - 1])
            if self._dead.is_set():
                return None
            if not request.writes:
                self.seen[request.target] = answer
        return self.answers(request, answer)

    def _end(self, call: Call) -> None:
        self._kill()
        self.victim, self._at = call, None
        self._dead.set()
