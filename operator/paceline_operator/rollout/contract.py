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
    """Body of `POST /v1/completions`, greedy so that the same engine answers the same."""
    return {"model": model, "prompt": contract.prompt, "max_tokens": contract.max_tokens, "temperature": 0}


def keeps(contract: OutputContract, answer: bytes) -> bool:
    """Whether the body of an answer keeps `contract`. Never raises."""
    try:
        choice = json.loads(answer)["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
        found = json.loads(text) if contract.json_fields else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    if contract.finish_reason is not None and reason != contract.finish_reason:
        return False
    return isinstance(found, dict) and all(name in found for name in contract.json_fields)


def counted(past: Answers, kept: bool) -> Answers:
    """`past` and one more."""
    return Answers(past.given + 1, past.broken + (not kept))
