"""A closed loop over the engines' completions API: so many requests in flight, each followed by the next.

Concurrency and text may change at any time; requests in flight finish as they are, as users' requests would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx

from paceline_operator.local.document import Text
from paceline_operator.local.texts import Prompt, prompt

REQUEST_SECONDS = 600.0
PAUSE_AFTER_FAILURE_SECONDS = 0.5
"""A dead engine must not be asked ten thousand times a second."""
MAX_TEXT = 200


class ClosedLoop:
    """Workers, one a request in flight. Counts what became of the requests, and stores no text of theirs."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        max_tokens: int,
        transport: httpx.AsyncBaseTransport | None = None,
        seed: int = 0,
    ) -> None:
        self.completed = 0
        self.failed = 0
        self.last_failure = ""
        self._urls = urls
        self._model = model
        self._max_tokens = max_tokens
        self._random = random.Random(seed)  # noqa: S311 prompts, not secrets
        self._text: Text | None = None
        self._wanted = 0
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._out: dict[int, Text] = {}
        """Workers whose request is not answered yet, and what it is of."""
        self._http = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(REQUEST_SECONDS, connect=10.0),
            # A connection of its own for each request: a server closes idle ones after seconds, and a request that is
            # sent just then fails for a reason that is not the engine's.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    @property
    def in_flight(self) -> int:
        """Workers that have a request out or are about to."""
        return sum(not task.done() for task in self._workers.values())

    @property
    def left_over(self) -> int:
        """Requests out that would not be sent now: of another text, or more than are wanted."""
        return sum(number >= self._wanted or text is not self._text for number, text in self._out.items())

    def change(self, concurrency: int, text: Text) -> None:
        """From now on, `concurrency` requests of `text`: new ones start at once, surplus ones are not followed."""
        self._wanted, self._text = concurrency, text
        for number in range(concurrency):
            task = self._workers.get(number)
            if task is None or task.done():
                self._workers[number] = asyncio.create_task(self._work(number))

    async def stop(self) -> None:
        """Cut off what is in flight: that is no failure."""
        self._wanted = 0
        tasks = list(self._workers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    async def _work(self, number: int) -> None:
        url = f"{self._urls[number % len(self._urls)]}/v1/completions"
        while number < self._wanted and self._text is not None:
            self._out[number] = self._text
            try:
                failure = await self._request(url, prompt(self._text, self._random))
            finally:
                del self._out[number]
            if failure is None:
                self.completed += 1
                continue
            self.failed += 1
            self.last_failure = failure
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)

    async def _request(self, url: str, ask: Prompt) -> str | None:
        """None, or why it failed."""
        # No seed of the request's own: vLLM 0.32 on a CPU dies of it when a prompt comes in chunks ("CPU Generator
        # does not use offset").
        body = {
            "model": self._model,
            "prompt": ask.text,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stop": ask.stop,
        }
        try:
            response = await self._http.post(url, json=body)
        except httpx.HTTPError as error:
            return f"{url}: {str(error) or type(error).__name__}"[:MAX_TEXT]
        if response.status_code != httpx.codes.OK:
            return f"{url}: HTTP {response.status_code}: {response.text[:MAX_TEXT]}"
        usage: Any = None
        with suppress(ValueError, AttributeError):
            usage = response.json().get("usage")
        if not isinstance(usage, dict) or not isinstance(usage.get("completion_tokens"), int):
            return f"{url}: an answer without usage: {response.text[:MAX_TEXT]}"
        return None
