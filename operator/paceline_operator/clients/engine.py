"""Talks to one engine: the plugin's control port, and the serving port's /metrics where the control port is shut.

Whatever the other side sends, the answer is a value: an `Engine` with state and samples, or a failure with the reason
that the condition will show. A pod is not trusted: no redirects, no proxies, no cookies, no decompression, bounded
bodies, a deadline for the whole exchange, and samples whose numbers cannot be are refused before the tuner sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar

import httpx

from paceline_engine.protocol import Policy, PolicyAck, Samples, Wire
from paceline_engine.pull.report import PATH, Report
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.answers import (
    EngineFailure,
    Refused,
    clip,
    implausible,
    parse_as,
    parse_reading,
    parse_series,
    refusal,
)
from paceline_operator.clients.exchange import Exchanges, bounded, kept_lines
from paceline_operator.firsttokens import Histogram, is_bucket, parse
from paceline_operator.rollout import page
from paceline_operator.tuning.model import Engine

DEADLINE_SECONDS = 8.0
"""For one exchange, body included: a peer that drips a byte a second must not hold a pass."""
COMPLETION_SECONDS = 30.0
"""For an answer of a thousand tokens at most."""
ENGINE_SERIES_PREFIX = "vllm:"
RUNNING = "vllm:num_requests_running"
TOKENS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
"""Those that grow wherever an engine moves."""
_W = TypeVar("_W", bound=Wire)


class EngineClient:
    """One client for all engines of this process. Safe for concurrent use; close it, or use it as `async with`."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = Exchanges(transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def observe_engine(
        self, name: str, control_url: str, serving_url: str, token: str, cursor: str | None
    ) -> Engine:
        """State and samples since `cursor` (None or empty: everything since boot) of the engine `name`.

        URLs are `http://host:port`. Never raises for what the engine does: failure is PodNotAnswering, PluginAbsent,
        EngineSeriesMissing, TokenRefused, EngineWarmingUp or MalformedAnswer.
        """
        try:
            url = f"{control_url}/state"
            answer = await self._exchange("GET", url, token, params={"samples": cursor or ""})
            state, samples = parse_reading(answer, url)
            if samples is None:  # a plugin that tells them at an address of their own alone
                samples = await self._read(Samples, control_url, "/samples", token, cursor)
        except Refused as refused:
            failure, counters = refused.failure, None
            if refused.connection:
                failure, counters = await self._why_shut(serving_url, refused.failure)
            return Engine(name=name, failure=failure.reason, failure_message=failure.message, counters=counters)
        if state.boot_id != samples.boot_id:
            return Engine(
                name=name, failure=Reason.ENGINE_WARMING_UP, failure_message="the engine restarted while it was read"
            )
        if problem := implausible(state, samples):
            return Engine(
                name=name,
                failure=Reason.MALFORMED_ANSWER,
                failure_message=f"{control_url} answered nonsense: {problem}",
            )
        return Engine(name=name, state=state, samples=samples)

    async def first_token_times(self, serving_url: str) -> Histogram | None:
        """The histogram of the engine's /metrics, filtered while it is read; None where it cannot be had."""
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                self._http.stream("GET", f"{serving_url}/metrics") as response,
            ):
                kept = await kept_lines(response, is_bucket)
            return parse(kept) if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None

    async def pull_report(self, control_url: str, token: str) -> Report | None:
        """What a puller at work says of itself; None where it does not."""
        try:
            return await self._read(Report, control_url, PATH, token)
        except Refused:
            return None

    async def requests_page(self, serving_url: str) -> page.Page | None:
        """What the engine's /metrics says of requests; None where it cannot be had."""
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                self._http.stream("GET", f"{serving_url}/metrics") as response,
            ):
                kept = await kept_lines(response, page.is_read)
            return page.parse(kept) if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None

    async def tokens(self, serving_url: str) -> tuple[int, int] | None:
        """(tokens since boot, requests running) of the engine's /metrics; None where they cannot be had."""
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                self._http.stream("GET", f"{serving_url}/metrics") as response,
            ):
                series = parse_series(await kept_lines(response, _is_of_progress))
            if response.status_code != httpx.codes.OK or RUNNING not in series or TOKENS[0] not in series:
                return None
            return int(sum(series.get(name, 0.0) for name in TOKENS)), int(series[RUNNING])
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, OverflowError):
            return None

    async def complete(self, serving_url: str, body: Mapping[str, object]) -> bytes | None:
        """Body of the answer to a completion request, of a chat where it has messages; None where there was none."""
        path = "chat/completions" if "messages" in body else "completions"
        try:
            async with (
                asyncio.timeout(COMPLETION_SECONDS),
                self._http.stream("POST", f"{serving_url}/v1/{path}", json=dict(body)) as response,
            ):
                answer = b"".join([chunk async for chunk in bounded(response)])
                return answer if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None

    async def push(self, control_url: str, token: str, policy: Policy) -> PolicyAck | EngineFailure:
        """Put `policy` in force. A refusal by the plugin (409, 422) is NotAcknowledged with its text."""
        try:
            body = await self._exchange("PUT", f"{control_url}/policy", token, policy.model_dump_json(by_alias=True))
            return parse_as(PolicyAck, body, f"{control_url}/policy")
        except Refused as refused:
            return refused.failure

    async def _read(self, model: type[_W], control_url: str, path: str, token: str, cursor: str | None = None) -> _W:
        url, params = f"{control_url}{path}", {"cursor": cursor} if cursor else None
        return parse_as(model, await self._exchange("GET", url, token, params=params), url)

    async def _exchange(
        self,
        method: str,
        url: str,
        token: str,
        body: str | None = None,
        params: dict[str, str] | None = None,
    ) -> bytes:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                status, answer = await self._http.fetch(method, url, headers, body, params)
        except httpx.ConnectError as error:
            message = f"nothing listens at {url}: {clip(error)}"
            raise Refused(EngineFailure(Reason.POD_NOT_ANSWERING, message), connection=True) from None
        except (httpx.TimeoutException, TimeoutError):
            raise Refused(
                EngineFailure(
                    Reason.POD_NOT_ANSWERING,
                    f"{url} did not answer in time: the engine hangs, or a network policy drops the connection",
                )
            ) from None
        except httpx.NetworkError as error:
            raise Refused(
                EngineFailure(Reason.POD_NOT_ANSWERING, f"the connection to {url} broke: {clip(error)}")
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            # httpx has one type for a server that hangs up and for one that does not speak HTTP.
            hung_up = isinstance(error, httpx.RemoteProtocolError) and "disconnected" in str(error)
            reason = Reason.POD_NOT_ANSWERING if hung_up else Reason.MALFORMED_ANSWER
            raise Refused(EngineFailure(reason, f"{url}: {clip(error)}")) from None
        if status != httpx.codes.OK:
            raise Refused(refusal(status, answer, url))
        return answer

    async def _why_shut(
        self, serving_url: str, shut: EngineFailure
    ) -> tuple[EngineFailure, Mapping[str, float] | None]:
        """Tell a pod that is down from one whose engine serves without the plugin: of that one, with its series."""
        url = f"{serving_url}/metrics"
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._http.stream("GET", url) as response:
                kept = await kept_lines(response, _is_engine_series)
            series = parse_series(kept) if response.status_code == httpx.codes.OK else {}
        except (httpx.TransportError, TimeoutError):
            text = f"{shut.message}; and the serving port {serving_url} does not answer either"
            return EngineFailure(Reason.POD_NOT_ANSWERING, text), None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return EngineFailure(Reason.MALFORMED_ANSWER, f"{url}: {clip(error)}"), None
        if not series:
            text = (
                f"{url} answers {response.status_code} without any {ENGINE_SERIES_PREFIX} series, and {shut.message}: "
                "is this vLLM, and are its statistics on?"
            )
            return EngineFailure(Reason.ENGINE_SERIES_MISSING, text), None
        text = (
            f"the engine serves, but {shut.message}: the plugin is not loaded or found no token, see the engine's log"
        )
        return EngineFailure(Reason.PLUGIN_ABSENT, text), series


def _is_of_progress(line: str) -> bool:
    return line.startswith((RUNNING, *TOKENS))


def _is_engine_series(line: str) -> bool:
    return line.startswith(ENGINE_SERIES_PREFIX) and "_bucket{" not in line
