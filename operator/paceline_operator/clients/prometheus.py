"""Asks Prometheus for the hours before now, by prometheus-api-client, which blocks: in a few threads, with a deadline.

A server is not trusted, for an object may name any: each is asked one question at a time, its connections are cut at
the deadline whatever it drips, bodies are bounded, and one at a time is taken apart. The library is imported by the
first question: most installations ask none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from paceline_operator.api.conditions import Reason
from paceline_operator.clients.wire import Wire
from paceline_operator.history import Absence, Load
from paceline_operator.history.answer import load, seconds
from paceline_operator.history.question import Question

THREADS = 16
CONNECT_SECONDS = 3.0
WAIT_SECONDS = 300.0
"""For a turn, which does not count to the question's own time: each server, and each thread, has one at a time."""
_TAKING_APART = threading.Lock()
"""Parsed JSON is up to thirty times its text: one answer of all is there at a time."""


class PrometheusClient:
    """One for all servings of this process. `url` and `token_file` are the operator's own: the token goes to the origin
    of that URL alone, never to one that an object names."""

    def __init__(self, url: str = "", token_file: Path | None = None) -> None:
        self._url, self._token_file = url, token_file
        self._threads = asyncio.Semaphore(THREADS)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._wires: set[Wire] = set()

    def close(self) -> None:
        """Cut the connections of questions on their way. Their threads hold up no end of the process."""
        for wire in self._wires:
            wire.cut()

    async def load(self, asked: Question, now: datetime) -> Load | Absence:
        """The load of a serving until `now`. Never raises for what a server does."""
        url = asked.url or self._url
        if not url:
            text = "metrics.prometheus names no url, and the operator has none of its own (PACELINE_PROMETHEUS_URL)"
            return Absence(Reason.HISTORY_ERROR, text)
        turn = self._turns.setdefault(_origin(url), asyncio.Lock())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn.acquire()
                try:
                    await self._threads.acquire()
                except BaseException:
                    turn.release()
                    raise
        except TimeoutError:
            text = f"{_shown(url)} was not asked: questions before this one took more than {WAIT_SECONDS:g} s"
            return Absence(Reason.HISTORY_TIMEOUT, text)
        return await self._answer(url, asked, now, turn)

    async def _answer(self, url: str, asked: Question, now: datetime, turn: asyncio.Lock) -> Load | Absence:
        """In a thread of its own, which holds the turn until it ends, and is waited for until the deadline."""
        loop, wire = asyncio.get_running_loop(), Wire()
        answer: asyncio.Future[Load | Absence] = loop.create_future()

        def finish(found: Load | Absence) -> None:
            self._wires.discard(wire)
            self._threads.release()
            turn.release()
            if not answer.done():
                answer.set_result(found)

        def work() -> None:
            found = self._ask(url, asked, now, wire)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(finish, found)

        self._wires.add(wire)
        try:
            threading.Thread(target=work, name="prometheus", daemon=True).start()
        except RuntimeError as error:
            finish(Absence(Reason.HISTORY_ERROR, f"the operator has no thread to ask in: {error}"))
        try:
            return await asyncio.wait_for(answer, asked.timeout_seconds)
        except TimeoutError:
            return _late(url, asked)
        finally:
            wire.cut()

    def _ask(self, url: str, asked: Question, now: datetime, wire: Wire) -> Load | Absence:
        try:
            return self._asked(url, asked, now, wire)
        except Exception as error:  # deep JSON, an address that is none: whatever it is, history has its reason
            import requests
            from urllib3.exceptions import TimeoutError as BodyTimeout

            # requests tells of a late head; the body is read below it, where urllib3 tells
            if isinstance(error, requests.Timeout | BodyTimeout):
                return _late(url, asked)
            text = "cannot be connected to" if isinstance(error, requests.ConnectionError) else _brief(error)
            return Absence(Reason.HISTORY_ERROR, f"{_shown(url)}: {text}")

    def _asked(self, url: str, asked: Question, now: datetime, wire: Wire) -> Load | Absence:
        from prometheus_api_client import PrometheusConnect

        from paceline_operator.clients.bounded import Bounded

        limits = {"timeout": f"{asked.timeout_seconds:g}s"}
        start, step = now - timedelta(seconds=asked.window_seconds), str(asked.step_seconds)
        times = (CONNECT_SECONDS, asked.timeout_seconds)

        def of(query: str) -> Mapping[int, float] | Absence:
            with ExitStack() as held:
                session = Bounded(wire, lambda: held.enter_context(_TAKING_APART))
                with PrometheusConnect(url.rstrip("/"), self._headers(url), session=session, timeout=times) as server:
                    answer = server.custom_query_range(query, start, now, step, dict(limits))
                return seconds(asked, answer, now.timestamp())

        return load(asked, of(asked.running), of(asked.demand))

    def _headers(self, url: str) -> dict[str, str]:
        if self._token_file is None or urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}


def _late(url: str, asked: Question) -> Absence:
    return Absence(Reason.HISTORY_TIMEOUT, f"{_shown(url)} did not answer within {asked.timeout_seconds:g} s")


def _origin(url: str) -> str:
    return url.split("/")[2].rpartition("@")[2].lower() if url.count("/") > 1 else url


def _shown(url: str) -> str:
    """Without a user and a password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an IPv6 address without its end, which the pattern of the field lets through
        return "metrics.prometheus.url"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _brief(error: Exception) -> str:
    """What went wrong, without what a server sent, which follows in parentheses and may hold anything."""
    text = str(error).partition("(")[0].strip()
    if "@" in text:  # an address that could not be read, with a user and a password maybe
        text = ""
    return text[:200] or type(error).__name__
