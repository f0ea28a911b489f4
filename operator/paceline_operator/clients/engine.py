"""Talks to one engine: the plugin's control port, and the serving port's /metrics where the control port is shut.

Whatever the other side sends, the answer is a value: an `Engine` with state and samples, or a failure with the reason
that the condition will show. A pod is not trusted: no redirects, no proxies, no cookies, no decompression, bounded
bodies, a deadline for the whole exchange, and samples whose numbers cannot be are refused before the tuner sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from pydantic_core import from_json

from paceline_engine.protocol import MAX_K, PROTOCOL_VERSION, Policy, PolicyAck, ProtocolError, Samples, State, Wire
from paceline_engine.pull.report import PATH, Report
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.exchange import Exchanges
from paceline_operator.firsttokens import Histogram, is_bucket, parse
from paceline_operator.rollout import page
from paceline_operator.tuning.model import Engine

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""A full samples answer (20 loads x 17 ks x 3 contexts, histograms included) is under 3 MB; /metrics is 40 KB."""
DEADLINE_SECONDS = 8.0
"""For one exchange, body included: a peer that drips a byte a second must not hold a pass."""
COMPLETION_SECONDS = 30.0
"""For an answer of a thousand tokens at most."""
MAX_HISTOGRAM_INDEX = 1000
"""1.05**1000 microseconds is 49 million years: a larger index is not a step time, and would overflow a float."""
ENGINE_SERIES_PREFIX = "vllm:"
RUNNING = "vllm:num_requests_running"
TOKENS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
"""Those that grow wherever an engine moves."""
MAX_LINE_BYTES = 4096
"""Of /metrics; the longest that vLLM writes has some 1,000 bytes. The parser's time grows with the square of it."""
MAX_KEPT_BYTES = 256 * 1024
"""Of the lines of one /metrics that are parsed: at most half a second, which nothing else can use."""

_W = TypeVar("_W", bound=Wire)


@dataclass(frozen=True)
class EngineFailure:
    """Why an engine did not do what it was asked, in words a person can act on."""

    reason: Reason
    message: str


class _Refused(Exception):  # noqa: N818 a verdict on its way to the caller, not an error of ours
    def __init__(self, failure: EngineFailure, connection: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.connection = connection
        """True where the port could not be connected to: nothing listens."""


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
            state = await self._read(State, control_url, "/state", token, last=False)
            samples = await self._read(Samples, control_url, "/samples", token, cursor)
        except _Refused as refused:
            failure, counters = refused.failure, None
            if refused.connection:
                failure, counters = await self._why_shut(serving_url, refused.failure)
            return Engine(name=name, failure=failure.reason, failure_message=failure.message, counters=counters)
        if state.boot_id != samples.boot_id:
            return Engine(
                name=name, failure=Reason.ENGINE_WARMING_UP, failure_message="the engine restarted while it was read"
            )
        if problem := _implausible(state, samples):
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
                kept = await _kept(response, is_bucket)
            return parse(kept) if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None

    async def pull_report(self, control_url: str, token: str) -> Report | None:
        """What a puller at work says of itself; None where it does not."""
        try:
            return await self._read(Report, control_url, PATH, token)
        except _Refused:
            return None

    async def requests_page(self, serving_url: str) -> page.Page | None:
        """What the engine's /metrics says of requests; None where it cannot be had."""
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                self._http.stream("GET", f"{serving_url}/metrics") as response,
            ):
                kept = await _kept(response, page.is_read)
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
                series = parse_series(await _kept(response, _is_of_progress))
            if response.status_code != httpx.codes.OK or RUNNING not in series or TOKENS[0] not in series:
                return None
            return int(sum(series.get(name, 0.0) for name in TOKENS)), int(series[RUNNING])
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, OverflowError):
            return None

    async def complete(self, serving_url: str, body: Mapping[str, object]) -> bytes | None:
        """Body of the answer to a completion request; None where there was none."""
        try:
            async with (
                asyncio.timeout(COMPLETION_SECONDS),
                self._http.stream("POST", f"{serving_url}/v1/completions", json=dict(body)) as response,
            ):
                answer = b"".join([chunk async for chunk in _bounded(response)])
                return answer if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None

    async def push(self, control_url: str, token: str, policy: Policy) -> PolicyAck | EngineFailure:
        """Put `policy` in force. A refusal by the plugin (409, 422) is NotAcknowledged with its text."""
        try:
            body = await self._exchange("PUT", f"{control_url}/policy", token, policy.model_dump_json(by_alias=True))
            return _parse(PolicyAck, body, f"{control_url}/policy")
        except _Refused as refused:
            return refused.failure

    async def _read(
        self, model: type[_W], control_url: str, path: str, token: str, cursor: str | None = None, *, last: bool = True
    ) -> _W:
        url, params = f"{control_url}{path}", {"cursor": cursor} if cursor else None
        return _parse(model, await self._exchange("GET", url, token, params=params, last=last), url)

    async def _exchange(
        self,
        method: str,
        url: str,
        token: str,
        body: str | None = None,
        params: dict[str, str] | None = None,
        *,
        last: bool = True,
    ) -> bytes:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                self._http.stream(method, url, headers=headers, content=body, params=params, last=last) as response,
            ):
                answer = b"".join([chunk async for chunk in _bounded(response)])
                status = response.status_code
        except httpx.ConnectError as error:
            message = f"nothing listens at {url}: {_clip(error)}"
            raise _Refused(EngineFailure(Reason.POD_NOT_ANSWERING, message), connection=True) from None
        except (httpx.TimeoutException, TimeoutError):
            raise _Refused(
                EngineFailure(
                    Reason.POD_NOT_ANSWERING,
                    f"{url} did not answer in time: the engine hangs, or a network policy drops the connection",
                )
            ) from None
        except httpx.NetworkError as error:
            raise _Refused(
                EngineFailure(Reason.POD_NOT_ANSWERING, f"the connection to {url} broke: {_clip(error)}")
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            # httpx has one type for a server that hangs up and for one that does not speak HTTP.
            hung_up = isinstance(error, httpx.RemoteProtocolError) and "disconnected" in str(error)
            reason = Reason.POD_NOT_ANSWERING if hung_up else Reason.MALFORMED_ANSWER
            raise _Refused(EngineFailure(reason, f"{url}: {_clip(error)}")) from None
        if status != httpx.codes.OK:
            raise _Refused(_refusal(status, answer, url))
        return answer

    async def _why_shut(
        self, serving_url: str, shut: EngineFailure
    ) -> tuple[EngineFailure, Mapping[str, float] | None]:
        """Tell a pod that is down from one whose engine serves without the plugin: of that one, with its series."""
        url = f"{serving_url}/metrics"
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._http.stream("GET", url) as response:
                kept = await _kept(response, _is_engine_series)
            series = parse_series(kept) if response.status_code == httpx.codes.OK else {}
        except (httpx.TransportError, TimeoutError):
            text = f"{shut.message}; and the serving port {serving_url} does not answer either"
            return EngineFailure(Reason.POD_NOT_ANSWERING, text), None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return EngineFailure(Reason.MALFORMED_ANSWER, f"{url}: {_clip(error)}"), None
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


def parse_series(lines: Iterable[str]) -> dict[str, float]:
    """Sum over labels of every sample in `lines` of Prometheus text. Raises ValueError where they are not that."""
    totals: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # what the parser raises on garbage
        raise ValueError(f"not Prometheus text: {_clip(error)}") from None
    return totals


def _is_of_progress(line: str) -> bool:
    return line.startswith((RUNNING, *TOKENS))


def _is_engine_series(line: str) -> bool:
    return line.startswith(ENGINE_SERIES_PREFIX) and "_bucket{" not in line


async def _bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ValueError("the answer is compressed, which was not asked for")
    read = 0
    async for chunk in response.aiter_bytes():
        read += len(chunk)
        if read > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        yield chunk


async def _kept(response: httpx.Response, is_wanted: Callable[[str], bool]) -> list[str]:
    """Lines that are wanted. Raises ValueError where they are too many: a part of them would be another sum."""
    kept, size = [], 0
    async for line in _lines(response):
        if is_wanted(line):
            kept.append(line)
            size += len(line)
            if size > MAX_KEPT_BYTES:
                raise ValueError(f"the series that are read have more than {MAX_KEPT_BYTES} bytes")
    return kept


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Without those that are too long to be a series."""
    rest = b""
    async for chunk in _bounded(response):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[: MAX_LINE_BYTES + 1]  # enough to know that the line is too long
        for line in whole:
            if len(line) <= MAX_LINE_BYTES:
                yield line.decode("utf-8", "replace")
    if len(rest) <= MAX_LINE_BYTES:
        yield rest.decode("utf-8", "replace")


def _parse(model: type[_W], body: bytes, url: str) -> _W:
    try:
        # Not model_validate_json, which copies all of the body for each field that is missing in it.
        return model.model_validate(from_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise _Refused(
            EngineFailure(
                Reason.MALFORMED_ANSWER, f"{url} answered what is not the protocol: {where}: {_clip(first['msg'])}"
            )
        ) from None
    except (ValueError, RecursionError) as error:
        raise _Refused(EngineFailure(Reason.MALFORMED_ANSWER, f"{url} answered no JSON: {_clip(error)}")) from None


def _refusal(status: int, body: bytes, url: str) -> EngineFailure:
    try:
        said = _clip(ProtocolError.model_validate(from_json(body)).message)
    except ValueError:
        said = "no reason given"
    match status:
        case httpx.codes.UNAUTHORIZED:
            return EngineFailure(Reason.TOKEN_REFUSED, f"{url} refused the token: {said}")
        case httpx.codes.SERVICE_UNAVAILABLE:
            return EngineFailure(Reason.ENGINE_WARMING_UP, f"{url} is not ready: {said}")
        case httpx.codes.CONFLICT | httpx.codes.UNPROCESSABLE_ENTITY:
            return EngineFailure(Reason.NOT_ACKNOWLEDGED, f"{url} refused the policy: {said}")
        case _:
            return EngineFailure(Reason.MALFORMED_ANSWER, f"{url} answered HTTP {status}: {said}")


def _implausible(state: State, samples: Samples) -> str | None:
    """What the types cannot say but the tuner's arithmetic rests on."""
    if state.protocol_version != PROTOCOL_VERSION:
        return f"protocol version {state.protocol_version}, this side speaks {PROTOCOL_VERSION}"
    if state.table and len(state.table) != state.capabilities.max_num_seqs + 1:
        return f"a table of {len(state.table)} entries for {state.capabilities.max_num_seqs} requests at most"
    if any(not 0 <= k <= MAX_K for k in (*state.table, *state.capabilities.ladder, state.capabilities.max_k)):
        return f"a k outside 0..{MAX_K}"
    for cell in samples.cells:
        if any(not 0 <= index <= MAX_HISTOGRAM_INDEX for index in cell.histogram):
            return f"a histogram index outside 0..{MAX_HISTOGRAM_INDEX}"
        if max(cell.k_drafted, cell.k_verified) > MAX_K or (cell.steps and not cell.request_steps):
            return f"a cost cell with k {cell.k_drafted}, {cell.steps} steps and {cell.request_steps} request-steps"
    for counts in samples.acceptance:
        pairs = zip(counts.drafted, counts.accepted, strict=False)
        if (
            counts.k > MAX_K
            or not len(counts.drafted) == len(counts.accepted) <= MAX_K
            or any(not 0 <= accepted <= drafted for drafted, accepted in pairs)
            or counts.drafts > counts.request_steps
        ):
            return f"acceptance counts at k {counts.k} that cannot be: {counts.accepted} of {counts.drafted}"
    return None


def _clip(text: object) -> str:
    """One printable line of at most 200 characters: texts of a peer end in status and logs."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:200].strip() or type(text).__name__
