"""What an engine's answers say: the protocol's types and Prometheus' text, or why they are neither. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from pydantic_core import from_json

from paceline_engine.protocol import MAX_K, PROTOCOL_VERSION, ProtocolError, Samples, State, Wire
from paceline_operator.api.conditions import Reason

MAX_HISTOGRAM_INDEX = 1000
"""1.05**1000 microseconds is 49 million years: a larger index is not a step time, and would overflow a float."""

_W = TypeVar("_W", bound=Wire)


@dataclass(frozen=True)
class EngineFailure:
    """Why an engine did not do what it was asked, in words a person can act on."""

    reason: Reason
    message: str


class Refused(Exception):  # noqa: N818 a verdict on its way to the caller, not an error of ours
    """An engine did not do what it was asked."""

    def __init__(self, failure: EngineFailure, connection: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.connection = connection
        """True where the port could not be connected to: nothing listens."""


def parse_series(lines: Iterable[str]) -> dict[str, float]:
    """Sum over labels of every sample in `lines` of Prometheus text. Raises ValueError where they are not that."""
    totals: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:  # what garbage comes to
        raise ValueError(f"not Prometheus text: {clip(error)}") from None
    return totals


def parse_as(model: type[_W], body: bytes, url: str) -> _W:
    """The protocol's `model` in `body`. Raises Refused where it is not that."""
    try:
        # Not model_validate_json, which copies all of the body for each field that is missing in it.
        found = from_json(body)
    except (ValueError, RecursionError) as error:
        raise _no_json(url, error) from None
    return _valid(model, found, url)


def _no_json(url: str, error: Exception) -> Refused:
    return Refused(EngineFailure(Reason.MALFORMED_ANSWER, f"{url} answered no JSON: {clip(error)}"))


def _valid(model: type[_W], found: object, url: str) -> _W:
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        text = f"{url} answered what is not the protocol: {where}: {clip(first['msg'])}"
        raise Refused(EngineFailure(Reason.MALFORMED_ANSWER, text)) from None
    except (ValueError, RecursionError) as error:
        raise _no_json(url, error) from None


def parse_reading(body: bytes, url: str) -> tuple[State, Samples | None]:
    """State, and the samples in the same answer where the plugin puts them there. Raises Refused."""
    try:
        found = from_json(body)
    except (ValueError, RecursionError) as error:
        raise _no_json(url, error) from None
    samples = found.pop("samples", None) if isinstance(found, dict) else None
    state = _valid(State, found, url)
    return state, None if samples is None else _valid(Samples, samples, url)


def refusal(status: int, body: bytes, url: str) -> EngineFailure:
    """Of an answer whose HTTP status is not 200."""
    try:
        said = clip(ProtocolError.model_validate(from_json(body)).message)
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


def implausible(state: State, samples: Samples) -> str | None:
    """What the types cannot say but the tuner's arithmetic rests on."""
    if state.protocol_version != PROTOCOL_VERSION:
        return f"protocol version {state.protocol_version}, this side speaks {PROTOCOL_VERSION}"
    if state.table and len(state.table) != state.capabilities.max_num_seqs + 1:
        return f"a table of {len(state.table)} entries for {state.capabilities.max_num_seqs} requests at most"
    ks = (*state.table, *state.capabilities.ladder, state.capabilities.max_k)
    if not 0 <= min(ks) <= max(ks) <= MAX_K:
        return f"a k outside 0..{MAX_K}"
    for cell in samples.cells:
        if cell.histogram and not 0 <= min(cell.histogram) <= max(cell.histogram) <= MAX_HISTOGRAM_INDEX:
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


def clip(text: object) -> str:
    """One printable line of at most 200 characters: texts of a peer end in status and logs."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:200].strip() or type(text).__name__
