"""The output contract of a canary: what is asked, and whether an answer keeps it. Pure.

Answers are compared with the contract, not with each other: two correct ones need not be the same text.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from paceline_operator.api.rollout import OutputContract

ASKED = 8
"""Answers of each side that are judged: the eighth costs as much as the first, and tells less."""


class Answers(NamedTuple):
    """Of one side."""

    given: int = 0
    broken: int = 0


def request(contract: OutputContract, model: str) -> dict[str, Any]:
    """Body of `POST /v1/completions`, or of /v1/chat/completions where a tool is to be called: greedy, so that the same
    engine answers the same."""
    body: dict[str, Any] = {"model": model, "max_tokens": contract.max_tokens, "temperature": 0}
    if contract.tool is None:
        return {**body, "prompt": contract.prompt}
    fields = list(contract.json_fields)
    arguments = {"type": "object", "properties": {name: {} for name in fields}, "required": fields}
    tool = {"type": "function", "function": {"name": contract.tool, "parameters": arguments}}
    return {**body, "messages": [{"role": "user", "content": contract.prompt}], "tools": [tool]}


def keeps(contract: OutputContract, answer: bytes) -> bool:
    """Whether the body of an answer keeps `contract`. Never raises."""
    try:
        choice = json.loads(answer)["choices"][0]
        text, reason = _text(contract, choice), choice["finish_reason"]
        found = json.loads(text) if contract.json_fields or contract.tool else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    wanted = "tool_calls" if contract.tool and contract.finish_reason == "stop" else contract.finish_reason
    if wanted is not None and reason != wanted:
        return False
    return isinstance(found, dict) and all(name in found for name in contract.json_fields)


def _text(contract: OutputContract, choice: Any) -> Any:
    """What must be JSON: the text, or the arguments of the one call."""
    if contract.tool is None:
        return choice["text"]
    (call,) = choice["message"]["tool_calls"]
    if call["function"]["name"] != contract.tool:
        raise LookupError(contract.tool)
    return call["function"]["arguments"]


def counted(past: Answers, kept: bool) -> Answers:
    """`past` and one more."""
    return Answers(past.given + 1, past.broken + (not kept))
