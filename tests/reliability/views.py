"""What an operator may be shown of a cluster that is not as it is, or not in order, for as long as a stage takes."""

from __future__ import annotations

import random
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

from tests.cluster.proxy import Answer, Event, Fault, Request
from tests.reliability.killer import call_of
from tests.reliability.life import Life

OLD_SECONDS = 3.0
"""For which time goes back: passes over engines are a second apart."""
SLOW_SECONDS = 0.4
MEETINGS = 1
"""How often each kind of request meets its fault."""
SEED = 20261130
View = Callable[[Life], None]


def calm(life: Life) -> None:
    """All is as it is."""
    life.killer.rule, life.killer.answers = (lambda _: None), (lambda _, answer: answer)
    life.proxy.lines = lambda event: [(0.0, event)]


def _lines(lines: Callable[[Event], list[tuple[float, Event]]]) -> View:
    def begin(life: Life) -> None:
        life.proxy.lines = lines

    return begin


def _reordered(life: Life) -> None:
    draw = random.Random(SEED)
    life.proxy.lines = lambda event: [(draw.uniform(0.0, 2.0), event)]


def _replayed(life: Life) -> None:
    """Each event is followed by all that came of its object before, oldest first."""
    past: dict[str, list[Event]] = {}

    def lines(event: Event) -> list[tuple[float, Event]]:
        before = past.setdefault(event["object"].get("metadata", {}).get("uid", ""), [])
        replayed = [(0.3 + 0.1 * i, one) for i, one in enumerate(before)]
        before.append(event)
        return [(0.0, event), *replayed]

    life.proxy.lines = lines


def _dropped(life: Life) -> None:
    draw = random.Random(SEED)
    life.proxy.lines = lambda event: [(0.0, event)] if draw.random() < 0.5 else []


def _expired(life: Life) -> None:
    """Every watch ends, and its version is gone."""
    told = Counter[str]()

    def rule(request: Request) -> Fault | None:
        if not request.watch:
            return None
        told[request.target.partition("?")[0]] += 1
        return Fault(410, "Expired") if told[request.target.partition("?")[0]] <= MEETINGS else None

    life.killer.rule = rule
    life.proxy.end_streams()


def _refused(fault: Fault, *, reads: bool = False) -> View:
    """Each kind of write, or of request, is answered so at first; Events are left out: they are not posted again."""

    def begin(life: Life) -> None:
        met, lock = Counter[tuple[str, str]](), threading.Lock()

        def rule(request: Request) -> Fault | None:
            call = call_of(request)
            if request.watch or (call is None and not reads) or "/events" in request.target:
                return None
            key = request.method, request.target.partition("?")[0]
            with lock:
                met[key] += 1
                return fault if met[key] <= MEETINGS else None

        life.killer.rule = rule

    return begin


def _slow(life: Life) -> None:
    def rule(request: Request) -> Fault | None:
        if not request.watch:
            time.sleep(SLOW_SECONDS)
        return None

    life.killer.rule = rule


def _half_open(life: Life) -> None:
    """Connections of before are open, and nothing comes through them any more."""
    life.proxy.cut()
    life.proxy.mend()


def _answered(life: Life, target: str) -> Answer:
    """As the API server answers now."""
    try:
        return 200, life.cluster.get(quote(target, safe="/?&=,:")).encode()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _old(life: Life) -> None:
    """Once the operator has written something, reads are answered as they were before the stage, and watches say
    nothing: time goes back, which no API server on one etcd shows."""
    before, began = {target: _answered(life, target) for target in list(life.killer.seen)}, list[float]()

    def old(request: Request) -> bool:
        if not began and any("status" not in call.target for call in life.killer.calls):
            began.append(time.monotonic())
        return bool(began) and time.monotonic() - began[0] < OLD_SECONDS

    def answers(request: Request, answer: Answer) -> Answer:
        then = before.get(request.target)
        return then if then and not request.writes and old(request) else answer

    life.killer.answers = answers
    life.proxy.lines = lambda event: [] if began and time.monotonic() - began[0] < OLD_SECONDS else [(0.0, event)]


VIEWS: dict[str, tuple[str, View]] = {
    "dropped": ("every second event of a watch, drawn, is not told", _dropped),
    "stalled": ("watches stay open and tell nothing", _lines(lambda _: [])),
    "late": ("events come 1.5 s late", _lines(lambda event: [(1.5, event)])),
    "duplicated": ("each event is told three times", _lines(lambda event: 3 * [(0.0, event)])),
    "reordered": ("each event comes up to 2 s late, in any order", _reordered),
    "replayed": ("after each event all earlier ones of its object come again", _replayed),
    "410": ("every watch ends, and its version is gone once", _expired),
    "409": ("each kind of write meets Conflict once", _refused(Fault(409, "Conflict"))),
    "422": ("each kind of write meets Invalid once", _refused(Fault(422, "Invalid"))),
    "429": ("each kind of request meets 429 with Retry-After once", _refused(Fault(429, "TooManyRequests", retry_after=1), reads=True)),  # noqa: E501
    "500": ("each kind of request meets 500 once", _refused(Fault(500, "InternalError"), reads=True)),
    "lost answer": ("each kind of write is done once without an answer", _refused(Fault(0, forwarded=True))),
    "slow": (f"each answer comes {SLOW_SECONDS} s late", _slow),
    "half-open": ("every connection is open and dead", _half_open),
    "old": (f"for {OLD_SECONDS:.0f} s after its first write reads are answered as before the stage", _old),
}  # fmt: skip
"""Name -> what it is, in words; how it begins."""
REFUSALS = ("409", "422", "429", "500", "lost answer")
"""After which a pass is tried again later and later: a stage of many writes takes a minute."""
