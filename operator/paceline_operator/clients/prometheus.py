"""Asks Prometheus for the hours before now, by prometheus-api-client, which blocks: in a few threads, with a deadline.

A server that accepts and is silent, or sends a byte a second, holds one thread until the deadline and nothing else. The
library is imported by the first question: most installations ask none.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline_operator.api.conditions import Reason
from paceline_operator.history import Absence, Load
from paceline_operator.history.answer import load
from paceline_operator.history.question import Question

THREADS = 4
MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""A thousand pods, 720 points of 25 bytes each, are 18 MB."""
CHUNK_BYTES = 64 * 1024


class PrometheusClient:
    """One for all servings of this process. `url` and `token_file` are the operator's own: the token goes to the origin
    of that URL alone, never to one that an object names."""

    def __init__(self, url: str = "", token_file: Path | None = None) -> None:
        self._url, self._token_file = url, token_file
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prometheus")

    def close(self) -> None:
        """Let threads end with the questions they are in."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def load(self, asked: Question, now: datetime) -> Load | Absence:
        """The load of a serving until `now`. Never raises for what a server does."""
        url = asked.url or self._url
        if not url:
            text = "metrics.prometheus names no url, and the operator has none of its own (PACELINE_PROMETHEUS_URL)"
            return Absence(Reason.HISTORY_ERROR, text)
        future = self._threads.submit(self._ask, url, asked, now)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), asked.timeout_seconds)
        except TimeoutError:
            text = f"{_shown(url)} did not answer within {asked.timeout_seconds:g} s"
            return Absence(Reason.HISTORY_TIMEOUT, text)

    def _ask(self, url: str, asked: Question, now: datetime) -> Load | Absence:
        import requests
        from prometheus_api_client import PrometheusConnect
        from urllib3.util.retry import Retry

        deadline = time.monotonic() + asked.timeout_seconds

        class Bounded(requests.Session):  # type: ignore[misc]  # the library is untyped
            """Reads no more than it should, and no longer: a timeout of the library's is about one silence."""

            def request(self, *arguments: Any, **options: Any) -> Any:
                options |= {"stream": True, "allow_redirects": False}
                response = super().request(*arguments, **options)
                body = b""
                for chunk in response.iter_content(CHUNK_BYTES):
                    body += chunk
                    if time.monotonic() > deadline:
                        raise requests.Timeout
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
                response._content = body
                return response

        start, step = now - timedelta(seconds=asked.window_seconds), str(asked.step_seconds)
        once = Retry(0, read=False)
        try:
            with PrometheusConnect(
                url.rstrip("/"), self._headers(url), retry=once, session=Bounded(), timeout=asked.timeout_seconds
            ) as server:
                limits = {"timeout": f"{asked.timeout_seconds:g}s"}
                answers = [
                    server.custom_query_range(query, start, now, step, dict(limits))
                    for query in (asked.running, asked.demand)
                ]
            return load(asked, *answers, now.timestamp())
        except requests.Timeout:
            text = f"{_shown(url)} did not answer within {asked.timeout_seconds:g} s"
            return Absence(Reason.HISTORY_TIMEOUT, text)
        except requests.ConnectionError:
            return Absence(Reason.HISTORY_ERROR, f"{_shown(url)} cannot be connected to")
        except Exception as error:  # deep JSON, an address that is none: whatever it is, history has its reason
            return Absence(Reason.HISTORY_ERROR, f"{_shown(url)}: {_brief(error)}")

    def _headers(self, url: str) -> dict[str, str]:
        if self._token_file is None or urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}


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
    return text[:200] or type(error).__name__
